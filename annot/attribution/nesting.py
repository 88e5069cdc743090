"""Nesting of the ranges of a thread: the definition of parents and owners for all of annot.

The ranges of a thread are ordered by (start, longest first, id).

    parent of a range    the last range before it in that order that ends no earlier
    owner of a launch    the last range in that order that contains the launch; start and end are inclusive

Pushed ranges of one domain nest by construction. Started ranges, and pushed ranges of different domains, may cross: one
starts inside the other and ends after it. One of the two is then a *crossing range*: it stays outside the tree, owns
nothing, and only its duration and the GPU time launched inside it count. Pushed ranges take precedence over started
ranges, then annot's ranges over those of other domains, then earlier ranges over later ones. A range that crosses only
crossing ranges stays in the tree. A range that ended on another thread is a crossing range, unless it belongs to its
process (see `annot.attribution.process_ranges`).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from annot.attribution import column_ops
from annot.labels.tag import DOMAIN

__all__ = ["Nest", "is_ours", "nest"]


@dataclass(frozen=True, slots=True)
class Nest:
    """The tree of the ranges of threads, and the crossing ranges.

    Args:
        tree: the ranges of the tree, with parent (row in this table, -1 at the top; Int32). A parent comes before its
            children.
        crossing: the ranges that cross others or end on another thread.
    """

    tree: pl.DataFrame
    crossing: pl.DataFrame


def nest(ranges: pl.DataFrame) -> Nest:
    """Return the ranges with their parents.

    Args:
        ranges: thread (Int32), start, end (ns, Int64), foreign (ended on another thread), started (not pushed) and
            ours (in annot's domain), ordered by id. No end is null or before the start. Further columns are kept.

    Example:
        >>> two = pl.DataFrame({"start": [0, 5], "end": [20, 10]}).with_columns(thread=pl.lit(9, pl.Int32))
        >>> false = pl.lit(False)
        >>> nest(two.with_columns(foreign=false, started=false, ours=false)).tree["parent"].to_list()
        [-1, 0]
    """
    order = column_ops.order(ranges["thread"], ranges["start"], ranges["end"])
    is_crossing = _crossing(ranges, order)
    crossing = ranges[order.filter(is_crossing)].drop("started", "ours")
    rest = [ranges.drop("started", "ours", "foreign")]
    del ranges  # may have tens of millions of rows; the caller keeps no reference either
    tree = _gather_rows(rest.pop(), order.filter(~is_crossing) if crossing.height else order)
    parent, _ = column_ops.parents(tree["thread"], tree["end"])
    return Nest(tree.with_columns(parent.alias("parent")), crossing)


def _crossing(ranges: pl.DataFrame, order: pl.Series) -> pl.Series:
    """Return which ranges, in order, are crossing ranges (Boolean)."""
    weight = 2 * (~ranges["started"]).cast(pl.Int32) + ranges["ours"].cast(pl.Int32)
    columns = (ranges["thread"], ranges["start"], ranges["end"], weight, ranges["foreign"])
    return column_ops.crossing(*(column.gather(order) for column in columns))


def _gather_rows(ranges: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return some rows of a table. Each column of the table is dropped once it is copied."""
    return pl.DataFrame([ranges.drop_in_place(name).gather(rows) for name in ranges.columns])


def is_ours(domain: str) -> pl.Expr:
    """Return whether a domain is annot's (Boolean)."""
    return (pl.col(domain) == DOMAIN).fill_null(False)
