"""Where the time of the steps went: what the devices did, and where they did nothing, what kept them waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.intervals import shares
from annot.analyze.kernels import with_classes
from annot.correlate.attribution import Attribution
from annot.correlate.host_times import known

__all__ = ["SHARES", "step_time"]

SHARES: Final = {
    "tensor_cores": "a kernel runs that computes on Tensor Cores",
    "kernels": "no kernel runs that surely does, but another that is no collective",
    "collectives": "no kernel computes, but devices talk to each other (exposed); on a CPU: processes do",
    "copies": "the device does nothing but copies and sets of memory",
    "data": "the device does nothing, and a thread waits for data",
    "launch": "the device does nothing, but what it will do next is already being launched",
    "host": "the device does nothing, and nothing is being launched: a range of the host is being worked on",
    "idle": "nothing of all this",
}
"""What has each moment of the steps; the first that is true."""

_WORK: Final = ("tensor_cores", "kernels", "collectives", "copies")
_SHARE: Final = pl.Enum(_WORK)
_INTERVAL: Final = {"start": pl.Int64, "end": pl.Int64}


@dataclass(frozen=True, slots=True)
class _Host:
    """What the threads of each process do: process (code), start, end."""

    data: pl.DataFrame
    collectives: pl.DataFrame
    ranges: pl.DataFrame


def step_time(attribution: Attribution) -> pl.DataFrame:
    """Return where the time of the steps went: disjoint shares that add up to it exactly.

    The time of a step is its range and the wait for data before it. Without steps it is all time from the first
    to the last instant of what was recorded. Each device of each process that has steps shares out the whole time of
    its process.

    Returns:
        process; device (null: the process used none); share: each of `SHARES`; ns: how long it had; hidden_ns: how
        long it went on besides, under one that stands above it, as copies and collectives do beside kernels;
        wall_ns: the whole time of the steps, the sum of ns over the shares of a device. All Int64.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "start": [10], "end": [25], "name": ["ampere_sgemm_64x64_nn"]}
        >>> step_time(attribute(Profile.build({}, kernels=pl.DataFrame(kernel)))).filter(pl.col("ns") > 0).rows()
        [(1, 0, 'kernels', 15, 0, 15)]
    """
    work, host = _work(attribution), _host(attribution)
    windows = _windows(attribution, work, host).sort("process", "start", maintain_order=True)
    parts = [
        _of_device(process, device, window, work, host)
        for (process,), window in windows.partition_by("process", as_dict=True, maintain_order=True).items()
        for device in _devices(work, process)
    ]
    schema = {"process": pl.Int64, "device": pl.Int64, "share": pl.String, "ns": pl.Int64, "hidden_ns": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema | {"wall_ns": pl.Int64}), *parts])


def _devices(work: pl.DataFrame, process: int | None) -> list[int | None]:
    there = work.filter(pl.col("process").eq_missing(pl.lit(process)))["device"].unique(maintain_order=True)
    return there.sort().to_list() or [None]


def _of_device(
    process: int | None, device: int | None, window: pl.DataFrame, work: pl.DataFrame, host: _Host
) -> pl.DataFrame:
    """The shares of one device; without any, those of the process."""
    mine = pl.col("process").eq_missing(pl.lit(process, pl.Int64))
    here = work.filter(mine & pl.col("device").eq_missing(pl.lit(device, pl.Int64)))
    going_on = {share: here.filter(pl.col("share") == share) for share in _WORK}
    if here.is_empty():
        going_on["collectives"] = host.collectives.filter(mine)
    going_on |= {"data": host.data.filter(mine), "launch": _launching(here), "host": host.ranges.filter(mine)}
    rows = shares(_intervals(window), {share: _intervals(part) for share, part in going_on.items()})
    wall = pl.col("ns").sum().alias("wall_ns")
    where = (pl.lit(process, pl.Int64).alias("process"), pl.lit(device, pl.Int64).alias("device"))
    return rows.select(*where, "share", "ns", "hidden_ns", wall)


def _intervals(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(pl.col("start", "end").cast(pl.Int64)).drop_nulls()


def _launching(work: pl.DataFrame) -> pl.DataFrame:
    """From the begin of each launch until the first piece of its work begins."""
    calls = work.drop_nulls(["launched", "start"]).group_by("correlation").agg(pl.col("launched", "start").min())
    return calls.select(start="launched", end="start")


def _work(attribution: Attribution) -> pl.DataFrame:
    """All device work of all steps: process, device, correlation, start, end, share, launched (ns, null: unknown)."""
    numbers = dict.fromkeys((*_PLACE, *_INTERVAL), pl.Int64)
    empty = pl.DataFrame(schema=numbers).with_columns(pl.lit(None, _SHARE).alias("share"))
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
        *(pl.col(name).cast(pl.Int64) for name in (*_PLACE, "start", "end")), share.cast(_SHARE).alias("share")
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


def _host(attribution: Attribution) -> _Host:
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
    return _Host(rows.filter(data), rows.filter("collective"), rows.filter(~data & ~pl.col("loop")))


def _is_collective() -> pl.Expr:
    """Whether a range is a collective: one of annot's, or an operation by its name."""
    named = pl.col("text").str.contains(r"^(?:c10d::|nccl:|gloo:|mpi:)|\|coll$")
    return (pl.col("phase") == "collective") | named


def _windows(attribution: Attribution, work: pl.DataFrame, host: _Host) -> pl.DataFrame:
    """The time that is shared out: process, start, end."""
    steps = attribution.steps
    if steps.table.is_empty() or not known(attribution.meta):
        return _whole(work, host)
    codes = attribution.whole.threads.table.select("process", "process_code").unique()
    table = steps.table.select("step", "start", "end", process_code="process").join(codes, on="process_code")
    wanted = table.filter(steps.wanted(table["step"]))
    return pl.concat([wanted.select("process", "start", "end"), _waits(table, wanted, host.data)])


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


def _whole(work: pl.DataFrame, host: _Host) -> pl.DataFrame:
    """From the first to the last instant of each process that used a device; of all, if none did."""
    used = work if work.height else host.ranges
    every = pl.concat([part.select("process", "start", "end") for part in (work, host.ranges, host.data)])
    every = every.drop_nulls("start").join(used.select("process").unique(), on="process", how="semi", nulls_equal=True)
    return every.group_by("process").agg(pl.col("start").min(), pl.col("end").max())
