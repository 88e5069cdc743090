"""Selection of rows by time. Rows that a table shows as one line (`annot.report.tree_rows`) stay together."""

from __future__ import annotations

import polars as pl

__all__ = ["at_least", "longest", "longest_first"]


def longest_first(rows: pl.DataFrame, column: str, lines: pl.Series | None = None) -> pl.DataFrame:
    """Return the rows with the longest first, in the order of the sums of their lines.

    Args:
        rows: the rows.
        column: the time to sort by.
        lines: number of the line of each row; None: each row is a line.
    """
    return _sorted(_numbered(rows, column, lines)).select(rows.columns)


def longest(rows: pl.DataFrame, column: str, lines: pl.Series | None = None, *, number: int) -> pl.DataFrame:
    """Return the rows of the longest lines, longest first; arguments as of `longest_first`."""
    ordered = _sorted(_numbered(rows, column, lines))
    kept = ordered[_LINE].unique(maintain_order=True).head(number)
    return ordered.filter(pl.col(_LINE).is_in(kept.implode())).select(rows.columns)


def at_least(rows: pl.DataFrame, column: str, lines: pl.Series | None = None, *, ns: float) -> pl.DataFrame:
    """Return the rows of lines that take at least some time (ns), in their order; arguments as of `longest_first`."""
    return _numbered(rows, column, lines).filter(pl.col(_TIME) >= ns).select(rows.columns)


_LINE, _TIME = "(line)", "(time)"


def _numbered(rows: pl.DataFrame, column: str, lines: pl.Series | None) -> pl.DataFrame:
    """Add the line of each row and the sum of its time."""
    numbers = pl.int_range(pl.len()) if lines is None else lines
    return rows.with_columns(numbers.alias(_LINE)).with_columns(pl.col(column).sum().over(_LINE).alias(_TIME))


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    first = pl.int_range(pl.len()).min().over(_LINE)  # rows of one line stay together
    return rows.sort(_TIME, -first, descending=True, maintain_order=True)
