"""Details of layers: all metrics of each layer, and the spans of its calls on the GPU.

A span lasts from the first to the last GPU activity of a call on a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.gpu_activities import activities
from annot.analyze.hardware_counters import default_peaks, layer_counters
from annot.analyze.kernel_names import layer_kernels
from annot.analyze.roofline import layer_roofline
from annot.analyze.step_parts import calls_of
from annot.analyze.tensor_cores import layer_tensor_cores, on_devices
from annot.analyze.trace_events import Tracks, range_blocks
from annot.analyze.work.layer_work import by_layer_with_work
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known
from annot.attribution.column_ops import NONE, outermost
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer
from annot.attribution.nesting import KEY

_CLOCKS: Final = ("host", "gpu")
_EXTREMES: Final = ("min", "max", "sum")
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


def by_detail(attribution: Attribution) -> pl.DataFrame:
    """Return all that is known about each layer, a row per layer, module class and phase.

    Returns:
        layer, module, phase, calls; tc_eligible, tc_used, reason: see `annot.analyze.tensor_cores`; host_ns, gpu_ns
        (total time) and their mean, min and max over the calls, where min and max are null if the calls do not add up
        to the total time, as for a layer with layers inside that run outside its calls; gpu_self_ns, of which tc_ns in
        kernels on Tensor Cores, matrix_ns in matrix multiplications and outside_ns in other kernels, listed in outside;
        launch_ns: CPU time of the API calls that launched the GPU activities of the layer itself; shapes. Then the
        other columns of `annot.correlate`, of `annot.analyze.roofline.layer_roofline` with the peaks of the profile's
        device, and, if the profile has them, of `annot.analyze.hardware_counters.layer_counters`.
    """
    rows = _dlprof(attribution)
    tables = [by_layer_with_work(attribution), layer_roofline(attribution, default_peaks(attribution)).drop("self_ns")]
    if (counters := layer_counters(attribution)) is not None:
        tables.append(counters)
    for table in tables:
        new = [name for name in table.columns if name not in rows.columns]
        rows = rows.join(table.select(*KEY, *new), on=KEY, how="left", maintain_order="left")
    return on_devices(rows, attribution)


def _dlprof(attribution: Attribution) -> pl.DataFrame:
    """Return DLProf's detailed report: a row per layer, module class and phase."""
    rows = by_layer(attribution).select(*KEY, "calls", "host_ns", "gpu_ns", "shapes")
    kernels = layer_kernels(attribution).select(*KEY, "matrix_ns", "outside_ns", "outside")
    for table in (layer_tensor_cores(attribution), kernels, _extremes(attribution), _launch_times(attribution)):
        rows = rows.join(table, on=KEY, how="left", maintain_order="left")
    calls = pl.when(pl.col("calls") > 0).then("calls")
    means = [(pl.col(f"{of}_ns") // calls).alias(f"{of}_mean_ns") for of in _CLOCKS]
    extremes = [
        pl.when(pl.col(f"{of}_sum_ns") == pl.col(f"{of}_ns")).then(f"{of}_{what}_ns").alias(f"{of}_{what}_ns")
        for of in _CLOCKS
        for what in ("min", "max")
    ]
    return rows.with_columns(*means, *extremes).select(
        *KEY,
        "calls",
        "tc_eligible",
        "tc_used",
        *(f"{of}{what}_ns" for of in _CLOCKS for what in ("", "_mean", "_min", "_max")),
        "gpu_self_ns",
        "tc_ns",
        "matrix_ns",
        "outside_ns",
        "outside",
        "launch_ns",
        "reason",
        "shapes",
    )


def _extremes(attribution: Attribution) -> pl.DataFrame:
    """The shortest and longest call of each layer and the sum of its calls, in CPU time and in GPU time."""
    forest = attribution.forest
    self_ns = attribution.range_work("gpu_self_ns").to_series()
    tree = forest.tree.select("path", "parent", "start", "end", gpu_ns=column_ops.fold(forest.tree["parent"], self_ns))
    keys, length = pl.Series("key", forest.nodes.keys, pl.Int64), (pl.col("end") - pl.col("start")).alias("host_ns")
    crossing = forest.crossing.select(length, gpu_ns=attribution.crossing_gpu_ns)
    crossing_key = forest.labels["key"].cast(pl.Int64).gather(forest.crossing["label"]).alias("key")
    extremes = [_call_extremes(crossing.with_columns(crossing_key))]
    for block in tree.iter_slices(_SLICE):
        outer = tree["path"].gather(column_ops.known(block["parent"]))
        calls = block.filter((block["path"] != column_ops.NONE) & block["path"].ne_missing(outer))
        extremes.append(_call_extremes(calls.select(length, "gpu_ns", keys.gather(calls["path"]))))
    merged = (getattr(pl.col(f"{of}_{what}_ns"), what)() for of in _CLOCKS for what in _EXTREMES)
    rows = pl.concat(extremes).drop_nulls("key").group_by("key").agg(merged)
    if not known(attribution.meta):
        rows = rows.with_columns(pl.lit(None, pl.Int64).alias(f"host_{what}_ns") for what in _EXTREMES)
    return forest.layers()[rows["key"]].hstack(rows.drop("key"))


def _call_extremes(calls: pl.DataFrame) -> pl.DataFrame:
    """The extremes of some calls by key; the table has key, host_ns and gpu_ns."""
    times = {f"{of}_{what}_ns": getattr(pl.col(f"{of}_ns"), what)() for of in _CLOCKS for what in _EXTREMES}
    return calls.group_by("key").agg(**times)


def _launch_times(attribution: Attribution) -> pl.DataFrame:
    """The time of the API calls of each layer; a call with several GPU activities (a CUDA graph) counts once."""
    calls, keys = calls_of(attribution), attribution.forest.layers_of_nodes()
    first = pl.Series("node", [None], pl.Int32).new_from_index(0, len(calls.ns))
    for block in attribution.activity_blocks():
        row = calls.rows(block["process"], block["correlation"])
        launches = pl.DataFrame({"row": row, "node": block["node"]}).drop_nulls("row").unique("row", keep="first")
        new = launches.filter(first.gather(launches["row"]).is_null())
        first = first.scatter(new["row"], new["node"])
    sums = pl.DataFrame({"node": first, "launch_ns": calls.ns}).drop_nulls().group_by("node").agg(pl.all().sum())
    return keys[sums["node"]].hstack(sums).group_by(KEY).agg(pl.col("launch_ns").sum())


SPANS: Final = {
    "track": pl.Int32,  # number in `Spans.tracks`; spans on a track are nested
    "layer": pl.String,
    "module": pl.String,
    "phase": pl.String,
    "shapes": pl.String,  # of the inputs: of the call, or of all calls of the layer if they are equal; else null
    "number": pl.Int64,  # of the epoch or batch; null: other ranges
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns
    "time_ns": pl.Int64,  # sum of its GPU activities; duration of the range without GPU activities
    "kernels": pl.Int64,  # number of kernels
    "flops": pl.Int64,  # of one call; null: not counted, or the shapes of the calls differ
    "bound": pl.String,  # this and roof_share: of all calls, see `annot.analyze.roofline.layer_roofline`
    "roof_share": pl.Float64,
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of layers.

    Args:
        rows: columns of `SPANS`, sorted by track and start, outer spans before inner ones.
        tracks: the streams or threads of the rows.
        on_device: True: spans of GPU activities; False: ranges of threads.
    """

    rows: pl.DataFrame
    tracks: Tracks
    on_device: bool


def spans(attribution: Attribution) -> Spans:
    """Return the spans of layers, phases and loops.

    A span on a stream lasts from the first start to the last end of consecutive GPU activities of one call. Activities
    of other calls in between split a call into several spans. Layers nested deeper than 64 levels are merged into their
    innermost enclosing span. In a profile without GPU activities the spans are the ranges of threads.

    Args:
        attribution: the profile; activities and ranges outside the selected steps are skipped.

    Example:
        >>> from annot.profile import Profile
        >>> from annot.attribution.attribute import attribute
        >>> range_ = {"id": 1, "process": 1, "thread": 1, "domain": "annot", "text": "fc Linear |fwd", "kind": "push"}
        >>> ranges = pl.DataFrame([range_ | {"start": 0, "end": 900}])
        >>> spans(attribute(Profile.build({}, ranges=ranges))).rows.select("layer", "phase", "end").row(0)
        ('fc', 'forward', 900)
    """
    tracks = Tracks(attribution.meta)
    work = activities(attribution, _WORK).drop_nulls("start").with_columns(pl.col(_PLACES).cast(pl.Int64))
    rows = _activity_spans(attribution, work, tracks) if work.height else _range_spans(attribution, tracks)
    named = _named(attribution, rows).sort("track", "start", "depth", maintain_order=True)
    named = named.join(_facts(attribution), on=list(KEY), how="left", maintain_order="left")
    named = named.with_columns(pl.coalesce("shapes", "only_shapes").alias("shapes"))
    return Spans(named.select(pl.col(name).cast(dtype) for name, dtype in SPANS.items()), tracks, work.height > 0)


_DEEPEST: Final = 64
"""Maximum nesting depth of spans. Each level adds a row per activity, and charts show fewer levels."""
_PLACES: Final = ("process", "device", "stream")
_WORK: Final = (*_PLACES, "start", "gpu_ns", "kernel", "range", "node")
_SPAN: Final = {
    "track": pl.Int32,
    "node": pl.Int32,
    "call": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
    "time_ns": pl.Int64,
    "kernels": pl.Int64,
    "depth": pl.Int32,
    "own": pl.Boolean,
}


def _activity_spans(attribution: Attribution, work: pl.DataFrame, tracks: Tracks) -> pl.DataFrame:
    """Merge neighbours of the same call on a track, level by level from the innermost layers outwards."""
    work = work.rename({"gpu_ns": "length"}).sort("start", maintain_order=True)
    nodes, calls = _nodes_and_calls(attribution)
    node = nodes["shown"].gather(work["node"])
    rows = work.select(
        "start",
        tracks.of_overlapping("stream", work),
        node.alias("node"),
        end=pl.col("start") + pl.col("length"),
        time_ns="length",
        kernels=pl.col("kernel").cast(pl.Int64),
        depth=_gather(nodes["depth"], node),
        call=_gather(calls["call"], work["range"]),
    ).sort("track", "start", maintain_order=True)
    levels = [pl.DataFrame(schema=_SPAN)]
    deepest = rows["depth"].max()
    for depth in range(deepest if isinstance(deepest, int) else 0, 0, -1):
        # Activities of a CUDA graph, for example, are launched in a call of another layer.
        own = (calls["node"].gather(rows["call"]) == rows["node"]).fill_null(False)
        rows = _merged(rows.with_columns(own.alias("own")))
        here = pl.col("depth") == depth
        levels.append(rows.filter(here).select(*_SPAN))
        outer = rows.select(node=_gather(nodes["parent"], rows["node"]), call=calls["above"].gather(rows["call"]))
        rows = rows.with_columns(
            node=pl.when(here).then(outer["node"]).otherwise("node"),
            call=pl.when(here & pl.col("own")).then(outer["call"]).otherwise("call"),
            depth=pl.when(here).then(depth - 1).otherwise("depth").cast(pl.Int32),
        )
    return pl.concat(levels)


def _merged(rows: pl.DataFrame) -> pl.DataFrame:
    """Merge neighbours of the same layer that were launched in the same call, of this or another layer."""
    same = pl.struct("track", "node", "call")
    groups = rows.group_by(same.rle_id().alias("run"), maintain_order=True)
    return groups.agg(
        pl.col("track", "node", "call", "own", "depth", "start").first(),
        pl.col("end").max(),
        pl.col("time_ns", "kernels").sum(),
    ).drop("run")


def _range_spans(attribution: Attribution, tracks: Tracks) -> pl.DataFrame:
    """The outermost range of each call, on the track of its thread or process; empty if CPU times are unknown."""
    path = attribution.forest.tree["path"]
    nodes, calls = _nodes_and_calls(attribution)
    tables = [pl.DataFrame(schema=_SPAN)]
    for kind, block in range_blocks(attribution):
        if kind == "crossing":
            continue
        node = path.gather(block["range"]).alias("node")
        rows = block.select(
            "start",
            tracks.of(kind, block),
            node,
            call="range",
            end=pl.col("start") + pl.col("length"),
            depth=_gather(nodes["depth"], node),
            time_ns="length",
            kernels=pl.lit(0),
            own=pl.lit(True),
        )
        outermost = calls["call"].gather(rows["call"]) == rows["call"]
        rows = rows.filter(outermost & (node != NONE))
        tables.append(rows.select(pl.col(name).cast(dtype) for name, dtype in _SPAN.items()))
    return pl.concat(tables)


def _gather(values: pl.Series, rows: pl.Series) -> pl.Series:
    """Values by row; null for row -1."""
    return values.gather(column_ops.known(rows))


def _nodes_and_calls(attribution: Attribution) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return tables of the nodes and of the ranges in the tree, with Int32 columns.

    For each node: parent; depth (keys in its chain, from 1); shown (the node whose span includes it).
    For each range: node; call (outermost of directly nested ranges of a node); above (outer call).
    """
    depths: list[int] = []
    shown: list[int] = []
    for node, parent in enumerate(attribution.forest.nodes.parents):
        depths.append(1 if parent == NONE else depths[parent] + 1)
        shown.append(node if depths[node] <= _DEEPEST else shown[parent])
    nodes = {"parent": attribution.forest.nodes.parents, "depth": depths, "shown": shown}
    table = pl.DataFrame(nodes, dict.fromkeys(nodes, pl.Int32))
    tree = attribution.forest.tree
    of_range, around = _gather(table["shown"], tree["path"]).fill_null(NONE), tree["parent"]
    call = outermost(around, (_gather(of_range, around) == of_range).fill_null(False))
    above = _gather(call, around.gather(call))
    return table, pl.DataFrame({"node": of_range, "call": call, "above": above})


def _named(attribution: Attribution, rows: pl.DataFrame) -> pl.DataFrame:
    """Add layer, module, phase, shapes and number to the spans; drop unattributed ones."""
    forest = attribution.forest
    call = rows.select(pl.when("own").then("call")).to_series()
    labels = forest.tree["label"].gather(call)
    parsed = pl.DataFrame([forest.labels["shapes"].gather(labels), forest.labels["number"].gather(labels)])
    return pl.concat([rows, forest.layers_of_nodes()[rows["node"]], parsed], how="horizontal").filter(
        pl.col("layer") != UNATTRIBUTED
    )


def _facts(attribution: Attribution) -> pl.DataFrame:
    """For each layer: flops, bound, roof_share, and only_shapes, the input shapes if all its calls share them."""
    rows = by_layer(attribution).select(*KEY, "calls", "shapes")
    only = pl.when(pl.col("shapes").list.len() == 1).then(pl.col("shapes").list.first()).alias("only_shapes")
    forward = rows.filter(pl.col("phase") == "forward").select("layer", "module", only)
    limits = layer_roofline(attribution, default_peaks(attribution)).select(*KEY, "flops", "bound", "roof_share")
    rows = rows.join(limits, on=list(KEY), how="left").join(forward, on=["layer", "module"], how="left")
    constant = pl.col("only_shapes").is_not_null() & (pl.col("calls") > 0)
    flops = pl.when(constant).then((pl.col("flops") / pl.col("calls")).round())
    return rows.select(*KEY, flops.alias("flops"), "bound", "roof_share", "only_shapes")
