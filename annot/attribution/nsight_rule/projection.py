"""Projection of ranges onto devices as in Nsight Systems: the envelope of all GPU activities launched inside."""

from __future__ import annotations

import polars as pl

from annot.attribution.nsight_rule.containment import Axis, in_quadrant, in_ranges, minima_of_runs, runs
from annot.profile.nsight_activity import Activity

__all__ = ["in_no_range", "launching_calls", "project"]


def launching_calls(activity: Activity) -> pl.DataFrame:
    """Return the calls that launched GPU activities, with their first start `low` and their last end `high` (ns)."""
    keys = ["process", "correlation"]
    work = activity.work.group_by(keys).agg(pl.col("start").min().alias("low"), pl.col("end").max().alias("high"))
    return activity.calls.join(work, on=keys, how="inner", maintain_order="left")


def project(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that launched GPU activities, with their projections.

    Args:
        ranges: thread, start, end (ns). Further columns are kept.
        calls: the result of `launching_calls`.

    Returns:
        The ranges with low, high (ns) and ops, the number of distinct correlation ids of their calls.

    Example:
        >>> ranges = pl.DataFrame({"thread": [9, 9], "start": [0, 50], "end": [40, 90]})
        >>> calls = {"thread": [9, 9], "start": [10, 30], "end": [12, 32], "correlation": [1, 2]}
        >>> project(ranges, pl.DataFrame(calls | {"low": [100, 200], "high": [150, 230]})).rows()
        [(9, 0, 40, 100, 230, 2)]
    """
    axis = Axis(calls)
    neighbours, others = _split(axis.place(calls))
    ranges = axis.place(ranges)
    found = runs(ranges, neighbours)
    low, high = minima_of_runs(neighbours["low"], found), -minima_of_runs(-neighbours["high"], found)
    ranges = ranges.with_columns(low.alias("low"), high.alias("high"), found["count"].alias("ops"))
    if not others.is_empty():
        ranges = _with_others(ranges, others)
    return ranges.filter(pl.col("ops") > 0).drop("first", "last")


def in_no_range(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls (as returned by `launching_calls`) outside any range of their thread."""
    axis = Axis(calls)
    calls = axis.place(calls)
    return calls.filter(~in_ranges(calls, axis.place(ranges).sort("first"))).drop("first", "last")


def _split(calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split calls on an axis into calls with a unique id that start and end in the same order, and the other calls.

    A call around another call with the same id, as in calls recorded twice, is redundant and left out.
    """
    key = ["thread", "correlation"]
    shared = calls.select(pl.struct(key).is_duplicated()).to_series()
    again = calls.filter(shared).sort(*key, "first", "last", descending=[False, False, False, True])
    later = pl.col("last").cum_min(reverse=True).shift(-1).over(key)
    again = again.filter((pl.col("last") < later).fill_null(True))
    single = again.select(pl.struct(key).is_unique()).to_series()
    calls = pl.concat([calls.filter(~shared), again.filter(single)]).sort("first", "last")
    innermost = calls.select(pl.col("last") <= pl.col("last").cum_min(reverse=True)).to_series()
    return calls.filter(innermost), pl.concat([calls.filter(~innermost), again.filter(~single)])


def _with_others(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add the other calls of `_split`.

    The calls of one id inside a range are consecutive. Each call counts as 1 and each pair of consecutive calls as -1,
    so that together they count as 1.
    """
    calls = calls.sort("thread", "correlation", "first").with_columns(ops=pl.lit(1, pl.Int64))
    goes_on = pl.all_horizontal(pl.col(key) == pl.col(key).shift(-1) for key in ("thread", "correlation"))
    none = pl.lit(None, pl.Int64)
    twos = calls.with_columns(pl.col("last").shift(-1), low=none, high=none, ops=pl.lit(-1, pl.Int64)).filter(goes_on)
    points = pl.concat([calls, twos]).select("low", "ops", x="first", y="last", high=-pl.col("high"))
    touched = runs(ranges, points.select(first="x", last="x").sort("first"))["count"] > 0
    affected = ranges.filter(touched)
    more = in_quadrant(points, affected.select(x="first", y="last"), smallest=["low", "high"], total=["ops"])
    affected = affected.with_columns(
        pl.min_horizontal("low", more["low"]).alias("low"),
        pl.max_horizontal("high", -more["high"]).alias("high"),
        (pl.col("ops") + more["ops"]).alias("ops"),
    )
    return pl.concat([affected, ranges.filter(~touched)])
