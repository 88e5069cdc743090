"""Give every nanosecond on the host and on the devices to one range."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import polars as pl

from annot.correlate.keys import spell_out
from annot.correlate.nesting import nest
from annot.correlate.work import innermost, launched_work
from annot.profile import Profile

__all__ = ["Attribution", "attribute", "outermost"]


@dataclass(frozen=True, slots=True)
class Attribution:
    """A profile whose ranges have parents, names and times.

    Args:
        tree: a row per range that nests, a parent before its children, with process, thread, start, end,
            parent, depth, what `annot.correlate.keys.spell_out` says, and

                host_ns, host_self_ns    length, and what is left of it without the children
                gpu_ns, gpu_self_ns      device time launched inside, and inside but in no child
                kernels, copies          how many of them belong to gpu_self_ns
        loose: the same of ranges that cross others or end on another thread; they own nothing, so their self
            times, kernels and copies are 0.
        work: a row per kernel, copy and set, as `annot.correlate.work.launched_work`, with `range`: the row
            in `tree` that owns it, or null.
        open_ranges: how many ranges had no end; they count to the end of the capture.
        meta: that of the profile.
    """

    tree: pl.DataFrame
    loose: pl.DataFrame
    work: pl.DataFrame
    open_ranges: int
    meta: dict[str, Any]


def attribute(profile: Profile, *, domain: str | None = None) -> Attribution:
    """Nest the ranges and give each piece of device work to the innermost range around its launch.

    Args:
        profile: what was recorded.
        domain: only ranges of this NVTX domain take part ("" is the default domain); None: all do.
    """
    ranges = profile.ranges if domain is None else profile.ranges.filter(pl.col("domain") == domain)
    work = launched_work(profile)
    nested = nest(_closed(ranges, profile))
    texts = ranges["text"].fill_null("")
    says = spell_out(texts)
    tree, loose = (_named(part, says) for part in (nested.tree, nested.loose))
    work = work.with_columns(innermost(tree, work.select("thread", "start", "end")).alias("range"))
    tree = _with_work(_with_host_times(tree), work)
    return Attribution(tree, _overlaid(loose, work), work, ranges["end"].null_count(), dict(profile.meta))


def outermost(depths: Sequence[int], keys: Sequence[int]) -> list[bool]:
    """Tell which ranges lie in no range of the same key, so that recursion counts once.

    Args:
        depths: of ranges in the order of `annot.correlate.nesting.Nest.tree`.
        keys: small numbers from 0 on.

    Example:
        >>> outermost([0, 1, 2, 0], [5, 7, 5, 5])
        [True, True, False, True]
    """
    within = [0] * (max(keys, default=0) + 1)
    stack: list[int] = []
    result = []
    for depth, key in zip(depths, keys, strict=True):
        while len(stack) > depth:
            within[stack.pop()] -= 1
        result.append(not within[key])
        within[key] += 1
        stack.append(key)
    return result


def _closed(ranges: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """Close open ranges at the last instant that the host is known to have reached."""
    instants = [ranges["start"].max(), ranges["end"].max(), profile.launches["end"].max()]
    last = max((instant for instant in instants if isinstance(instant, int)), default=0)
    end = pl.max_horizontal(pl.col("end").fill_null(last), "start")
    return ranges.with_columns(end.alias("end"), pl.col("text").fill_null(""))


def _named(ranges: pl.DataFrame, says: pl.DataFrame) -> pl.DataFrame:
    length = (pl.col("end") - pl.col("start")).alias("host_ns")
    named = ranges.join(says, on="text", how="left", maintain_order="left")
    return named.drop("id", "category", "payload", "color").with_columns(length)


def _with_host_times(tree: pl.DataFrame) -> pl.DataFrame:
    inside = tree.group_by("parent").agg(pl.col("host_ns").sum().alias("inside")).drop_nulls("parent")
    rows = pl.DataFrame({"parent": pl.Series(range(tree.height), dtype=pl.Int64)})
    inside = rows.join(inside, on="parent", how="left", maintain_order="left")
    return tree.with_columns((pl.col("host_ns") - inside["inside"].fill_null(0)).alias("host_self_ns"))


def _with_work(tree: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    own = work.drop_nulls("range").group_by("range").agg(
        pl.col("gpu_ns").sum().alias("gpu_self_ns"),
        pl.col("kernel").sum().cast(pl.Int64).alias("kernels"),
        (~pl.col("kernel")).sum().cast(pl.Int64).alias("copies"),
    )  # fmt: skip
    rows = pl.DataFrame({"range": pl.Series(range(tree.height), dtype=pl.Int64)})
    own = rows.join(own, on="range", how="left", maintain_order="left").drop("range").fill_null(0)
    totals = own["gpu_self_ns"].to_list()
    if not work.is_empty():
        _add_to_parents(totals, tree["parent"].to_list())
    return tree.with_columns(*own, pl.Series("gpu_ns", totals, pl.Int64))


def _add_to_parents(totals: list[int], parents: Sequence[int | None]) -> None:
    for row in range(len(totals) - 1, -1, -1):
        parent = parents[row]
        if parent is not None:
            totals[parent] += totals[row]


def _overlaid(loose: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Give ranges outside the tree the device time launched inside them, on top of whoever owns it."""
    totals = [0] * loose.height
    local = loose.with_row_index("row").filter(pl.col("end_thread").is_null())
    launched = work.filter(pl.col("thread").is_in(local["thread"].unique().implode())).sort("start")
    calls = launched.partition_by("thread", as_dict=True)
    for thread, ranges in local.partition_by("thread", as_dict=True).items():
        if thread in calls:
            for row, total in zip(ranges["row"], _contained(ranges, calls[thread]), strict=True):
                totals[row] = total
    nothing = {name: pl.lit(0, pl.Int64) for name in ("host_self_ns", "gpu_self_ns", "kernels", "copies")}
    return loose.with_columns(pl.Series("gpu_ns", totals, pl.Int64), **nothing)


def _contained(ranges: pl.DataFrame, calls: pl.DataFrame) -> list[int]:
    starts, ends, gpu = (calls[name].to_list() for name in ("start", "end", "gpu_ns"))
    until = [0, *accumulate(gpu)]
    latest = list(accumulate(ends, max))
    totals = []
    for start, end in ranges.select("start", "end").iter_rows():
        first, call = bisect_left(starts, start), bisect_right(starts, end)
        total = until[call] - until[first] if call > first else 0
        while call > first and latest[call - 1] > end:
            call -= 1
            total -= gpu[call] if ends[call] > end else 0
        totals.append(total)
    return totals
