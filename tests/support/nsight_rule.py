"""Tables of ``nsys stats --report``, equal to those of Nsight Systems 2023.4 to the nanosecond.

`nvtx_gpu_proj_trace`, `nvtx_gpu_proj_sum` and `nvtx_kern_sum` return the same columns and the same rows in the same
order. Their rules differ from those of `annot.correlate`:

    owner        every range around an API call on its thread owns the GPU activities of the call, including crossing
                 ranges
    projection   the time from the first start to the last end on any device, including gaps
    parent       the shortest range around a range on its thread, crossing or not
    counts       kernels, copies and memsets with a known API call. An API call that was recorded twice counts twice
                 in nvtx_kern_sum

Of two equally short ranges around a range, the one recorded first is the parent. Nsight Systems takes either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import polars as pl
from nsight_activity import Activity

from annot.attribution import column_ops
from annot.errors import AnnotError

__all__ = ["nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"]

_PAIRS_AT_ONCE: Final = 2**21
_PAIRS_LIMIT: Final = 2**28
_STACKS_LIMIT: Final = 2**30
_CALL: Final = ("process", "correlation")


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
    ranges, outside = _projected(activity)
    rest = outside.sort("high", maintain_order=True).select(
        pl.col("low").min(),
        pl.col("high").max(),
        pl.col("thread").last(),
        pl.col("correlation").n_unique().cast(pl.Int64).alias("ops"),
        pl.lit(0, pl.Int64).alias("children"),
    )
    ranges = _in_tree(ranges, stacks=True).sort("start", "id")
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
    ranges = _in_tree(_projected(activity)[0], stacks=False)
    ranges = ranges.with_columns(projected=pl.col("high") - pl.col("low"), length=pl.col("end") - pl.col("start"))
    summary = ranges.group_by(Range="name", Style="style").agg(
        pl.col("projected").sum().alias("Total Proj Time (ns)"),
        pl.col("length").sum().alias("Total Range Time (ns)"),
        pl.len().cast(pl.Int64).alias("Range Instances"),
        *_spread("projected", "Proj "),
        pl.col("ops").sum().alias("Total GPU Ops"),
        _rounded(pl.col("ops").mean()).alias("Avg GPU Ops"),
        _rounded(pl.col("level").mean()).alias("Avg Range Lvl"),
        _rounded(pl.col("children").mean()).alias("Avg Num Child"),
    )
    return summary.sort("Total Proj Time (ns)", "Range", "Style", descending=[True, False, False])


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
    kernels = activity.work.filter("kernel").select(*_CALL, "name", time=pl.col("end") - pl.col("start"))
    kernels = kernels.with_row_index("kernel")
    names = kernels.select("name").unique().with_row_index("kernel_name")
    kernels = kernels.join(names, on="name", how="left", nulls_equal=True).drop("name")
    launched = _launched(kernels, activity.calls)
    owner = ["name", "style", "PID", "TID"]
    ranges = activity.ranges.with_columns(_pid_and_tid())
    owners = ranges.select(owner).unique().with_row_index("owner")
    ranges = _with_calls(ranges.join(owners, on=owner, nulls_equal=True), launched)
    _check_number(max(ranges.group_by("owner").agg(pl.col("count").sum())["count"].to_list(), default=0))
    alone, parts = pl.repeat(True, launched.height, eager=True), []
    for pairs in _pairs(ranges, launched, "owner"):
        alone = alone.scatter(pairs["call"].unique(), False)
        pairs = pairs.hstack(launched.select("kernel", "kernel_name", "time")[pairs["call"]])
        parts.append(_summed(pairs, "owner").join(owners, on="owner"))
    absent = {"id": pl.Int64, "name": pl.String, "style": pl.String}
    outside = launched.filter(alone).with_columns(_pid_and_tid())
    outside = outside.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in absent.items())
    summary = pl.concat([*parts, _summed(outside, *owner)], how="diagonal")
    summary = summary.join(names.rename({"name": "Kernel Name"}), on="kernel_name")
    order = {"name": False, "PID": False, "TID": False, "Total Time (ns)": True, "style": False, "Kernel Name": False}
    summary = summary.sort(list(order), descending=list(order.values()))
    spread = [f"{name} (ns)" for name in ("Avg", "Med", "Min", "Max", "StdDev")]
    summary = summary.select(*owner, "NVTX Inst", "Kern Inst", "Total Time (ns)", *spread, "Kernel Name")
    return summary.rename({"name": "NVTX Range", "style": "Style"})


def _launched(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row per kernel and API call with its correlation id, in order; null without a call."""
    if all(table.select(_CALL).n_unique() < table.height for table in (kernels, calls)):
        counts = [table.drop_nulls(_CALL).group_by(_CALL).agg(pl.len().cast(pl.Int64)) for table in (kernels, calls)]
        both = counts[0].join(counts[1], on=_CALL)
        _check_number(int((both["len"] * both["len_right"]).sum()))
    return kernels.join(calls, on=_CALL, how="left").drop(_CALL).sort("thread", "start")


def _check_number(pairs: int) -> None:
    if pairs > _PAIRS_LIMIT:
        raise AnnotError(f"nvtx_kern_sum needs {pairs:,} pairs of a kernel and a range, the limit is {_PAIRS_LIMIT:,}")


def _summed(rows: pl.DataFrame, *owner: str) -> pl.DataFrame:
    """Return the sums of kernels by owner and kernel name."""
    return rows.group_by(*owner, "kernel_name").agg(
        pl.col("id").drop_nulls().n_unique().cast(pl.Int64).alias("NVTX Inst"),
        pl.col("kernel").n_unique().cast(pl.Int64).alias("Kern Inst"),
        pl.col("time").sum().alias("Total Time (ns)"),
        *_spread("time", ""),
    )


def _projected(activity: Activity) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the ranges that launched GPU activities, with low, high (ns) and ops, and the calls outside any range.

    Low and high are the first start and the last end of the activities. ops is the number of distinct correlation ids.
    """
    work = activity.work.group_by(_CALL).agg(pl.col("start").min().alias("low"), pl.col("end").max().alias("high"))
    calls = activity.calls.join(work, on=_CALL, maintain_order="left").sort("thread", "start", maintain_order=True)
    alone, parts = pl.repeat(True, calls.height, eager=True), list[pl.DataFrame]()
    for pairs in _pairs(_with_calls(activity.ranges, calls), calls, "id"):
        alone = alone.scatter(pairs["call"].unique(), False)
        inside = pairs.hstack(calls.select("low", "high", "correlation")[pairs["call"]]).group_by("id")
        ops = pl.col("correlation").n_unique().cast(pl.Int64).alias("ops")
        parts.append(inside.agg(pl.col("low").min(), pl.col("high").max(), ops))
    schema = dict.fromkeys(("id", "low", "high", "ops"), pl.Int64)
    found = pl.concat([pl.DataFrame(schema=schema), *parts])
    return activity.ranges.join(found, on="id"), calls.filter(alone)


def _with_calls(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges in which calls of their thread start, with `begin` (row of the first one) and `count`.

    The calls are in order of thread and start.
    """
    rows = calls.select("thread", at="start", row=pl.int_range(pl.len())).drop_nulls().sort("at", maintain_order=True)
    bounds: tuple[tuple[str, str, Literal["forward", "backward"]], ...]
    bounds = ("begin", "start", "forward"), ("last", "end", "backward")
    for name, bound, strategy in bounds:
        found = rows.rename({"row": name, "at": bound})
        ranges = ranges.sort(bound).join_asof(found, on=bound, by="thread", strategy=strategy, check_sortedness=False)
    return ranges.with_columns(count=pl.col("last") - pl.col("begin") + 1).filter(pl.col("count") > 0)


def _pairs(ranges: pl.DataFrame, calls: pl.DataFrame, group: str) -> Iterator[pl.DataFrame]:
    """Yield the id and the group (a column) of a range and the row of a call inside it. A group is in one batch.

    The ranges are a result of `_with_calls`, the calls the same.
    """
    sizes = ranges.group_by(group).agg(pl.col("count").sum().alias("pairs")).sort(group)
    sizes = sizes.select(group, batch=(pl.col("pairs").cum_sum() - pl.col("pairs")) // _PAIRS_AT_ONCE)
    for batch in ranges.join(sizes, on=group).partition_by("batch"):
        call = pl.int_ranges("begin", pl.col("begin") + pl.col("count")).alias("call")
        pairs = batch.select(*dict.fromkeys(("id", group)), "end", call).explode("call")
        yield pairs.filter(pl.col("end") >= calls["end"].gather(pairs["call"])).drop("end")


def _in_tree(ranges: pl.DataFrame, *, stacks: bool) -> pl.DataFrame:
    """Return the ranges (id, thread, start, end), with start <= end, and their parents and levels.

    parent    id of the shortest range around the range on its thread, the smallest id of equally short ones
    level     0 without a parent. Null for ranges with equal start and end, which are each other's parents,
              and for all ranges inside them
    children  number of ranges with this parent
    stack     ids from the top to the range, each after a colon, null if level is null or without `stacks`
    """
    ordered = ranges.sort("thread", "start", "end", "id", descending=[False, False, True, False])
    same = [pl.col(key) == pl.col(key).shift() for key in ("thread", "start", "end")]
    again = ordered.select(pl.all_horizontal(same)).to_series().fill_null(False)
    alone = ~(again | again.shift(-1, fill_value=False))
    distinct = ordered.filter(~again)
    parents = _shortest_around(distinct)
    levels, texts = _levels(parents.to_list(), alone.filter(~again).to_list(), distinct["id"].to_list(), stacks=stacks)
    row = (~again).cast(pl.Int64).cum_sum() - 1
    # Of equal ranges, the parent of the first one is the second one, and the parent of the others the first one.
    first = pl.select(pl.when(~again).then(ordered["id"])).to_series().forward_fill()
    of_equal = first.zip_with(again, ordered["id"].shift(-1))
    ordered = ordered.with_columns(
        distinct["id"].gather(parents).gather(row).zip_with(alone, of_equal).alias("parent"),
        pl.Series("level", levels, pl.Int64).gather(row),
        pl.Series("stack", texts, pl.String).gather(row),
    )
    children = ordered.drop_nulls("parent").group_by(id="parent").agg(pl.len().cast(pl.Int64).alias("children"))
    ordered = ordered.join(children, on="id", how="left", maintain_order="left")
    return ordered.with_columns(pl.col("children").fill_null(0))


def _shortest_around(ranges: pl.DataFrame) -> pl.Series:
    """Return the row of the parent of each range (Int64). The ranges are distinct and in order.

    Most ranges nest, and the last one in order around a range is the shortest one. Ranges that cross others, or start
    where another one ends, are compared with each range inside them.
    """
    instants = pl.concat([ranges["start"], ranges["end"]]).rank("dense").cast(pl.Int64)
    # With even starts and odd ends, a range that starts where another one ends crosses it.
    start, end = 2 * instants.head(ranges.height), 2 * instants.tail(ranges.height) + 1
    thread = (ranges["thread"].rank("dense") - 1).cast(pl.Int32)
    crosses = column_ops.crossing(thread, start, end, thread * 0, pl.repeat(False, ranges.height, eager=True))
    rows, crossing = (~crosses).arg_true(), crosses.arg_true()
    nested = pl.DataFrame({"thread": thread, "start": start, "end": end})[rows]
    above, _ = column_ops.parents(nested["thread"], nested["end"])
    tree = column_ops.Tree(nested["thread"], nested["start"], nested["end"], above)
    of_crossing = tree.owners(*(column.gather(crossing) for column in (thread, start, end)))
    around = pl.repeat(column_ops.NONE, ranges.height, dtype=pl.Int32, eager=True)
    around = around.scatter(rows, above).scatter(crossing, of_crossing)
    parents = rows.cast(pl.Int64).gather(column_ops.known(around))
    if crossing.is_empty():
        return parents
    keys = ranges.select("thread", "start", "end", rank=pl.struct(pl.col("end") - pl.col("start"), "id").rank("dense"))
    table = keys.with_row_index("id")
    outer = _with_calls(table[crossing], table)
    best = [table.select(call="id", rank=table["rank"].gather(parents)).drop_nulls()]
    for pairs in _pairs(outer, table, "id"):
        inner = pairs.filter(pl.col("id") != pl.col("call"))
        best.append(inner.select(pl.col("call").cast(pl.UInt32), table["rank"].gather(inner["id"])))
    shortest = pl.concat(best).group_by("call").agg(pl.col("rank").min())
    row_of_rank = table["rank"].arg_sort()
    found = row_of_rank.gather(shortest["rank"] - 1).cast(pl.Int64)
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, ranges.height).scatter(shortest["call"], found)


def _levels(
    parents: list[int | None], alone: list[bool], ids: list[int], *, stacks: bool
) -> tuple[list[int | None], list[str | None]]:
    """Return the levels and the stacks, which are null unless `stacks` is set. A parent comes before its children."""
    levels: list[int | None] = []
    texts: list[str | None] = []
    size = 0
    for parent, single, number in zip(parents, alone, ids, strict=True):
        above = -1 if parent is None else levels[parent]
        text = f"{'' if parent is None else texts[parent]}:{number}" if stacks else ""
        known = above is not None and single
        levels.append(above + 1 if above is not None and single else None)
        texts.append(text if known else None)
        size += len(text) if known else 0
        if size > _STACKS_LIMIT:
            raise AnnotError("the ranges nest too deeply: the column RangeStack exceeds 1 GiB")
    return levels, texts


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
