"""Ranges projected onto the devices by the rule of Nsight Systems: all that was launched in them, as an envelope."""

from __future__ import annotations

import polars as pl

from annot.activity import Activity
from annot.correlate.containment import Axis, in_quadrant, in_ranges, minima_of_runs, runs

__all__ = ["in_no_range", "launching_calls", "project"]


def launching_calls(activity: Activity) -> pl.DataFrame:
    """Return the calls that launched anything, with its first start and last end, `low` and `high`."""
    keys = ["process", "correlation"]
    work = activity.work.group_by(keys).agg(pl.col("start").min().alias("low"), pl.col("end").max().alias("high"))
    return activity.calls.join(work, on=keys, how="inner", maintain_order="left")


def project(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that launched anything, with its `low` and `high`.

    Args:
        ranges: thread, start, end; further columns are kept.
        calls: as `launching_calls`.

    Returns:
        the ranges with low, high and `ops`, the number of different ids of their calls.

    Example:
        >>> ranges = pl.DataFrame({"thread": [9, 9], "start": [0, 50], "end": [40, 90]})
        >>> calls = {"thread": [9, 9], "start": [10, 30], "end": [12, 32], "correlation": [1, 2]}
        >>> project(ranges, pl.DataFrame(calls | {"low": [100, 200], "high": [150, 230]})).rows()
        [(9, 0, 40, 100, 230, 2)]
    """
    axis = Axis(calls)
    neighbours, others = _told_apart(axis.place(calls))
    ranges = axis.place(ranges)
    found = runs(ranges, neighbours)
    low, high = minima_of_runs(neighbours["low"], found), -minima_of_runs(-neighbours["high"], found)
    ranges = ranges.with_columns(low.alias("low"), high.alias("high"), found["count"].alias("ops"))
    if not others.is_empty():
        ranges = _with_others(ranges, others)
    return ranges.filter(pl.col("ops") > 0).drop("first", "last")


def in_no_range(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls, as `launching_calls`, that lie in no range of their thread."""
    axis = Axis(calls)
    calls = axis.place(calls)
    return calls.filter(~in_ranges(calls, axis.place(ranges).sort("first"))).drop("first", "last")


def _told_apart(calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split calls on an axis into those with an id of their own that start and end in one order, and the others.

    Of calls of one id, such as those recorded twice, the ones around another say nothing new and are left out.
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
    """Add the calls that `_told_apart` set aside.

    What a range contains of the calls of one id are neighbours. Counted as 1, and each two in a row as -1, they
    make 1 together.
    """
    calls = calls.sort("thread", "correlation", "first").with_columns(ops=pl.lit(1, pl.Int64))
    goes_on = pl.all_horizontal(pl.col(key) == pl.col(key).shift(-1) for key in ("thread", "correlation"))
    none = pl.lit(None, pl.Int64)
    twos = calls.with_columns(pl.col("last").shift(-1), low=none, high=none, ops=pl.lit(-1, pl.Int64)).filter(goes_on)
    points = pl.concat([calls, twos]).select("low", "ops", x="first", y="last", high=-pl.col("high"))
    touched = runs(ranges, points.select(first="x", last="x").sort("first"))["count"] > 0
    asked = ranges.filter(touched)
    more = in_quadrant(points, asked.select(x="first", y="last"), smallest=["low", "high"], total=["ops"])
    asked = asked.with_columns(
        pl.min_horizontal("low", more["low"]).alias("low"),
        pl.max_horizontal("high", -more["high"]).alias("high"),
        (pl.col("ops") + more["ops"]).alias("ops"),
    )
    return pl.concat([asked, ranges.filter(~touched)])
