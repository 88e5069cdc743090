"""Tree of ranges by the rule of Nsight Systems: the parent is the shortest range around, crossing or not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from annot.attribution.nsight_rule.containment import in_quadrant
from annot.errors import AnnotError

__all__ = ["place_in_tree"]

_STACKS_LIMIT: Final = 2**30


def place_in_tree(ranges: pl.DataFrame, *, stacks: bool) -> pl.DataFrame:
    """Return the ranges with their parents and levels, in the order (thread, start, longest first, id).

    Args:
        ranges: id, thread, start, end (ns). No end is before its start. Further columns are kept.
        stacks: whether to return the column stack.

    Returns:
        The ranges with

            parent    id of the shortest range around the range on its thread, the smallest id of equally short ones
            level     0 without a parent. Null for ranges with equal start and end, which are each other's parents,
                      and for all ranges inside them
            children  number of ranges with this parent
            stack     ids from the top to the range, each after a colon, null if level is null

    Raises:
        AnnotError: the stacks exceed 1 GiB.

    Example:
        >>> ranges = pl.DataFrame({"id": [1, 2], "thread": [9, 9], "start": [0, 5], "end": [20, 10]})
        >>> place_in_tree(ranges, stacks=True).select("parent", "level", "children", "stack").rows()
        [(None, 0, 1, ':1'), (1, 1, 0, ':1:2')]
    """
    ordered = ranges.sort("thread", "start", "end", "id", descending=[False, False, True, False])
    same = [pl.col(key) == pl.col(key).shift() for key in ("thread", "start", "end")]
    again = ordered.select(pl.all_horizontal(same)).to_series().fill_null(False)
    alone = ~(again | again.shift(-1, fill_value=False))
    distinct = ordered.filter(~again)
    parents = _shortest_around(distinct)
    levels, texts = _levels(parents.to_list(), alone.filter(~again).to_list(), distinct["id"].to_list(), stacks=stacks)
    row = (~again).cast(pl.Int64).cum_sum() - 1
    parent = (
        distinct["id"].gather(parents).gather(row).zip_with(alone, _parents_of_equal(ordered, again)).alias("parent")
    )
    places = [parent, pl.Series("level", levels, pl.Int64).gather(row)]
    if stacks:
        places.append(pl.Series("stack", texts, pl.String).gather(row))
    children = parent.drop_nulls().value_counts(name="children").rename({"parent": "id"})
    ordered = ordered.with_columns(places).join(children, on="id", how="left", maintain_order="left")
    return ordered.with_columns(pl.col("children").cast(pl.Int64).fill_null(0))


def _parents_of_equal(ordered: pl.DataFrame, again: pl.Series) -> pl.Series:
    """Return the parents of ranges with equal start and end: the second one for the first, the first one for others."""
    first = pl.select(pl.when(~again).then(ordered["id"])).to_series().forward_fill()
    return first.zip_with(again, ordered["id"].shift(-1))


def _shortest_around(ranges: pl.DataFrame) -> pl.Series:
    """Return the row of the parent of each range. The ranges are distinct and in order."""
    nested = _nest(ranges["thread"].to_list(), ranges["start"].to_list(), ranges["end"].to_list())
    parents = pl.Series(nested.parents, dtype=pl.Int64)
    if not nested.crossing:
        return parents
    by_length = ranges.select(pl.arg_sort_by(pl.col("end") - pl.col("start"), "id")).to_series()
    table = pl.DataFrame(
        {
            "row": pl.arange(ranges.height, dtype=pl.Int64, eager=True),
            "end": _rank_of_end(ranges),
            "length": (length := by_length.arg_sort().cast(pl.Int64)),
            "around": length.gather(parents),  # null without a parent
        }
    )
    crossing = table[nested.crossing]
    inner = table.filter(pl.col("around").is_null() | (pl.col("around") > crossing["length"].min()))
    inner = inner.filter(_may_be_inside(inner, crossing))
    points = crossing.select("length", x=-pl.col("row"), y=-pl.col("end"))
    found = in_quadrant(points, inner.select(x=1 - pl.col("row"), y=-pl.col("end")), smallest=["length"])
    inner = inner.with_columns(pl.min_horizontal("around", found["length"])).drop_nulls("around")
    return parents.scatter(inner["row"], by_length.gather(inner["around"]).cast(pl.Int64))


def _rank_of_end(ranges: pl.DataFrame) -> pl.Series:
    """Return the rank of each end, thread after thread. Equal ends have equal ranks."""
    ends = ranges.select("thread", "end", pl.arange(pl.len()).alias("row")).sort("thread", "end")
    new = (pl.col("thread") != pl.col("thread").shift()) | (pl.col("end") != pl.col("end").shift())
    return ends.select("row", new.fill_null(True).cast(pl.Int64).cum_sum().alias("rank")).sort("row")["rank"]


def _may_be_inside(ranges: pl.DataFrame, others: pl.DataFrame) -> pl.Series:
    """Return for which ranges one of the others starts before and ends no earlier (Boolean)."""
    before = others["row"].search_sorted(ranges["row"], "left").cast(pl.Int64) - 1
    latest = others["end"].cum_max().gather(pl.select(pl.when(before >= 0).then(before)).to_series())
    return (latest >= ranges["end"]).fill_null(False)


class _Nested(NamedTuple):
    parents: list[int | None]
    """Row of the last range in order around each range, crossing ranges excluded."""
    crossing: list[int]


def _nest(threads: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> _Nested:
    """Nest ranges in order. A range that starts inside another, or at its end, and ends after it is crossing."""
    parents: list[int | None] = []
    crossing: list[int] = []
    stack: list[int] = []
    bounds: list[int] = []  # ends of the stack, negated so that they ascend
    here = None
    for row, (thread, start, end) in enumerate(zip(threads, starts, ends, strict=True)):
        if thread != here:
            here = thread
            stack.clear()
            bounds.clear()
        while bounds and -bounds[-1] < start:
            bounds.pop()
            stack.pop()
        if bounds and -bounds[-1] < end:
            around = bisect_right(bounds, -end)
            parents.append(stack[around - 1] if around else None)
            crossing.append(row)
            continue
        parents.append(stack[-1] if stack else None)
        stack.append(row)
        bounds.append(-end)
    return _Nested(parents, crossing)


def _levels(
    parents: Sequence[int | None], alone: Sequence[bool], ids: Sequence[int], *, stacks: bool
) -> tuple[list[int | None], list[str | None]]:
    """Return the levels and, with `stacks`, the stacks. A parent comes before its children."""
    levels: list[int | None] = []
    texts: list[str | None] = []
    size = 0
    for parent, single, number in zip(parents, alone, ids, strict=True):
        above = -1 if parent is None else levels[parent]
        if above is None or not single:
            levels.append(None)
            texts.append(None)
            continue
        levels.append(above + 1)
        if stacks:
            text = f"{'' if parent is None else texts[parent]}:{number}"
            texts.append(text)
            size += len(text)
            if size > _STACKS_LIMIT:
                raise AnnotError("the ranges nest too deeply: the column RangeStack exceeds 1 GiB")
    return levels, texts
