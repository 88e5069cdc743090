"""Which range lies in which: the one definition that everything else in this package rests on.

Ranges of one thread are put in order (start, longest first, id). Then

    the parent of a range   is the last range before it in that order that ends no earlier than it;
    the range of a launch   is the last range in that order that contains the launch, both ends included.

Pushed ranges of one domain nest by construction. Started ones, and pushed ones of different domains, may
cross: one begins inside the other and ends after it. Of two that cross, one is *loose*: it stays out of the
tree, owns nothing, and only its length and what lies inside it count. Pushed ranges keep their place before
started ones, annot's own before those of others, earlier ones before later ones. A range that ended on
another thread is loose.
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
        tree: the ranges that nest, with `parent` (row in this table, -1 at the top; Int32) and `depth` (0 at
            the top; Int32); a parent comes before its children.
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
    ordered = ranges[sweep.order(ranges["thread"], ranges["start"], ranges["end"])]
    del ranges  # tables of tens of millions of rows; the caller gave it away
    aside = _aside(ordered)
    ordered = ordered.drop("started", "ours")
    loose = ordered.filter(aside)
    if loose.height:
        ordered = ordered.filter(~aside)
    ordered = ordered.drop("foreign")
    parent, depth = sweep.parents(ordered["thread"], ordered["end"])
    return Nest(ordered.with_columns(parent.alias("parent"), depth.alias("depth")), loose)


def _aside(ordered: pl.DataFrame) -> pl.Series:
    """Which ranges have to stand aside so that the others nest."""
    weight = 2 * (~pl.col("started")).cast(pl.Int32) + pl.col("ours").cast(pl.Int32)
    columns = ordered.select("thread", "start", "end", weight.alias("weight"), "foreign")
    return sweep.crossing(*columns.get_columns())


def is_ours(domain: str) -> pl.Expr:
    """Whether a column of domains says annot's own."""
    return (pl.col(domain) == DOMAIN).fill_null(False)
