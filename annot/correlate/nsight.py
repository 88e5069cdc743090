"""The numbers that the reports of Nsight Systems give, to the nanosecond.

`nvtx_gpu_proj_trace`, `nvtx_gpu_proj_sum` and `nvtx_kern_sum` return the tables of `nsys stats --report` of
2023.4: the same columns, and the rows in the same order. Their rule is not that of `annot.correlate`:

    a range owns     everything launched by an API call inside it on its thread, also what was launched in a
                     range inside it; ranges that cross both own what was launched in both
    its projection   goes from the first start to the last end on any device, gaps and all
    its parent       is the shortest range around it on its thread; see `annot.correlate.nsight_tree`
    what is counted  are kernels, copies and sets whose API call is known; an API call that was recorded twice
                     counts twice in nvtx_kern_sum

Of two equally short ranges around another the one recorded first is the parent; Nsight Systems takes either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from annot.activity import Activity
from annot.correlate.containment import Axis, in_ranges, runs
from annot.correlate.nsight_projection import in_no_range, launching_calls, project
from annot.correlate.nsight_tree import place_in_tree
from annot.errors import AnnotError

__all__ = ["nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"]

_PAIRS_AT_ONCE: Final = 2**23
_PAIRS_LIMIT: Final = 2**28


def nvtx_gpu_proj_trace(activity: Activity) -> pl.DataFrame:
    """Return the ranges projected onto the devices: a row per range that launched work, in order of start.

    The first row, without a name, stands for all work whose API call is known but lies in no range; other
    versions than 2023.4 leave it out. Its PID and TID are those of the work that ended last.

    Returns:
        Name, Projected Start (ns), Projected Duration (ns), Orig Start (ns), Orig Duration (ns), Style, PID,
        TID, NumGPUOps, Lvl, NumChild, RangeId, ParentId, RangeStack, as `nsys stats` calls them.

    Raises:
        AnnotError: the column RangeStack would not fit in memory.
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
    """Return the projections added up: a row per name and style of ranges, the longest time in all first.

    A range inside another of the same name counts twice.

    Returns:
        Range, Style, Total Proj Time (ns), Total Range Time (ns), Range Instances, Proj Avg, Med, Min, Max and
        StdDev (ns), Total GPU Ops, Avg GPU Ops, Avg Range Lvl, Avg Num Child, as `nsys stats` calls them.
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
    """Return the kernels of the ranges: a row per name, style and thread of ranges and name of a kernel.

    The rows without a range stand for kernels launched in none, those without PID for kernels whose API call
    is not known. A kernel in a range inside another counts for both.

    Returns:
        NVTX Range, Style, PID, TID, NVTX Inst, Kern Inst, Total Time (ns), Avg (ns), Med (ns), Min (ns),
        Max (ns), StdDev (ns), Kernel Name, as `nsys stats` calls them.

    Raises:
        AnnotError: the kernels launched in the ranges of one name are too many for the memory.
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
    """Return a row per kernel and each API call with its id, with thread, start, end of the call or null."""
    keys = ["process", "correlation"]
    if all(table.select(keys).n_unique() < table.height for table in (kernels, calls)):
        counts = [table.drop_nulls(keys).group_by(keys).agg(pl.len().cast(pl.Int64)) for table in (kernels, calls)]
        both = counts[0].join(counts[1], on=keys)
        _check_number(int((both["len"] * both["len_right"]).sum()))
    return kernels.join(calls, on=keys, how="left").drop(keys)


def _inside_and_outside(
    ranges: pl.DataFrame, launched: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return ranges and launched kernels on one axis, in order of `first`, and the kernels that lie in no range."""
    known = launched.drop_nulls("thread")
    axis = Axis(known)
    ranges, known = (axis.place(table).sort("first").with_columns(_pid_and_tid()) for table in (ranges, known))
    alone = known.filter(~in_ranges(known, ranges)).drop("first", "last")
    alone = pl.concat([alone, launched.filter(pl.col("thread").is_null()).with_columns(_pid_and_tid())])
    nothing = {"range": pl.Int64, "name": pl.String, "style": pl.String}
    return ranges, known, alone.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in nothing.items())


def _pairs(ranges: pl.DataFrame, launched: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the ranges with the kernels launched in them: each owner as a whole, and not too many at once."""
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
        raise AnnotError(f"nvtx_kern_sum would have to hold {pairs:,} pairs of a kernel and a range or call at once")


def _summed(rows: pl.DataFrame, *owner: str) -> pl.DataFrame:
    """Sum up kernels of one name that have one owner."""
    return rows.group_by(*owner, "kernel_name").agg(
        pl.col("range").drop_nulls().n_unique().cast(pl.Int64).alias("NVTX Inst"),
        pl.col("kernel").n_unique().cast(pl.Int64).alias("Kern Inst"),
        pl.col("time").sum().alias("Total Time (ns)"),
        *_spread("time", ""),
    )


def _spread(column: str, prefix: str) -> list[pl.Expr]:
    """Return average, median, minimum, maximum and deviation, which is 0 of a single value."""
    values = pl.col(column)
    return [
        _rounded(values.mean()).alias(f"{prefix}Avg (ns)"),
        _rounded(values.median()).alias(f"{prefix}Med (ns)"),
        values.min().alias(f"{prefix}Min (ns)"),
        values.max().alias(f"{prefix}Max (ns)"),
        _rounded(values.std().fill_null(0)).alias(f"{prefix}StdDev (ns)"),
    ]


def _rounded(value: pl.Expr) -> pl.Expr:
    """Round to tenths as SQLite does: half up in decimals, so that what is 0.05 but for the last bit goes up."""
    return (value * (1 + 2**-52)).round(1, mode="half_away_from_zero")


def _pid_and_tid() -> list[pl.Expr]:
    """Return the numbers of the operating system, which stand in the bits of a thread."""
    return [((pl.col("thread") // 2**24) % 2**24).alias("PID"), (pl.col("thread") % 2**24).alias("TID")]
