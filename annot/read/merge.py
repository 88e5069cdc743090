"""Several tables of device work as one, by time, without holding them all."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

__all__ = ["merged"]


def merged(blocks: Iterator[pl.DataFrame], others: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows of blocks and of a table by start.

    Rows of blocks may be out of order by up to half a block; what is further away comes out of order.

    Args:
        blocks: pieces of a table with a column start, almost in order.
        others: further rows, in any order.

    Example:
        >>> pieces = (pl.DataFrame({"start": starts}) for starts in ([3, 1], [5, 4]))
        >>> [block["start"].to_list() for block in merged(pieces, pl.DataFrame({"start": [2, 9]}))]
        [[1], [2, 3, 4], [5, 9]]
    """
    others = _sorted(others)
    held: pl.DataFrame | None = None
    for block in blocks:
        rows = _sorted(block if held is None else pl.concat([held, block], how="diagonal_relaxed"))
        ready = rows.height - block.height // 2
        held = rows.slice(ready)
        if ready:
            until = others["start"].search_sorted(rows["start"][ready - 1], "right")
            yield _together(rows.head(ready), others.head(until))
            others = others.slice(until)
    rest = others if held is None else _together(held, others)
    if rest.height:
        yield rest


def _together(rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    return _sorted(pl.concat([rows, others], how="diagonal_relaxed")) if others.height else rows


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows if rows["start"].is_sorted() else rows.sort("start", maintain_order=True)
