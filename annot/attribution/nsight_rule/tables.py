"""Tables of ``nsys stats --report``, equal to those of Nsight Systems 2023.4 to the nanosecond.

`nvtx_gpu_proj_trace`, `nvtx_gpu_proj_sum` and `nvtx_kern_sum` return the same columns and the same rows in the same
order. Their rules differ from those of `annot.correlate`:

    owner        every range around an API call on its thread owns the GPU activities of the call, including crossing
                 ranges
    projection   the time from the first start to the last end on any device, including gaps
    parent       the shortest range around a range on its thread (see `annot.attribution.nsight_rule.tree`)
    counts       kernels, copies and memsets with a known API call. An API call that was recorded twice counts twice
                 in nvtx_kern_sum

Of two equally short ranges around a range, the one recorded first is the parent. Nsight Systems takes either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from annot.attribution.nsight_rule.containment import Axis, in_ranges, runs
from annot.attribution.nsight_rule.projection import in_no_range, launching_calls, project
from annot.attribution.nsight_rule.tree import place_in_tree
from annot.errors import AnnotError
from annot.profile.nsight_activity import Activity

__all__ = ["nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"]

_PAIRS_AT_ONCE: Final = 2**23
_PAIRS_LIMIT: Final = 2**28


def nvtx_gpu_proj_trace(activity: Activity) -> pl.DataFrame:
    """Return the projections: a row per range that launched GPU activities, in order of start.

    The first row, without a name, stands for all GPU activities whose API call is known and outside any range. Its PID
    and TID are those of the activity that ended last. Only version 2023.4 of Nsight Systems has this row.

    Args:
        activity: the rows of an export.

    Returns:
        Name, Projected Start (ns), Projected Duration (ns), Orig Start (ns), Orig Duration (ns), Style, PID,
        TID, NumGPUOps, Lvl, NumChild, RangeId, ParentId, RangeStack, named as in `nsys stats`.

    Raises:
        AnnotError: the column RangeStack exceeds 1 GiB.
    """
    calls = launching_calls(activity)
    rest = in_no_range(activity.ranges, calls).sort("high", maintain_order=True)
    rest = rest.select(
        pl.col("low").min(),
        pl.col("high").max(),
        pl.col("thread").last(),
        pl.col("correlation").n_unique().cast(pl.Int64).alias("ops"),
        pl.lit(0, pl.Int64).alias("children"),
    )
    ranges = place_in_tree(project(activity.ranges, calls), stacks=True).sort("start", "id")
    ranges = pl.concat([ranges.clear(), rest.filter(pl.col("ops") > 0), ranges], how="diagonal")
    return ranges.select(
        pl.col("name").alias("Name"),
        pl.col("low").alias("Projected Start (ns)"),
        (pl.col("high") - pl.col("low")).alias("Projected Duration (ns)"),
        pl.col("start").alias("Orig Start (ns)"),
        (pl.col("end") - pl.col("start")).alias("Orig Duration (ns)"),
        pl.col("style").alias("Style"),
        *_pid_and_tid(),
        pl.col("ops").alias("NumGPUOps"),
        pl.col("level").alias("Lvl"),
        pl.col("children").alias("NumChild"),
        pl.col("id").alias("RangeId"),
        pl.when(pl.col("level").is_not_null()).then("parent").alias("ParentId"),
        pl.col("stack").alias("RangeStack"),
    )


def nvtx_gpu_proj_sum(activity: Activity) -> pl.DataFrame:
    """Return the sums of the projections: a row per name and style of ranges, by descending total time.

    The time of a range inside another range of the same name counts twice.

    Args:
        activity: the rows of an export.

    Returns:
        Range, Style, Total Proj Time (ns), Total Range Time (ns), Range Instances, Proj Avg, Med, Min, Max and
        StdDev (ns), Total GPU Ops, Avg GPU Ops, Avg Range Lvl, Avg Num Child, named as in `nsys stats`.
    """
    ranges = place_in_tree(project(activity.ranges, launching_calls(activity)), stacks=False)
    ranges = ranges.with_columns(projected=pl.col("high") - pl.col("low"), length=pl.col("end") - pl.col("start"))
    summary = ranges.group_by("name", "style").agg(
        pl.col("projected").sum().alias("Total Proj Time (ns)"),
        pl.col("length").sum().alias("Total Range Time (ns)"),
        pl.len().cast(pl.Int64).alias("Range Instances"),
        *_spread("projected", "Proj "),
        pl.col("ops").sum().alias("Total GPU Ops"),
        _rounded(pl.col("ops").mean()).alias("Avg GPU Ops"),
        _rounded(pl.col("level").mean()).alias("Avg Range Lvl"),
        _rounded(pl.col("children").mean()).alias("Avg Num Child"),
    )
    summary = summary.sort("Total Proj Time (ns)", "name", "style", descending=[True, False, False])
    return summary.rename({"name": "Range", "style": "Style"})


def nvtx_kern_sum(activity: Activity) -> pl.DataFrame:
    """Return the kernels of the ranges: a row per name, style and thread of ranges and kernel name.

    Rows without a range are kernels launched outside any range. Rows without PID are kernels with an unknown API call.
    A kernel in nested ranges counts for each of them.

    Args:
        activity: the rows of an export.

    Returns:
        NVTX Range, Style, PID, TID, NVTX Inst, Kern Inst, Total Time (ns), Avg (ns), Med (ns), Min (ns),
        Max (ns), StdDev (ns), Kernel Name, named as in `nsys stats`.

    Raises:
        AnnotError: the ranges of one name launched more than 2^28 kernels, or calls share too many ids.
    """
    kernels = activity.work.filter("kernel").select("process", "correlation", "name", time=_length())
    names = kernels.select("name").unique().with_row_index("kernel_name")
    kernels = kernels.with_row_index("kernel").join(names, on="name", how="left", nulls_equal=True).drop("name")
    launched = _with_calls(kernels, activity.calls)
    owner = ["name", "style", "PID", "TID"]
    ranges, launched, outside = _inside_and_outside(activity.ranges, launched)
    owners = ranges.select(owner).unique().with_row_index("owner")
    ranges = ranges.join(owners, on=owner, nulls_equal=True)
    parts = [_summed(pairs, "owner").join(owners, on="owner") for pairs in _pairs(ranges, launched)]
    parts.append(_summed(outside, *owner))
    summary = pl.concat(parts, how="diagonal").join(names.rename({"name": "Kernel Name"}), on="kernel_name")
    order = {"name": False, "PID": False, "TID": False, "Total Time (ns)": True, "style": False, "Kernel Name": False}
    summary = summary.sort(list(order), descending=list(order.values()))
    spread = [f"{name} (ns)" for name in ("Avg", "Med", "Min", "Max", "StdDev")]
    summary = summary.select(*owner, "NVTX Inst", "Kern Inst", "Total Time (ns)", *spread, "Kernel Name")
    return summary.rename({"name": "NVTX Range", "style": "Style"})


def _length() -> pl.Expr:
    return pl.col("end") - pl.col("start")


def _with_calls(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row per kernel and API call with its correlation id, with thread, start and end of the call or null."""
    keys = ["process", "correlation"]
    if all(table.select(keys).n_unique() < table.height for table in (kernels, calls)):
        counts = [table.drop_nulls(keys).group_by(keys).agg(pl.len().cast(pl.Int64)) for table in (kernels, calls)]
        both = counts[0].join(counts[1], on=keys)
        _check_number(int((both["len"] * both["len_right"]).sum()))
    return kernels.join(calls, on=keys, how="left").drop(keys)


def _inside_and_outside(
    ranges: pl.DataFrame, launched: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return ranges and launched kernels on one axis, in order of `first`, and the kernels outside any range."""
    known = launched.drop_nulls("thread")
    axis = Axis(known)
    ranges, known = (axis.place(table).sort("first").with_columns(_pid_and_tid()) for table in (ranges, known))
    alone = known.filter(~in_ranges(known, ranges)).drop("first", "last")
    alone = pl.concat([alone, launched.filter(pl.col("thread").is_null()).with_columns(_pid_and_tid())])
    absent = {"range": pl.Int64, "name": pl.String, "style": pl.String}
    return ranges, known, alone.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in absent.items())


def _pairs(ranges: pl.DataFrame, launched: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield pairs of a range and a kernel launched in it, in batches. All pairs of an owner are in one batch."""
    starts = launched.select("first", last="first")
    ranges = ranges.with_columns(runs(ranges, starts)).filter(pl.col("count") > 0)
    totals = ranges.group_by("owner").agg(pl.col("count").sum().alias("pairs")).sort("owner")
    _check_number(max(totals["pairs"].to_list(), default=0))
    totals = totals.with_columns(batch=(pl.col("pairs").cum_sum() - pl.col("pairs")) // _PAIRS_AT_ONCE)
    for batch in ranges.join(totals, on="owner").partition_by("batch"):
        launch = pl.int_ranges("begin", pl.col("begin") + pl.col("count")).alias("launch")
        pairs = batch.select("owner", "last", launch, range="id").explode("launch")
        pairs = pairs.filter(pl.col("last") >= launched["last"].gather(pairs["launch"]))
        columns = [launched[name].gather(pairs["launch"]) for name in ("kernel", "kernel_name", "time")]
        yield pairs.select("owner", "range", *columns)


def _check_number(pairs: int) -> None:
    if pairs > _PAIRS_LIMIT:
        raise AnnotError(f"nvtx_kern_sum needs {pairs:,} pairs of a kernel and a range, the limit is {_PAIRS_LIMIT:,}")


def _summed(rows: pl.DataFrame, *owner: str) -> pl.DataFrame:
    """Return the sums of kernels by owner and kernel name."""
    return rows.group_by(*owner, "kernel_name").agg(
        pl.col("range").drop_nulls().n_unique().cast(pl.Int64).alias("NVTX Inst"),
        pl.col("kernel").n_unique().cast(pl.Int64).alias("Kern Inst"),
        pl.col("time").sum().alias("Total Time (ns)"),
        *_spread("time", ""),
    )


def _spread(column: str, prefix: str) -> list[pl.Expr]:
    """Return average, median, minimum, maximum and standard deviation, which is 0 for a single value."""
    values = pl.col(column)
    return [
        _rounded(values.mean()).alias(f"{prefix}Avg (ns)"),
        _rounded(values.median()).alias(f"{prefix}Med (ns)"),
        values.min().alias(f"{prefix}Min (ns)"),
        values.max().alias(f"{prefix}Max (ns)"),
        _rounded(values.std().fill_null(0)).alias(f"{prefix}StdDev (ns)"),
    ]


def _rounded(value: pl.Expr) -> pl.Expr:
    """Round to tenths like SQLite's round(): half away from zero in decimals. The factor lifts 0.05 - 1 ulp to 0.05."""
    return (value * (1 + 2**-52)).round(1, mode="half_away_from_zero")


def _pid_and_tid() -> list[pl.Expr]:
    """Return PID and TID from Nsight's globalTid: bits 24-47 and bits 0-23."""
    return [((pl.col("thread") // 2**24) % 2**24).alias("PID"), (pl.col("thread") % 2**24).alias("TID")]
