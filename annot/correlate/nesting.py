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

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from annot.tag import DOMAIN

__all__ = ["Nest", "nest"]


@dataclass(frozen=True, slots=True)
class Nest:
    """Ranges in order, with their places in the tree.

    Args:
        tree: the ranges that nest, with `parent` (row in this table, null at the top) and `depth` (0 at the
            top); a parent comes before its children.
        loose: the ranges that cross others or end on another thread.
    """

    tree: pl.DataFrame
    loose: pl.DataFrame


def nest(ranges: pl.DataFrame) -> Nest:
    """Find each range's parent.

    Args:
        ranges: columns id, thread, end_thread, domain, kind, start, end as in `annot.profile.RANGES`; every
            end is known and not before the start. Further columns are kept.

    Example:
        >>> two = {"id": [1, 2], "thread": [9, 9], "end_thread": [None, None], "domain": ["", ""],
        ...        "kind": ["push", "push"], "start": [0, 5], "end": [20, 10]}
        >>> nest(pl.DataFrame(two)).tree["parent"].to_list()
        [None, 0]
    """
    ordered = ranges.sort("thread", "start", "end", "id", descending=[False, False, True, False])
    crossing = pl.Series(_crossing(ordered), dtype=pl.Boolean) | ordered["end_thread"].is_not_null()
    tree = ordered.filter(~crossing)
    parents, depths = _parents(tree["thread"].to_list(), tree["end"].to_list())
    places = [pl.Series("parent", parents, pl.Int64), pl.Series("depth", depths, pl.Int64)]
    return Nest(tree.with_columns(places), ordered.filter(crossing))


def _crossing(ordered: pl.DataFrame) -> list[bool]:
    """Tell which ranges have to stand aside so that the others nest."""
    started = pl.col("kind") == "start"
    weights = ordered.select(
        2 * (~started).cast(pl.Int64) + (pl.col("domain") == DOMAIN).fill_null(False).cast(pl.Int64)
    )
    weight: list[int] = weights.to_series().to_list()
    start, end = ordered["start"].to_list(), ordered["end"].to_list()
    foreign = ordered["end_thread"].is_not_null().to_list()
    loose = [False] * len(start)
    stack: list[int] = []
    here = None
    for row, thread in enumerate(ordered["thread"].to_list()):
        if foreign[row]:
            continue
        if thread != here:
            here = thread
            stack.clear()
        first, last = start[row], end[row]
        while stack and end[stack[-1]] < last:
            top = stack[-1]
            if end[top] > first:
                if weight[row] <= weight[top]:
                    loose[row] = True
                    break
                loose[top] = True
            stack.pop()
        if not loose[row]:
            stack.append(row)
    return loose


def _parents(threads: Sequence[int], ends: Sequence[int]) -> tuple[list[int | None], list[int]]:
    parents: list[int | None] = []
    depths: list[int] = []
    stack: list[int] = []
    here = None
    for row, (thread, end) in enumerate(zip(threads, ends, strict=True)):
        if thread != here:
            here = thread
            stack.clear()
        while stack and ends[stack[-1]] < end:
            stack.pop()
        parents.append(stack[-1] if stack else None)
        depths.append(len(stack))
        stack.append(row)
    return parents, depths
