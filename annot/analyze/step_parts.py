"""What the analyses of steps look at: the steps without their warm-up, what devices did, and what threads did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.kernels import with_classes
from annot.correlate.attribution import Attribution
from annot.correlate.host_times import known

__all__ = ["WORK", "HostRanges", "Parts", "intervals_of", "launching", "parts_of"]

WORK: Final = ("tensor_cores", "kernels", "collectives", "copies")
"""What devices do, by rank: the first that is going on has the moment."""

_WINDOWS: Final = {"process": pl.Int64, "device": pl.Int64, "start": pl.Int64, "end": pl.Int64}
_WINDOW: Final = [pl.col(name).cast(dtype) for name, dtype in _WINDOWS.items()]
_WARMUP: Final = r"(?i)(?:^|[^a-z])warm[-_ ]?up(?:[^a-z]|$)"
"""Texts of ranges that somebody put around a warm-up."""


@dataclass(frozen=True, slots=True)
class HostRanges:
    """What the threads of each process do: process, start, end."""

    data: pl.DataFrame
    collectives: pl.DataFrame
    ranges: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Parts:
    """What the analyses of the steps of a profile share.

    Args:
        work: all device work of all steps: process, device, correlation, start, end, share (`WORK`), launched (ns;
            null: not known).
        host: what threads did.
        windows: when steps ran: process, device (null: the process used none), start, end (ns), in this order.
    """

    work: pl.DataFrame
    host: HostRanges
    windows: pl.DataFrame


def parts_of(attribution: Attribution) -> Parts:
    """Return the steps of a profile, and what devices and threads did.

    A step is its range and the wait for data before it; each device of a process has all its steps. The warm-up is no
    part of them. Without steps it is the time from the first to the last kernel of each device, without ranges that are
    called a warm-up, unless they are all: what a script does before and after, as loading a model, is no step.
    """
    work, host = _device_work(attribution), _host_ranges(attribution)
    return Parts(work, host, _windows(attribution, work, host))


def _windows(attribution: Attribution, work: pl.DataFrame, host: HostRanges) -> pl.DataFrame:
    """When steps ran, see `Parts`."""
    steps = attribution.steps
    if steps.table.is_empty() or not known(attribution.meta):
        return _of_run(attribution, work, host).sort("process", "device", "start")
    codes = attribution.whole.threads.table.select("process", "process_code").unique()
    table = steps.table.select("step", "start", "end", process_code="process").join(codes, on="process_code")
    wanted = steps.steady().select("step", process_code="process")
    wanted = table.join(wanted, on=["process_code", "step"], how="semi")
    spans = pl.concat([wanted.select("process", "start", "end"), _waits(table, wanted, host.data)])
    devices = work.select("process", "device").unique()
    joined = spans.join(devices, on="process", how="left", nulls_equal=True)
    return joined.select(_WINDOW).sort("process", "device", "start")


def _waits(table: pl.DataFrame, wanted: pl.DataFrame, data: pl.DataFrame) -> pl.DataFrame:
    """The waits for data that lie between a step that is asked for and the one before it."""
    before = pl.col("end").shift(1).over("process", order_by="start").alias("free")
    gaps = table.with_columns(before).select("process", "step", "free", until="start")
    gaps = gaps.join(wanted.select("process", "step"), on=["process", "step"], how="semi").sort("until")
    waits = data.select("process", "start", "end").sort("end")
    found = waits.join_asof(
        gaps, left_on="end", right_on="until", by="process", strategy="forward", check_sortedness=False
    )
    begin = pl.max_horizontal("start", "free")
    return found.drop_nulls("step").select("process", begin.alias("start"), "end")


def _of_run(attribution: Attribution, work: pl.DataFrame, host: HostRanges) -> pl.DataFrame:
    """From the first to the last kernel of each device; of what threads did, if no device worked."""
    place = ["process", "device"]
    if work.is_empty():
        every = [part.select("process", "start", "end") for part in (host.ranges, host.data)]
        used = pl.concat(every).with_columns(device=pl.lit(None, pl.Int64))
    else:
        computed = work.filter(pl.col("share") != "copies")
        used = computed if computed.height else work
    spans = used.drop_nulls("start").group_by(place).agg(pl.col("start").min(), pl.col("end").max())
    spans = spans.select(_WINDOW)
    warmups = _warmups(attribution)
    outside = _without(spans, warmups) if warmups.height else spans
    return outside if (outside["end"] - outside["start"]).sum() > 0 else spans


def _warmups(attribution: Attribution) -> pl.DataFrame:
    """When ranges that are called a warm-up were open, each instant once: process, start, end."""
    forest = attribution.whole
    columns = ["thread", "start", "end", "says"]
    ranges = pl.concat([forest.tree.select(columns), forest.loose.select(columns)])
    ranges = ranges.filter(forest.says["text"].str.contains(_WARMUP).gather(ranges["says"]).fill_null(False))
    rows = ranges.select(forest.threads.table["process"].gather(ranges["thread"]), "start", "end").sort("start")
    begin = pl.max_horizontal("start", pl.col("end").cum_max().shift(1).over("process"))
    return rows.with_columns(begin.alias("start")).filter(pl.col("end") > pl.col("start"))


def _without(spans: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Spans without holes, which do not overlap."""
    found = []
    for process, device, start, end in spans.select(*_WINDOWS).iter_rows():
        free = start
        mine = holes.filter(pl.col("process").eq_missing(pl.lit(process)))
        for begin, until in mine.select("start", "end").iter_rows():
            if free < min(begin, end):
                found.append((process, device, free, min(begin, end)))
            free = max(free, until)
        if free < end:
            found.append((process, device, free, end))
    return pl.DataFrame(found, schema=_WINDOWS, orient="row")


def intervals_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return start, end (Int64) of rows that have both."""
    return rows.select(pl.col("start", "end").cast(pl.Int64)).drop_nulls()


def launching(work: pl.DataFrame) -> pl.DataFrame:
    """Return start, end of each launch: from its begin until the first piece of its work begins."""
    calls = work.drop_nulls(["launched", "start"]).group_by("correlation").agg(pl.col("launched", "start").min())
    return calls.select(start="launched", end="start")


def _device_work(attribution: Attribution) -> pl.DataFrame:
    """All device work of all steps, see `Parts`."""
    numbers = dict.fromkeys((*_PLACE, "start", "end"), pl.Int64)
    empty = pl.DataFrame(schema=numbers).with_columns(pl.lit(None, pl.Enum(WORK)).alias("share"))
    source = attribution.source
    blocks = [] if source is None else [_shared_out(block) for block in source.work_blocks()]
    work = pl.concat([empty, *blocks])
    return work.join(_launches(attribution), on=["process", "correlation"], how="left", maintain_order="left")


def _shared_out(block: pl.DataFrame) -> pl.DataFrame:
    share = (
        pl.when(~pl.col("kernel")).then(pl.lit("copies"))
        .when(pl.col("kind") == "collective").then(pl.lit("collectives"))
        .when("tensor_cores").then(pl.lit("tensor_cores"))
        .otherwise(pl.lit("kernels"))
    )  # fmt: skip
    wanted = [pl.col(name) if name in block.columns else pl.lit(None, pl.Int64).alias(name) for name in _PLACE]
    return with_classes(block.select(*wanted, "start", "end", "kernel", "name")).select(
        *(pl.col(name).cast(pl.Int64) for name in (*_PLACE, "start", "end")), share.cast(pl.Enum(WORK)).alias("share")
    )


_PLACE: Final = ("process", "device", "correlation")


def _launches(attribution: Attribution) -> pl.DataFrame:
    """When the launch of each id began: process, correlation, launched."""
    schema = {"process": pl.Int64, "correlation": pl.Int64, "launched": pl.Int64}
    source = attribution.source
    if source is None or not known(attribution.meta):
        return pl.DataFrame(schema=schema)
    columns = (pl.col("process", "correlation").cast(pl.Int64), pl.col("start").cast(pl.Int64).alias("launched"))
    blocks = [block.select(*columns).drop_nulls("correlation") for block in source.launch_blocks()]
    every = pl.concat([pl.DataFrame(schema=schema), *blocks])
    return every.group_by("process", "correlation").agg(pl.col("launched").min())


def _host_ranges(attribution: Attribution) -> HostRanges:
    """What threads do, whose process is that of the profile."""
    forest = attribution.whole
    columns = ["thread", "start", "end", "says"]
    ranges = pl.concat([forest.tree.select(columns), forest.loose.select(columns)])
    if not known(attribution.meta):
        ranges = ranges.clear()
    process = forest.threads.table["process"].gather(ranges["thread"])
    says = forest.says.select("phase", "loop", collective=_is_collective())[ranges["says"]]
    rows = pl.concat([ranges.select(process, "start", "end"), says], how="horizontal")
    data = pl.col("phase") == "data"
    return HostRanges(rows.filter(data), rows.filter("collective"), rows.filter(~data & ~pl.col("loop")))


def _is_collective() -> pl.Expr:
    """Whether a range is a collective: one of annot's, or an operation by its name."""
    named = pl.col("text").str.contains(r"^(?:c10d::|nccl:|gloo:|mpi:)|\|coll$")
    return (pl.col("phase") == "collective") | named
