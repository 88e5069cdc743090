"""Times in which devices are idle, by what the CPU does meanwhile, and the API calls that wait or allocate."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import polars as pl

from annot.analyze.overlap import merged
from annot.analyze.step_parts import Device, Intervals, StepInputs, intervals_of, launching
from annot.attribution.attribute import Attribution, known

__all__ = ["DISPATCH_NS", "SAME", "idle_calls", "idle_intervals", "waiting_calls"]

SAME: Final = {"wait": "synchronisation", "call": "launch", "pending": "launch", "gap": "launch"}
"""Further names of intervals of `idle_intervals`, and their parts."""

DISPATCH_NS: Final = 1_000_000
"""Longest gap that counts as launch latency of a framework, even under a profiler. A longer gap is other code, or
the first launch of a kernel, which loads its module."""
_BLOCKING_NS: Final = 50_000
"""An asynchronous copy call that takes longer has blocked: on the device, or on pageable memory."""
_CALLS: Final = tuple(
    (kind, re.compile(rf"^(?:cuda|hip|cu)(?:{names})"))
    for kind, names in (
        ("", r"(?:Malloc|Free|Mem(?:Alloc|Free)|MemAllocFromPool)\w*Async|Memset"),
        ("copy", r"Memcpy\w*Async"),
        ("synchronisation", r"(?:Stream|Device|Event|Ctx)Synchronize|Memcpy"),
        ("launch", r"(?:ExtModule|Module|Graph)?Launch"),
        ("allocation", r"(?:Mem)?(?:Malloc|Alloc|Free|Host(?:Alloc|Malloc|Free|Register))"),
    )
)
"""Kinds of API calls by name; the first match wins."""
_CALL: Final = {
    "process": pl.Int64, "correlation": pl.Int64, "start": pl.Int64, "end": pl.Int64, "name": pl.String,
    "cause": pl.String,
}  # fmt: skip


def idle_intervals(attribution: Attribution, inputs: StepInputs) -> Callable[[Device], dict[str, Intervals]]:
    """Return a function from a device to the intervals of each cause of idle time, in order of precedence.

    A CPU thread that synchronises loses its lead over the device. The idle time from the end of the synchronising call
    to the next GPU activity therefore counts as synchronisation too, but at most for the duration of the call: without
    the call the CPU would have been ahead by that time.

    A launched activity that starts at least `DISPATCH_NS` after its API call, on an idle device, waits for something
    that the profile does not show, such as an activity from before the recording. So does a thread that synchronises
    before the first activity of the device.

    The causes are the parts of `annot.analyze.part_names.IDLE`, except the last one; some have several names, which
    `SAME` maps to one. The last one is the rest of the idle time.
    """
    queues = _queues(attribution, inputs)
    return partial(_intervals, inputs, waiting_calls(attribution), _quick_launches(attribution), queues)


def idle_calls(attribution: Attribution) -> pl.DataFrame:
    """Return the API calls in the steps that wait for a device or allocate its memory.

    The columns are cause (synchronisation or allocation), name, calls, ns; the longest first.
    """
    calls = waiting_calls(attribution)
    steps = attribution.steps
    if steps.table.height:
        codes = attribution.whole.threads.table.select("process", "process_code").unique()
        calls = calls.join(codes, on="process")
        steady = steps.steady().select("step", process_code="process")
        calls = calls.with_columns(steps.at(calls["process_code"], calls["start"]).alias("step"))
        calls = calls.join(steady, on=["process_code", "step"], how="semi")
    length = (pl.col("end") - pl.col("start")).sum().alias("ns")
    name = pl.col("name").str.replace(r"_v\d+$", "")
    sums = calls.group_by("cause", name).agg(pl.len().cast(pl.Int64).alias("calls"), length)
    return sums.sort("ns", "name", descending=[True, False])


def waiting_calls(attribution: Attribution) -> pl.DataFrame:
    """Return the API calls in which a thread waits for a device or allocates its memory.

    The columns are process, correlation, start, end (ns), name, cause: synchronisation or allocation. The table is
    empty if CPU times or call names are unknown.
    """
    tables = [pl.DataFrame(schema=_CALL)]
    for block in _caused(attribution):
        long = pl.col("end") - pl.col("start") >= _BLOCKING_NS
        rows = block.filter((pl.col("cause") != "launch") & ((pl.col("cause") != "copy") | long))
        rows = rows.with_columns(pl.col("cause").replace("copy", "synchronisation"))
        tables.append(rows.select(pl.col(name).cast(dtype) for name, dtype in _CALL.items()))
    return pl.concat(tables)


def _quick_launches(attribution: Attribution) -> dict[int | None, pl.DataFrame]:
    """The launch calls of each process that take less than `DISPATCH_NS`: start, end."""
    by_process: dict[int | None, list[pl.DataFrame]] = defaultdict(list)
    for block in _caused(attribution):
        launches = _short(block.filter(pl.col("cause") == "launch"))
        rows = launches.select(pl.col("process", "start", "end").cast(pl.Int64))
        for (process,), calls in rows.partition_by("process", as_dict=True, include_key=False).items():
            by_process[process].append(calls)
    return {process: merged(pl.concat(by_process.pop(process))) for process in list(by_process)}


def _caused(attribution: Attribution) -> Iterator[pl.DataFrame]:
    """The API calls that match `_CALLS`, with name and cause, in blocks."""
    if attribution.source is None or not known(attribution.meta):
        return
    for block in attribution.source.launch_blocks():
        if "name" not in block.columns:  # files that are read in blocks for a table of layers skip the names
            continue
        names = block["name"].unique()
        texts = names.cast(pl.String)
        causes = [next((kind for kind, pattern in _CALLS if pattern.search(name or "")), "") for name in texts]
        kinds = pl.DataFrame({"name": names, "cause": pl.Series(causes, dtype=pl.String)}).filter(pl.col("cause") != "")
        yield block.join(kinds, on="name")


def _queues(attribution: Attribution, inputs: StepInputs) -> pl.DataFrame:
    """Long idle times between the API call of an activity and its start: process, device, start, end."""
    late = pl.concat([pl.DataFrame(schema=_LATE), *(_late(device, work) for device, work in inputs.work.items())])
    tables = [pl.DataFrame(schema=_QUEUE)]
    for block in attribution.source.launch_blocks() if attribution.source is not None and late.height else ():
        calls = block.select(pl.col("process", "correlation").cast(pl.Int64), called=pl.col("end").cast(pl.Int64))
        rows = late.join(calls, on=["process", "correlation"])
        tables.append(rows.select("process", "device", start=pl.max_horizontal("called", "done"), end="started"))
    queues = pl.concat(tables)
    return queues.filter(pl.col("end") - pl.col("start") >= DISPATCH_NS)


def _late(device: Device, work: pl.DataFrame) -> pl.DataFrame:
    """The activities with a known launch that start after a gap of at least `DISPATCH_NS`, and the first activity."""
    ran = merged(intervals_of(work))
    gaps = ran.select(started="start", done=pl.col("end").shift(1))
    gaps = gaps.filter((pl.col("started") - pl.col("done") >= DISPATCH_NS).fill_null(True))
    rows = work.drop_nulls("launched").join(gaps, left_on="start", right_on="started")
    ids = [pl.lit(value, pl.Int64).alias(name) for name, value in zip(("process", "device"), device, strict=True)]
    return rows.select(*ids, "correlation", "done", started="start")


_LATE: Final = dict.fromkeys(("process", "device", "correlation", "done", "started"), pl.Int64)
_QUEUE: Final = dict.fromkeys(("process", "device", "start", "end"), pl.Int64)


def _intervals(
    inputs: StepInputs,
    calls: pl.DataFrame,
    launches: dict[int | None, pl.DataFrame],
    queues: pl.DataFrame,
    device: Device,
) -> dict[str, Intervals]:
    """The intervals of one device; some causes have several."""
    mine = pl.col("process").eq_missing(pl.lit(device[0], pl.Int64))
    here = inputs.of_device(device)
    ran, calls, queues = merged(intervals_of(here)), calls.filter(mine), queues.filter(mine)
    waits = calls.filter(pl.col("cause") == "synchronisation")
    before = waits.select("start", end=pl.min_horizontal("end", pl.lit(ran["start"].min(), pl.Int64)))
    queued = queues.filter(pl.col("device").eq_missing(pl.lit(device[1], pl.Int64))).select("start", "end")
    return {
        "data": lambda: inputs.host["data"].filter(mine),
        "unrecorded": lambda: pl.concat([queued, before if ran.height else before.clear()]),
        "synchronisation": lambda: _idle_after(waits, ran),
        "call": lambda: launches.get(device[0], waits.clear()),
        "wait": lambda: waits,
        "allocation": lambda: calls.filter(pl.col("cause") == "allocation"),
        "pending": lambda: _short(launching(here.join(waits.select("correlation"), on="correlation", how="anti"))),
        "gap": lambda: _short(ran.select(start="end", end=pl.col("start").shift(-1)).drop_nulls()),
    }


def _idle_after(waits: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Idle time after each call that drained the device's queue, at most as long as the call."""
    ends = waits.select("start", "end").sort("end")
    before = ran.select(done="end").sort("done")
    after = ran.select(pl.col("start").alias("next"))
    rows = ends.join_asof(before, left_on="end", right_on="done", strategy="backward")
    rows = rows.join_asof(after, left_on="end", right_on="next", strategy="forward")
    dry = (pl.col("done") >= pl.col("start")) & (pl.col("next") > pl.col("end"))
    last = ran.select(began="start", lasts="end")
    busy = rows.join_asof(last, left_on="end", right_on="began", strategy="backward")
    idle = busy.filter(dry & (pl.col("lasts") <= pl.col("end")))
    limit = pl.min_horizontal("next", pl.col("end") + (pl.col("end") - pl.col("start")))
    return idle.select(start="end", end=limit)


def _short(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.filter(pl.col("end") - pl.col("start") < DISPATCH_NS)
