"""What the analyses of steps look at: the steps without their warm-up, what devices did, and what threads did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import polars as pl

from annot.analyze.calls import calls_of
from annot.analyze.kernels import with_classes
from annot.correlate.attribution import Attribution
from annot.correlate.host_times import known

__all__ = ["WORK", "HostRanges", "Parts", "intervals_of", "launching", "parts_of"]

_Work: TypeAlias = Mapping[tuple[int | None, int | None], pl.DataFrame]

WORK: Final = ("tensor_cores", "kernels", "collectives", "copies")
"""What devices do, by rank: the first that is going on has the moment."""

_WINDOWS: Final = {"process": pl.Int64, "device": pl.Int64, "start": pl.Int64, "end": pl.Int64}
_WINDOW: Final = [pl.col(name).cast(dtype) for name, dtype in _WINDOWS.items()]
_NO_WORK: Final = pl.DataFrame(
    schema=dict.fromkeys(("correlation", "start", "end"), pl.Int64) | {"share": pl.Enum(WORK), "launched": pl.Int64}
)
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
        work: all device work of all steps, by process and device: correlation, start, end, share (`WORK`), launched
            (ns; null: not known).
        host: what threads did.
        windows: when steps ran: process, device (null: the process used none), start, end (ns), in this order.
    """

    work: Mapping[tuple[int | None, int | None], pl.DataFrame]
    host: HostRanges
    windows: pl.DataFrame

    def of_device(self, process: int | None, device: int | None) -> pl.DataFrame:
        """Return what is in `work` of a device."""
        return self.work.get((process, device), _NO_WORK)


def parts_of(attribution: Attribution) -> Parts:
    """Return the steps of a profile, and what devices and threads did.

    A step is its range and the wait for data before it; each device of a process has all its steps. The warm-up is no
    part of them. Without steps it is the time from the first to the last kernel of each device, without ranges that are
    called a warm-up, unless they are all: what a script does before and after, as loading a model, is no step.
    """
    work, host = _device_work(attribution), _host_ranges(attribution)
    return Parts(work, host, _windows(attribution, work, host))


def _windows(attribution: Attribution, work: _Work, host: HostRanges) -> pl.DataFrame:
    """When steps ran, see `Parts`."""
    steps = attribution.steps
    if steps.table.is_empty() or not known(attribution.meta):
        return _of_run(attribution, work, host).sort("process", "device", "start")
    codes = attribution.whole.threads.table.select("process", "process_code").unique()
    table = steps.table.select("step", "start", "end", process_code="process").join(codes, on="process_code")
    wanted = steps.steady().select("step", process_code="process")
    wanted = table.join(wanted, on=["process_code", "step"], how="semi")
    spans = pl.concat([wanted.select("process", "start", "end"), _waits(table, wanted, host.data)])
    devices = pl.DataFrame(list(work), schema={"process": pl.Int64, "device": pl.Int64}, orient="row")
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


def _of_run(attribution: Attribution, work: _Work, host: HostRanges) -> pl.DataFrame:
    """From the first to the last kernel of each device; of what threads did, if no device worked."""
    bounds = (pl.col("start").min(), pl.col("end").max())
    if not work:
        every = pl.concat([part.select("process", "start", "end") for part in (host.ranges, host.data)])
        spans = every.drop_nulls("start").group_by("process").agg(*bounds).with_columns(device=pl.lit(None, pl.Int64))
    else:
        computed = {place: rows.filter(pl.col("share") != "copies") for place, rows in work.items()}
        used = computed if any(rows.height for rows in computed.values()) else work
        found = [
            rows.drop_nulls("start").select(
                pl.lit(process, pl.Int64).alias("process"), pl.lit(device, pl.Int64).alias("device"), *bounds
            )
            for (process, device), rows in used.items()
            if rows["start"].count()
        ]
        spans = pl.concat([pl.DataFrame(schema=_WINDOWS), *found])
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
    return calls.select(start=pl.col("launched").cast(pl.Int64), end=pl.col("start").cast(pl.Int64))


def _device_work(attribution: Attribution) -> _Work:
    """All device work of all steps, see `Parts`."""
    calls, source = calls_of(attribution), attribution.source
    parts: dict[tuple[int | None, int | None], list[pl.DataFrame]] = defaultdict(list)
    for block in () if source is None else source.work_blocks():
        rows = _shared_out(block)
        launched = calls.start.gather(calls.rows(rows["process"], rows["correlation"])).alias("launched")
        rows = rows.with_columns(launched)
        for (process, device), part in rows.partition_by("process", "device", as_dict=True, include_key=False).items():
            parts[process, device].append(part)
    return {place: pl.concat(found) for place, found in parts.items()}


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
    kinds = (data, pl.col("collective"), ~data & ~pl.col("loop"))
    return HostRanges(
        *(
            rows.filter(kind).select(pl.col("process", "start", "end").cast(pl.Int64)).drop_nulls(["start", "end"])
            for kind in kinds
        )
    )


def _is_collective() -> pl.Expr:
    """Whether a range is a collective: one of annot's, or an operation by its name."""
    named = pl.col("text").str.contains(r"^(?:c10d::|nccl:|gloo:|mpi:)|\|coll$")
    return (pl.col("phase") == "collective") | named
