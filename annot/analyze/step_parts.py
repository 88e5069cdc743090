"""The time of the steps, as intervals that GPU activities and ranges of threads share by precedence.

A step analysis reads `StepInputs`: the steps without warm-up, the GPU activities of each device, and the ranges of
threads. Each nanosecond of a step belongs to the first set of intervals that has it. The launch of a GPU activity is
the API call with its correlation id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import polars as pl

from annot.analyze.kernel_names import with_classes
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known
from annot.attribution.range_trees import Forest
from annot.attribution.steps import worker_processes
from annot.attribution.summary import step_spans
from annot.labels.foreign import WARM_UP
from annot.util.weak_keys import once_for_each

_SLICE: Final = 1 << 18
"""Intervals per batch: with millions of intervals the intermediate columns take more memory than the intervals."""

_BEFORE_ALL: Final = pl.DataFrame({"start": [-(1 << 63)], "end": [-(1 << 63)], "before": [0]})


def shares(window: pl.DataFrame, going_on: Mapping[str, pl.DataFrame | Callable[[], pl.DataFrame]]) -> pl.DataFrame:
    """Partition the time in a window (start, end in ns, Int64) exactly among named intervals.

    Intervals may be functions that return them, which keeps one set in memory at a time. Where intervals overlap, the
    first name gets the time. The result has share: the names, then ``idle``; ns: time of each name, which adds up to
    the window; hidden_ns: time in which its intervals are overlapped by an earlier name.
    """
    whole = free = merged(window)
    rows = []
    for name, intervals in going_on.items():
        spans = merged(intervals() if callable(intervals) else intervals)
        exclusive = _shared(spans, free)
        rows.append((name, exclusive, _shared(spans, whole) - exclusive))
        free = without(free, spans)
    rows.append(("idle", int((free["end"] - free["start"]).sum()), 0))
    return pl.DataFrame(rows, schema={"share": pl.String, "ns": pl.Int64, "hidden_ns": pl.Int64}, orient="row")


def merged(intervals: pl.DataFrame) -> pl.DataFrame:
    """Merge overlapping and adjacent intervals (Int64), sorted by start; empty intervals are dropped."""
    rows = intervals.lazy().filter(pl.col("end") > pl.col("start")).select("start", "end").collect()
    if rows.is_empty():  # as are most categories of most steps
        return rows
    rows = rows if rows["start"].is_sorted() else rows.sort("start")
    reached = pl.col("end").cum_max()
    rows = rows.select("start", reached.alias("end"), begins=(pl.col("start") > reached.shift(1)).fill_null(True))
    ends = rows["begins"].shift(-1, fill_value=True)
    return pl.DataFrame({"start": rows["start"].filter(rows["begins"]), "end": rows["end"].filter(ends)})


def within(times: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Return the total length (ns) of the spans, a result of `merged`, before each time (ns, Int64)."""
    if spans.is_empty() or times.is_empty():
        return pl.zeros(times.len(), dtype=pl.Int64, eager=True).alias("within")
    row = spans["start"].search_sorted(times, side="right").alias("row")
    # Row 0 stands for the time before the first span.
    before = (pl.col("end") - pl.col("start")).cum_sum().shift(1, fill_value=0)
    rows = pl.concat([_BEFORE_ALL, spans.select("start", "end", before.alias("before"))])[row]
    inside = pl.min_horizontal("end", pl.lit(times)) - pl.col("start")
    return rows.select((pl.col("before") + inside).alias("within")).to_series()


def exclusive(rows: pl.DataFrame, window: pl.DataFrame) -> pl.DataFrame:
    """Give the time of overlapping intervals (start, end in ns, Int64) to the interval that starts first.

    Args:
        rows: the intervals, with further columns.
        window: a result of `merged`. Only time in the window counts.

    Returns:
        The rows by start; begin, until (ns): the exclusive part of each interval; wall_ns: its length in the window;
        calls: 1 if the interval starts in the window, else 0.
    """
    rows = rows.sort("start", maintain_order=True)
    begin = pl.max_horizontal("start", pl.col("end").cum_max().shift(1))
    rows = rows.with_columns(begin=begin, until=pl.max_horizontal(begin, "end"))
    taken = within(rows["until"], window) - within(rows["begin"], window)
    inside = within(rows["start"] + 1, window) > within(rows["start"], window)
    return rows.with_columns(taken.alias("wall_ns"), inside.cast(pl.Int64).alias("calls"))


def cut(spans: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """Split spans, a result of `merged`, at times (ns, Int64)."""
    start = pl.concat([spans["start"], spans["end"], at]).unique().sort().alias("start")
    segments = pl.DataFrame({"start": start, "end": start.shift(-1)}).drop_nulls()
    return segments.filter(within(segments["end"], spans) > within(segments["start"], spans))


def without(spans: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of spans outside holes; arguments and result are in the form of `merged`."""
    if holes.is_empty():
        return spans
    outside = [spans.clear()]
    for block in spans.iter_slices(_SLICE):
        first = holes["end"].search_sorted(block["start"][0], "right")
        last = holes["start"].search_sorted(block["end"][-1], "left")
        near = holes.slice(first, max(last - first, 0))
        sides = ((block, "start", 1), (block, "end", -1), (near, "start", 2), (near, "end", -2))
        edges = pl.concat([side.select(time=pl.col(name), open=pl.lit(step, pl.Int8)) for side, name, step in sides])
        edges = edges.sort("time").select(pl.col("open").cum_sum(), start="time", end=pl.col("time").shift(-1))
        outside.append(edges.filter((pl.col("open") == 1) & (pl.col("end") > pl.col("start"))).drop("open"))
    return pl.concat(outside, rechunk=True)


def _shared(spans: pl.DataFrame, other: pl.DataFrame) -> int:
    """Length of the overlap of two results of `merged`."""
    fewer, more = sorted((spans, other), key=len)
    if fewer.is_empty():
        return 0
    before = ((within(block["start"], more), within(block["end"], more)) for block in fewer.iter_slices(_SLICE))
    return sum(int((until - since).sum()) for since, until in before)


_COLUMNS: Final = {"correlation": pl.Int64, "start": pl.Int64, "ns": pl.Int64}


class Calls:
    """API calls by process and correlation id; the earliest call if several share an id.

    The calls are sorted by id and found by binary search: the hash table of a join takes most of the memory with
    millions of calls. Rows of `annot.profile.LAUNCHES` without an id are skipped, and without a process do not match.
    """

    def __init__(self) -> None:
        self._parts: dict[int, list[pl.DataFrame]] = defaultdict(list)

    def add(self, block: pl.DataFrame) -> None:
        """Add calls; call it before `settle`."""
        ns = (pl.col("end") - pl.col("start")).alias("ns")
        rows = block.select("process", "correlation", "start", ns).cast(pl.Int64).drop_nulls(["process", "correlation"])
        for (process,), calls in rows.partition_by("process", as_dict=True, include_key=False).items():
            self._parts[process].append(calls)

    def settle(self) -> Calls:
        """Sort the added calls and return self."""
        self._ids: dict[int, tuple[int, pl.Series]] = {}
        times, first = [pl.DataFrame(schema=_COLUMNS).select("start", "ns")], 0
        for process in list(self._parts):
            table = _sorted(pl.concat(self._parts.pop(process)))
            self._ids[process] = first, table["correlation"]
            first += table.height
            times.append(table.select("start", "ns"))
        self.start, self.ns = pl.concat(times, rechunk=True).get_columns()
        return self

    def rows(self, process: pl.Series, correlation: pl.Series) -> pl.Series:
        """Return the row (Int64) in `start` and `ns` of the call with each id; null: unknown."""
        ids = pl.DataFrame({"process": process.cast(pl.Int64), "id": correlation.cast(pl.Int64)})
        row = pl.Series("row", [None], pl.Int64).new_from_index(0, ids.height)
        for process_id in ids["process"].unique():
            if process_id is None or process_id not in self._ids:
                continue
            first, sorted_ids = self._ids[process_id]
            index = sorted_ids.search_sorted(ids["id"]).cast(pl.Int64).clip(upper_bound=len(sorted_ids) - 1)
            hit = ((ids["process"] == process_id) & (sorted_ids.gather(index) == ids["id"])).fill_null(False)
            row = (index + first).zip_with(hit, row)
        return row.alias("row")


def _sorted(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls of one process by id; the earliest call of each id."""
    if not calls["start"].is_sorted(nulls_last=True):
        calls = calls.sort("start", nulls_last=True, maintain_order=True)
    if not calls["correlation"].is_sorted():
        calls = calls.sort("correlation", maintain_order=True)
    repeated = calls["correlation"] == calls["correlation"].shift(1)
    return calls.filter(~repeated.fill_null(False)) if repeated.any() else calls.rechunk()


def calls_of(attribution: Attribution) -> Calls:
    """Return the API calls of a profile; empty if their times are unknown."""
    calls = Calls()
    if attribution.source is not None and known(attribution.meta):
        for block in attribution.source.launch_blocks():
            calls.add(block)
    return calls.settle()


Device: TypeAlias = tuple[int | None, int | None]
"""Process and device; null if unknown."""

Intervals: TypeAlias = Callable[[], pl.DataFrame]

_Work: TypeAlias = Mapping[Device, pl.DataFrame]
_Host: TypeAlias = Mapping[str, pl.DataFrame]

WORK: Final = ("tensor_cores", "kernels", "collectives", "copies")
"""Kinds of GPU activities in order of precedence."""

COLLECTIVE_NAME: Final = r"^(?:c10d::|nccl:|gloo:|mpi:)|\|coll$"
"""Text of the range of a collective: a range of annot, or an operation named by its backend."""

_WINDOWS: Final = {"process": pl.Int64, "device": pl.Int64, "start": pl.Int64, "end": pl.Int64}
_SHARES: Final = {
    "process": pl.Int64,
    "device": pl.Int64,
    "share": pl.String,
    "ns": pl.Int64,
    "hidden_ns": pl.Int64,
    "wall_ns": pl.Int64,
}
_WINDOW: Final = [pl.col(name).cast(dtype) for name, dtype in _WINDOWS.items()]
_WORK: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("correlation", "start", "end", "launched"), pl.Int64),
    "share": pl.Enum(WORK),
    "name": pl.Categorical,
    **dict.fromkeys(("kernel", "pinned", "left_out"), pl.Boolean),
    **dict.fromkeys(("node", "range"), pl.Int32),
}
_NO_WORK: Final = pl.DataFrame(schema=_WORK)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Shared input of the step analyses.

    work     all GPU activities by process and device: correlation, start, end, launched (start of the API call in ns;
             null: unknown), share (one of `WORK`), name, kernel, pinned, and left_out, node and range of
             `annot.attribution.gpu_time.Attributor.of`
    host     ranges of threads of kind data, collectives or ranges (others; ranges inside them are left out): process,
             start, end (Int64); collectives also have label, node (null: a crossing range) and range (a number) of
             `Attribution.whole`
    windows  times of the steps: process, device (null: the process uses no device), start, end (ns)
    without_warmup  whether ranges labelled as warm-up are cut out of the windows of a profile without steps
    """

    work: _Work
    host: _Host
    windows: pl.DataFrame
    without_warmup: bool = False

    def of_device(self, device: Device) -> pl.DataFrame:
        """Return the rows of `work` of a device."""
        return self.work.get(device, _NO_WORK)


@once_for_each
def step_inputs(attribution: Attribution) -> StepInputs:
    """Return the steps of a profile with its GPU activities and ranges of threads.

    A step is its range plus the wait for data before it, on each device of the process. Warm-up steps are excluded. In
    a profile without steps, the time from the first to the last kernel of each device replaces them, which excludes
    script start and end, such as loading a model. Ranges labelled as warm-up are excluded, unless they cover that time.
    """
    calls, source = calls_of(attribution), attribution.source
    every = (attribution.attributor.of(block) for block in ([] if source is None else source.work_blocks()))
    blocks = (_add_share(block, calls) for block in every)
    work = {key: pl.concat(rows) for key, rows in by_device(blocks).items()}
    host = _host_ranges(attribution)
    return StepInputs(work, host, *_windows(attribution, work, host))


def _windows(attribution: Attribution, work: _Work, host: _Host) -> tuple[pl.DataFrame, bool]:
    """The times of the steps, and whether warm-up ranges are cut out of them; see `StepInputs`.

    The device starts a step of a serving engine when it has finished the step before. In a profile of one such step the
    time from the first to the last activity counts, because the step before is not in the profile.
    """
    steps = attribution.steps
    alone = steps.kinds["kind"].count() > 0 and steps.kinds["steps"].sum() == 1
    if steps.table.is_empty() or alone or not known(attribution.meta):
        spans, cut = _run_windows(attribution, work, host)
        return spans.sort("process", "device", "start"), cut
    codes = attribution.whole.threads.table.select("process", "process_code").unique()
    spans = step_spans(attribution).join(codes, on="process_code")
    steady = spans.join(steps.steady().select("step", process_code="process"), on=["process_code", "step"], how="semi")
    devices = pl.DataFrame(list(work), schema={"process": pl.Int64, "device": pl.Int64}, orient="row")
    joined = steady.join(devices, on="process", how="left", nulls_equal=True)
    if steps.kinds["kind"].count() and steps.kind is None:
        joined = _until_last_activity(joined, spans, work)
    return joined.select(_WINDOW).sort("process", "device", "start"), False


def _until_last_activity(windows: pl.DataFrame, spans: pl.DataFrame, work: _Work) -> pl.DataFrame:
    """Extend the last step of a process to the last GPU activity: a serving engine waits for it after the range."""
    ends = [(process, device, rows["end"].max()) for (process, device), rows in work.items()]
    schema = {"process": pl.Int64, "device": pl.Int64, "last": pl.Int64}
    joined = windows.join(
        pl.DataFrame(ends, schema, orient="row"), on=["process", "device"], how="left", nulls_equal=True
    ).join(spans.group_by("process").agg(final=pl.col("end").max()), on="process", how="left")
    end = pl.when(pl.col("end") == pl.col("final")).then(pl.max_horizontal("end", "last")).otherwise("end")
    return joined.with_columns(end.alias("end"))


def _run_windows(attribution: Attribution, work: _Work, host: _Host) -> tuple[pl.DataFrame, bool]:
    """From the first to the last kernel of each device; without GPU activities, from the first to the last range.

    Processes that only load data do not count.

    Returns:
        The times without warm-up ranges, and whether they would be longer with them.
    """
    bounds = (pl.col("start").min(), pl.col("end").max())
    if not work:
        every = pl.concat([ranges.select("process", "start", "end") for ranges in (host["ranges"], host["data"])])
        threads = attribution.whole.threads.table
        workers = threads.join(worker_processes(attribution.whole).to_frame(), on="process_code", how="semi")
        every = every.join(workers, on="process", how="anti", nulls_equal=True)
        spans = every.drop_nulls("start").group_by("process").agg(*bounds).with_columns(device=pl.lit(None, pl.Int64))
    else:
        times = {key: rows.select("start", "end", "kernel") for key, rows in work.items()}
        computed = {key: rows.filter("kernel") for key, rows in times.items()}
        used = computed if any(rows.height for rows in computed.values()) else times
        tables = [
            rows.drop_nulls("start").select(
                pl.lit(process, pl.Int64).alias("process"), pl.lit(device, pl.Int64).alias("device"), *bounds
            )
            for (process, device), rows in used.items()
            if rows["start"].count()
        ]
        spans = pl.concat([pl.DataFrame(schema=_WINDOWS), *tables])
    spans = spans.select(_WINDOW)
    warmups = _warmups(attribution)
    outside = _cut_out(spans, warmups) if warmups.height else spans
    whole, rest = ((times["end"] - times["start"]).sum() for times in (spans, outside))
    return (outside, rest < whole) if rest > 0 else (spans, False)


def _warmups(attribution: Attribution) -> pl.DataFrame:
    """The times of warm-up ranges: process, start, end."""
    forest = attribution.whole
    ranges = forest.every_range()
    ranges = ranges.filter(forest.labels["text"].str.contains(WARM_UP).gather(ranges["label"]).fill_null(False))
    return ranges.select(forest.threads.table["process"].gather(ranges["thread"]), "start", "end")


def _cut_out(spans: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """The parts of spans outside the holes of their process."""
    outside = [spans.clear()]
    for (process, device), rows in spans.partition_by("process", "device", as_dict=True).items():
        mine = holes.filter(pl.col("process").eq_missing(pl.lit(process, pl.Int64)))
        where = (pl.lit(process, pl.Int64).alias("process"), pl.lit(device, pl.Int64).alias("device"))
        outside.append(without(merged(rows), merged(intervals_of(mine))).select(*where, "start", "end"))
    return pl.concat(outside)


def typed(rows: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return the columns of a schema with its types; null where the rows lack a column."""
    missing = [pl.lit(None).alias(name) for name in schema if name not in rows.columns]
    return rows.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def intervals_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return start, end (Int64) of the rows where both are known."""
    return rows.select(pl.col("start", "end").cast(pl.Int64)).drop_nulls()


def launching(work: pl.DataFrame) -> pl.DataFrame:
    """Return start, end (Int64) of each launch: from the start of the API call to the start of its first activity."""
    calls = work.drop_nulls(["launched", "start"]).group_by("correlation").agg(pl.col("launched", "start").min())
    return calls.select(start=pl.col("launched").cast(pl.Int64), end=pl.col("start").cast(pl.Int64))


def by_device(blocks: Iterable[pl.DataFrame]) -> dict[Device, list[pl.DataFrame]]:
    """Return rows of GPU activities by process and device, without these columns."""
    groups: dict[Device, list[pl.DataFrame]] = defaultdict(list)
    for block in blocks:
        for (process, device), rows in block.partition_by("process", "device", as_dict=True, include_key=False).items():
            groups[process, device].append(rows)
    return groups


def shares_of_devices(
    inputs: StepInputs, going_on: Callable[[StepInputs, Device], Mapping[str, Intervals]]
) -> pl.DataFrame:
    """Partition the steps of each device: process, device, share, ns, hidden_ns, wall_ns (step time); see `shares`."""
    tables = [pl.DataFrame(schema=_SHARES)]
    for (process, device), window in inputs.windows.partition_by("process", "device", as_dict=True).items():
        rows = shares(intervals_of(window), going_on(inputs, (process, device)))
        where = (pl.lit(process, pl.Int64).alias("process"), pl.lit(device, pl.Int64).alias("device"))
        tables.append(rows.select(*where, "share", "ns", "hidden_ns", wall_ns=pl.col("ns").sum()))
    return pl.concat(tables)


def _add_share(block: pl.DataFrame, calls: Calls) -> pl.DataFrame:
    share = (
        pl.when(~pl.col("kernel"))
        .then(pl.lit("copies"))
        .when(pl.col("kind") == "collective")
        .then(pl.lit("collectives"))
        .when("tensor_cores")
        .then(pl.lit("tensor_cores"))
        .otherwise(pl.lit("kernels"))
    )
    launched = calls.start.gather(calls.rows(block["process"], block["correlation"])).alias("launched")
    shares = with_classes(block.select("name", "kernel")).select(share.alias("share")).to_series()
    return typed(block.with_columns(shares, launched), {"process": pl.Int64, "device": pl.Int64, **_WORK})


def _host_ranges(attribution: Attribution) -> _Host:
    """The ranges of threads by kind, with the process id of the profile."""
    forest = attribution.whole
    columns = ["thread", "start", "end", "label"]
    ranges = pl.concat([forest.tree.select(*columns, node="path"), forest.crossing.select(columns)], how="diagonal")
    if not known(attribution.meta):
        ranges = ranges.clear()
    data = forest.labels["phase"] == "data"
    collective = (pl.col("phase") == "collective") | pl.col("text").str.contains(COLLECTIVE_NAME)
    others = (~data & ~forest.labels["loop"]).gather(ranges["label"])
    kinds = {
        "data": data.gather(ranges["label"]),
        "ranges": others & ~_are_nested(others, forest),
        "collectives": forest.labels.select(collective).to_series().gather(ranges["label"]),
    }
    more = {"collectives": ("node", "range", "label")}
    times = pl.col("process", "start", "end").cast(pl.Int64)

    def select_ranges(chosen: pl.Series) -> pl.DataFrame:
        rows = chosen.arg_true().alias("range")
        return ranges[rows].with_columns(rows, forest.threads.table["process"].gather(ranges["thread"].gather(rows)))

    return {
        name: select_ranges(chosen).select(times, *more.get(name, ())).drop_nulls(["start", "end"])
        for name, chosen in kinds.items()
    }


def _are_nested(chosen: pl.Series, forest: Forest) -> pl.Series:
    """Return which ranges of a thread are inside another one that is chosen, and add nothing to the union."""
    parent = forest.tree["parent"].head(forest.thread_range_count)
    inside = column_ops.inside(chosen.head(len(parent)), parent) if len(chosen) else chosen
    return inside.extend_constant(False, len(chosen) - len(inside))
