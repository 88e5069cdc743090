"""Which range lies in which: the one definition that everything else in this package rests on.

Ranges of one thread are put in order (start, longest first, id). Then

    the parent of a range   is the last range before it in that order that ends no earlier than it;
    the range of a launch   is the last range in that order that contains the launch, both ends included.

Pushed ranges of one domain nest by construction. Started ones, and pushed ones of different domains, may
cross: one begins inside the other and ends after it. Of two that cross, one is *loose*: it stays out of the
tree, owns nothing, and only its length and what lies inside it count. Pushed ranges keep their place before
started ones, annot's own before those of others, earlier ones before later ones; what crosses only loose ranges keeps
its own. A range that ended on
another thread is loose, unless it belongs to its process: those were taken out before, see
`annot.correlate.shared_ranges`.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from annot.correlate import sweep
from annot.tag import DOMAIN

__all__ = ["Nest", "is_ours", "nest"]


@dataclass(frozen=True, slots=True)
class Nest:
    """Ranges in order, with their places in the tree.

    Args:
        tree: the ranges that nest, with `parent` (row in this table, -1 at the top; Int32); a parent comes before
            its children.
        loose: the ranges that cross others or end on another thread.
    """

    tree: pl.DataFrame
    loose: pl.DataFrame


def nest(ranges: pl.DataFrame) -> Nest:
    """Find each range's parent.

    Args:
        ranges: columns thread (Int32), start, end (Int64), foreign (ended on another thread), started (not
            pushed) and ours (in annot's domain); every end is known and not before the start; in the order of
            their ids. Further columns are kept.

    Example:
        >>> two = pl.DataFrame({"start": [0, 5], "end": [20, 10]}).with_columns(thread=pl.lit(9, pl.Int32))
        >>> no = pl.lit(False)
        >>> nest(two.with_columns(foreign=no, started=no, ours=no)).tree["parent"].to_list()
        [-1, 0]
    """
    order = sweep.order(ranges["thread"], ranges["start"], ranges["end"])
    aside = _aside(ranges, order)
    loose = ranges[order.filter(aside)].drop("started", "ours")
    given_away = [ranges.drop("started", "ours", "foreign")]
    del ranges  # tables of tens of millions of rows; the caller gave it away
    tree = _taken(given_away.pop(), order.filter(~aside) if loose.height else order)
    parent, _ = sweep.parents(tree["thread"], tree["end"])
    return Nest(tree.with_columns(parent.alias("parent")), loose)


def _aside(ranges: pl.DataFrame, order: pl.Series) -> pl.Series:
    """Which ranges, in order, have to stand aside so that the others nest."""
    weight = 2 * (~ranges["started"]).cast(pl.Int32) + ranges["ours"].cast(pl.Int32)
    columns = (ranges["thread"], ranges["start"], ranges["end"], weight, ranges["foreign"])
    return sweep.crossing(*(column.gather(order) for column in columns))


def _taken(ranges: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """The rows of a table, which is used up column by column."""
    return pl.DataFrame([ranges.drop_in_place(name).gather(rows) for name in ranges.columns])


def is_ours(domain: str) -> pl.Expr:
    """Whether a column of domains says annot's own."""
    return (pl.col(domain) == DOMAIN).fill_null(False)
