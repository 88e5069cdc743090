"""GPU activities (kernels, copies and memsets) with their layers, and the time in which devices are idle.

The idle time of a device belongs to what the CPU does meanwhile, and to the layer of the GPU activity that ends it.
Sums over layers are inclusive: the value of a layer has those of the layers inside it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import polars as pl
import polars.selectors as cs

from annot.analyze.step_parts import Device, Intervals, StepInputs, by_device, intervals_of, launching, merged, within
from annot.attribution.attribute import Attribution, known, self_times
from annot.attribution.column_ops import NONE
from annot.attribution.nesting import KEY, Nodes
from annot.profile import kernels_as_work
from annot.util.weak_keys import once_for_each

SAME: Final = {"wait": "synchronisation", "call": "launch", "pending": "launch", "gap": "launch"}
"""Further names of intervals of `idle_intervals`, and their parts."""

_DISPATCH_NS: Final = 1_000_000
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
    "process": pl.Int64,
    "correlation": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.String,
    "cause": pl.String,
}


def idle_intervals(attribution: Attribution, inputs: StepInputs) -> Callable[[Device], dict[str, Intervals]]:
    """Return a function from a device to the intervals of each cause of idle time, in order of precedence.

    A CPU thread that synchronises loses its lead over the device. The idle time from the end of the synchronising call
    to the next GPU activity therefore counts as synchronisation too, but at most for the duration of the call: without
    the call the CPU would have been ahead by that time.

    A launched activity that starts at least `_DISPATCH_NS` after its API call, on an idle device, waits for something
    that the profile does not show, such as an activity from before the recording. So does a thread that synchronises
    before the first activity of the device.

    The causes are the parts of `annot.analyze.cpu_parts.IDLE`, except the last one; some have several names, which
    `SAME` maps to one. The last one is the rest of the idle time.
    """
    queues = _queues(attribution, inputs)
    return partial(_intervals, inputs, _waiting_calls(attribution), _quick_launches(attribution), queues)


def idle_calls(attribution: Attribution) -> pl.DataFrame:
    """Return the API calls in the steps that wait for a device or allocate its memory.

    The columns are cause (synchronisation or allocation), name, calls, ns; the longest first.
    """
    calls = _waiting_calls(attribution)
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


@once_for_each
def _waiting_calls(attribution: Attribution) -> pl.DataFrame:
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
    """The launch calls of each process that take less than `_DISPATCH_NS`: start, end."""
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
    return queues.filter(pl.col("end") - pl.col("start") >= _DISPATCH_NS)


def _late(device: Device, work: pl.DataFrame) -> pl.DataFrame:
    """The activities with a known launch that start after a gap of at least `_DISPATCH_NS`, and the first activity."""
    ran = merged(intervals_of(work))
    gaps = ran.select(started="start", done=pl.col("end").shift(1))
    gaps = gaps.filter((pl.col("started") - pl.col("done") >= _DISPATCH_NS).fill_null(True))
    launched = work.select("correlation", "start", "launched").drop_nulls()
    rows = launched.join(gaps, left_on="start", right_on="started")
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
    launched = here.select("correlation", "launched", "start")
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
        "pending": lambda: _short(launching(launched.join(waits.select("correlation"), on="correlation", how="anti"))),
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
    return spans.filter(pl.col("end") - pl.col("start") < _DISPATCH_NS)


_SLICE: Final = 1 << 20
_NODES_PER_LEVEL: Final = 1000
"""Number of nodes that Python sums in the time of one vectorised pass over a level of the tree."""


def activities(attribution: Attribution, columns: Iterable[str]) -> pl.DataFrame:
    """Return columns of `annot.attribution.gpu_time.Attributor.of` of all attributed GPU activities, in their order."""
    names, texts = list(columns), cs.by_dtype(pl.String, pl.Categorical, pl.Enum)
    # Categoricals store each distinct text once and keep their meaning across blocks.
    blocks = attribution.activity_blocks()
    kept = [block.select(names).with_columns(texts.cast(pl.Categorical)) for block in blocks]
    return pl.concat(kept, how="vertical_relaxed") if kept else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))


def attributed_kernels(attribution: Attribution, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the attributed kernels with `row` (Int64), their row in the table of kernels of the profile."""
    placed = attribution.attributor.of(kernels_as_work(kernels).with_row_index("row")).filter(~pl.col("left_out"))
    return placed.with_columns(pl.col("row").cast(pl.Int64))


def range_self_times(attribution: Attribution) -> pl.DataFrame:
    """Return node, process_code, step and time_ns, the self time of nested ranges; several rows may have one node."""
    forest = attribution.forest
    process = forest.threads.table["process_code"]
    ranges = forest.tree.select("thread", "start", node="path", time_ns=self_times(forest))
    sums = []
    for block in ranges.iter_slices(_SLICE):  # slices keep temporary columns small
        codes = process.gather(block["thread"])
        rows = block.select(codes, attribution.steps.at(codes, block["start"]).alias("step"), "node", "time_ns")
        sums.append(rows.group_by("node", "process_code", "step").agg(pl.col("time_ns").sum()))
    schema = dict.fromkeys(("node", "process_code", "step"), pl.Int32) | {"time_ns": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema), *sums])


def sums_by_layer(attribution: Attribution, values: pl.DataFrame, *also: str) -> pl.DataFrame:
    """Return inclusive sums of numbers of nodes by layer, module class, phase and the columns of `also`."""
    sums = sums_by_group(attribution, values, attribution.forest.nodes.keys, *also)
    return pl.concat([attribution.forest.layers()[sums["group"]], sums.drop("group")], how="horizontal")


def sums_by_group(attribution: Attribution, values: pl.DataFrame, of_node: list[int], *also: str) -> pl.DataFrame:
    """Return inclusive sums of node values by group; a group nested in itself counts once.

    The values are node, the columns of `also`, and numbers to sum. The group of a node is -1 for none. The result has
    group (Int32), the columns of `also` and the numbers.
    """
    nodes = attribution.forest.nodes
    numbers = [name for name in values.columns if name not in ("node", *also)]
    outermost = nodes.outermost(of_node)
    # Mapping values to the closest outermost node around them leaves few nodes to sum when layers are nested in
    # themselves.
    nearest: list[int] = []
    for node, parent in enumerate(nodes.parents):
        nearest.append(node if outermost[node] else NONE if parent == NONE else nearest[parent])
    exclusive = values.filter(pl.col("node") != NONE)
    closest = pl.Series("node", nearest, pl.Int32).gather(exclusive["node"])
    exclusive = exclusive.with_columns(closest).filter(pl.col("node") != NONE)
    inclusive = _inclusive(nodes, exclusive.group_by("node", *also).agg(pl.col(numbers).sum()), also)
    rows = inclusive.filter(pl.Series(outermost, dtype=pl.Boolean).gather(inclusive["node"]))
    group = pl.Series("group", of_node, pl.Int32).gather(rows["node"])
    return rows.drop("node").with_columns(group).group_by("group", *also).agg(pl.col(numbers).sum())


def _inclusive(nodes: Nodes, own: pl.DataFrame, also: tuple[str, ...]) -> pl.DataFrame:
    """Add the values of descendants to each node: level by level, or node by node in deep trees."""
    depths: list[int] = []
    for parent in nodes.parents:
        depths.append(0 if parent == NONE else depths[parent] + 1)
    depth = pl.Series("depth", depths, pl.Int32).gather(own["node"])
    deepest = depth.max()
    if not isinstance(deepest, int):
        return own
    if not also:
        return _sum_in_one_pass(nodes, own)
    if own.select(also).n_unique() * len(nodes) > _NODES_PER_LEVEL * deepest:
        return _sum_by_level(nodes, own.with_columns(depth), also)
    tables = []
    for values, rows in own.partition_by(also, as_dict=True, include_key=False).items():
        group = [pl.lit(value, own.schema[name]).alias(name) for name, value in zip(also, values, strict=True)]
        tables.append(_sum_in_one_pass(nodes, rows).with_columns(group))
    return pl.concat(tables)


def _sum_in_one_pass(nodes: Nodes, own: pl.DataFrame) -> pl.DataFrame:
    """Return node and inclusive values for trees of any depth; null: the value occurs neither here nor below."""
    numbers = own.columns[1:]
    rows = pl.DataFrame({"node": range(len(nodes))}, schema={"node": pl.Int32})
    rows = rows.join(own, on="node", how="left", maintain_order="left")
    for name in numbers:
        totals = rows[name].to_list()
        for node in range(len(totals) - 1, -1, -1):
            parent = nodes.parents[node]
            if parent != NONE and totals[node] is not None:
                totals[parent] = totals[node] + (totals[parent] or 0)
        rows = rows.with_columns(pl.Series(name, totals, rows.schema[name]))
    return rows.filter(pl.any_horizontal(pl.col(numbers).is_not_null()))


def _sum_by_level(nodes: Nodes, own: pl.DataFrame, also: tuple[str, ...]) -> pl.DataFrame:
    """The same from the deepest level upwards; the values also contain the depth of each node."""
    parent = pl.Series(nodes.parents, dtype=pl.Int32)
    of_level = own.partition_by("depth", as_dict=True, include_key=False)
    carried = own.clear().drop("depth")
    done = []
    for level in range(max(level for (level,) in of_level), NONE, -1):
        every = pl.concat([carried, of_level.pop((level,), carried.clear())])
        done.append(every.group_by("node", *also).agg(pl.all().sum()))
        carried = done[-1].with_columns(parent.gather(done[-1]["node"]).alias("node"))
    return pl.concat(done)


def device_idle(attribution: Attribution) -> pl.DataFrame | None:
    """Return the idle time of devices before the GPU activities of each layer; None: CPU times are unknown.

    A gap begins when the device has finished its queue, or when the CPU enters the innermost range around the next
    launch, if that is later. It ends at the start of the next GPU activity and counts once, to the layer of that
    activity. Earlier idle time, such as waiting for data, does not count. The columns are layer, module, phase,
    gpu_idle_ns, gpu_launch_ns (both inclusive).
    """
    idle = idle_of_nodes(attribution)
    return None if idle is None else sums_by_layer(attribution, idle)


def idle_of_nodes(attribution: Attribution) -> pl.DataFrame | None:
    """Return node (Int32), gpu_idle_ns of `device_idle` and gpu_launch_ns, its part due to launch latency.

    gpu_launch_ns is the part of a gap outside API calls that synchronise or allocate memory, if that part is shorter
    than `_DISPATCH_NS`.
    """
    if not known(attribution.meta):
        return None
    waits = _waiting_calls(attribution).partition_by("process", as_dict=True)
    entered = attribution.forest.tree["start"]
    tables = [pl.DataFrame(schema={"node": pl.Int32, "gpu_idle_ns": pl.Int64, "gpu_launch_ns": pl.Int64})]
    columns = (pl.col("process", "device", "start", "end").cast(pl.Int64), pl.col("range", "node").cast(pl.Int32))
    timed = (block.select(columns).drop_nulls(["start", "end"]) for block in attribution.activity_blocks())
    devices = by_device(timed)
    for process, device in list(devices):
        work = pl.concat(devices.pop((process, device)))
        spans = merged(waits[process,]) if (process,) in waits else None
        tables.append(_idle(work if work["start"].is_sorted() else work.sort("start"), entered, spans))
    return pl.concat(tables)


def _idle(work: pl.DataFrame, entered: pl.Series, waits: pl.DataFrame | None) -> pl.DataFrame:
    """The rows of `idle_of_nodes` for the GPU activities of one device, sorted by start."""
    since = pl.min_horizontal(pl.max_horizontal(pl.col("end").cum_max().shift(1), "entered"), "start")
    within_ranges = pl.when(pl.col("range") >= 0).then("range")
    began = entered.gather(work.select(within_ranges).to_series()).alias("entered")
    work = work.select("start", "end", "node", began).with_columns(
        since.alias("since"), done=pl.col("end").cum_max().shift(1)
    )
    work = work.drop_nulls(["done", "entered"]).select("start", "since", "node")
    idle = work.select("node", gpu_idle_ns=pl.col("start") - pl.col("since"))
    launch = idle["gpu_idle_ns"]
    if waits is not None:
        launch = launch - (within(work["start"], waits) - within(work["since"], waits))
    due = pl.select(pl.when(launch < _DISPATCH_NS).then(launch).otherwise(0)).to_series()
    return idle.with_columns(due.alias("gpu_launch_ns")).group_by("node").agg(pl.all().sum())


def by_layer_and_step(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, module class, phase and step, in order of steps; sums over all processes.

    Args:
        attribution: the profile.

    Returns:
        layer, module, phase; step (Int64); host_ns, host_self_ns, gpu_ns, gpu_self_ns (Int64): as in
        `annot.attribution.by_layer`, for nested ranges; host times are null if the profile does not contain CPU times.
        A range counts to the step in which it starts, a GPU activity to the step in which it is launched.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> by_layer_and_step(attribute(Profile.build({}))).columns[3:]
        ['step', 'host_ns', 'host_self_ns', 'gpu_ns', 'gpu_self_ns']
    """
    times = self_times_by_step(attribution)
    rows = pl.DataFrame(schema=dict.fromkeys(KEY, pl.String) | {"step": pl.Int64})
    for name, own in times.items():
        sums = _sums_by_step(attribution, own, name)
        rows = rows.join(sums, on=[*KEY, "step"], how="full", coalesce=True)
    missing = [pl.lit(None, pl.Int64).alias(f"host_{end}") for end in ("ns", "self_ns") if "host" not in times]
    known_columns = [pl.col(f"{name}_{end}").fill_null(0) for name in times for end in ("ns", "self_ns")]
    rows = rows.with_columns(*known_columns, *missing).sort("step", *KEY)
    return rows.select(*KEY, "step", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")


def self_times_by_step(attribution: Attribution) -> dict[str, pl.DataFrame]:
    """Return node, step (Int64) and time_ns, the self time: a table for ``gpu``, and for ``host`` if it is known."""
    sums = [pl.DataFrame(schema={"node": pl.Int32, "step": pl.Int32, "time_ns": pl.Int64})]
    gpu_ns = pl.col("gpu_ns").sum().alias("time_ns")
    sums += [block.group_by("node", "step").agg(gpu_ns) for block in attribution.activity_blocks()]
    times = {"gpu": pl.concat(sums)}
    if known(attribution.meta):
        times["host"] = range_self_times(attribution)
    for name, rows in times.items():
        rows = rows.filter((pl.col("step") >= 0) & (pl.col("node") >= 0))
        rows = rows.select("node", "time_ns", step=pl.col("step").cast(pl.Int64))
        times[name] = rows.group_by("node", "step").agg(pl.col("time_ns").sum())
    return times


def _sums_by_step(attribution: Attribution, times: pl.DataFrame, name: str) -> pl.DataFrame:
    """Total and self time of each layer and step."""
    own = attribution.forest.layers_of_nodes()[times["node"]].hstack(times.select("step", "time_ns"))
    own = own.group_by(*KEY, "step").agg(pl.col("time_ns").sum().alias(f"{name}_self_ns"))
    every = sums_by_layer(attribution, times, "step").rename({"time_ns": f"{name}_ns"})
    return every.join(own, on=[*KEY, "step"], how="left")


def has_gpu_activities(attribution: Attribution) -> bool:
    """Return whether a profile contains GPU activities."""
    return bool(attribution.nodes.select((pl.col("kernels") + pl.col("copies")).sum() > 0).item())


def over(value: str, whole: str) -> pl.Expr:
    """Return the ratio of two columns, null where the second is 0."""
    return pl.when(pl.col(whole) > 0).then(pl.col(value) / pl.col(whole))
