"""Layer calls projected onto the GPU: the time from the first to the last activity of a call on each stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.gpu_activities import KEY, activities
from annot.analyze.peak_sources import default_peaks
from annot.analyze.roofline import layer_roofline
from annot.analyze.trace_events import range_blocks
from annot.analyze.tracks import Tracks
from annot.attribution import UNATTRIBUTED, Attribution, by_layer
from annot.attribution.column_ops import NONE, outermost

__all__ = ["SPANS", "Spans", "spans"]

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
        >>> from annot.attribution import attribute
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
    "track": pl.Int32, "node": pl.Int32, "call": pl.Int32, "start": pl.Int64, "end": pl.Int64, "time_ns": pl.Int64,
    "kernels": pl.Int64, "depth": pl.Int32, "own": pl.Boolean,
}  # fmt: skip


def _activity_spans(attribution: Attribution, work: pl.DataFrame, tracks: Tracks) -> pl.DataFrame:
    """Merge neighbours of the same call on a track, level by level from the innermost layers outwards."""
    work = work.rename({"gpu_ns": "length"}).sort("start", maintain_order=True)
    nodes, calls = _nodes_and_calls(attribution)
    node = nodes["shown"].gather(work["node"])
    rows = work.select(
        "start", tracks.of_overlapping("stream", work), node.alias("node"), end=pl.col("start") + pl.col("length"),
        time_ns="length", kernels=pl.col("kernel").cast(pl.Int64), depth=_gather(nodes["depth"], node),
        call=_gather(calls["call"], work["range"]),
    ).sort("track", "start", maintain_order=True)  # fmt: skip
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
            "start", tracks.of(kind, block), node, call="range", end=pl.col("start") + pl.col("length"),
            depth=_gather(nodes["depth"], node), time_ns="length", kernels=pl.lit(0), own=pl.lit(True),
        )  # fmt: skip
        outermost = calls["call"].gather(rows["call"]) == rows["call"]
        rows = rows.filter(outermost & (node != NONE))
        tables.append(rows.select(pl.col(name).cast(dtype) for name, dtype in _SPAN.items()))
    return pl.concat(tables)


def _gather(values: pl.Series, rows: pl.Series) -> pl.Series:
    """Values by row; null for row -1."""
    return values.gather(pl.select(pl.when(rows != NONE).then(rows)).to_series())


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
