"""When each layer was at work on each stream of a device: its calls, projected onto what they had launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.bottleneck import default_peaks
from annot.analyze.pieces import KEY, pieces
from annot.analyze.process_lanes import process_lanes
from annot.analyze.roofline import layer_roofline
from annot.analyze.tracks import Tracks
from annot.correlate import UNATTRIBUTED, Attribution, by_layer
from annot.correlate.host_times import known
from annot.correlate.sweep import NONE

__all__ = ["SPANS", "Spans", "spans"]

SPANS: Final = {
    "track": pl.Int32,  # number in `Spans.tracks`; spans of a track nest
    "layer": pl.String,
    "module": pl.String,
    "phase": pl.String,
    "shapes": pl.String,  # of the inputs, if the call or all calls of the layer, forward or not, say the same; or null
    "number": pl.Int64,  # of the epoch or batch; null: it is none
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns
    "time_ns": pl.Int64,  # of the device work in it, added up; of the range if these are ranges
    "kernels": pl.Int64,  # kernels in it
    "flops": pl.Int64,  # that a call takes; null: not counted, or not all calls of the layer have the same shapes
    "bound": pl.String,  # this and the next as `annot.analyze.roofline.layer_roofline` says of all calls
    "roof_share": pl.Float64,
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Layers in time.

    Args:
        rows: as `SPANS`, by track and start, the outer before the inner.
        tracks: the streams that the rows are on, or the threads.
        on_device: whether these are spans of device work; else they are ranges of the host.
    """

    rows: pl.DataFrame
    tracks: Tracks
    on_device: bool


def spans(attribution: Attribution) -> Spans:
    """Return when each layer, phase and loop was at work.

    On a stream a span is what lies between the first start and the last end of work of one call with nothing of
    anything else in between; so a call whose work others interrupt has several. What lies in more than 64 layers has
    no span of its own. Of a profile without device work the spans are the ranges on the host.

    Args:
        attribution: the profile; what takes no part has no span.

    Example:
        >>> from annot.profile import Profile
        >>> from annot.correlate import attribute
        >>> range_ = {"id": 1, "process": 1, "thread": 1, "domain": "annot", "text": "fc Linear |fwd", "kind": "push"}
        >>> ranges = pl.DataFrame([range_ | {"start": 0, "end": 900}])
        >>> spans(attribute(Profile.build({}, ranges=ranges))).rows.select("layer", "phase", "end").row(0)
        ('fc', 'forward', 900)
    """
    tracks = Tracks(attribution.meta)
    work = pieces(attribution, _WORK).drop_nulls("start").with_columns(pl.col(_PLACES).cast(pl.Int64))
    if work.height:
        rows = _of_work(attribution, work, tracks)
    elif known(attribution.meta):
        rows = _of_ranges(attribution, tracks)
    else:
        rows = pl.DataFrame(schema=_SPAN)
    named = _named(attribution, rows).sort("track", "start", "depth", maintain_order=True)
    named = named.join(_facts(attribution), on=list(KEY), how="left", maintain_order="left")
    named = named.with_columns(pl.coalesce("shapes", "only_shapes").alias("shapes"))
    return Spans(named.select(pl.col(name).cast(dtype) for name, dtype in SPANS.items()), tracks, work.height > 0)


_DEEPEST: Final = 64
"""Layers inside each other that have spans of their own; what lies deeper counts to the innermost of them. No picture
shows more, and each takes as many rows again."""
_PLACES: Final = ("process", "device", "stream")
_WORK: Final = (*_PLACES, "start", "gpu_ns", "kernel", "range", "node")
_SPAN: Final = {
    "track": pl.Int32, "node": pl.Int32, "call": pl.Int32, "start": pl.Int64, "end": pl.Int64, "time_ns": pl.Int64,
    "kernels": pl.Int64, "depth": pl.Int32, "own": pl.Boolean,
}  # fmt: skip


def _of_work(attribution: Attribution, work: pl.DataFrame, tracks: Tracks) -> pl.DataFrame:
    """Merge neighbours on a track that are of one call, level by level, from the innermost layers outwards."""
    work = work.sort("start", maintain_order=True)
    work = work.with_columns(tracks.of_work(work.rename({"gpu_ns": "length"})))
    nodes = _depths(attribution)
    calls = _calls(attribution, nodes["shown"])
    work = work.with_columns(nodes["shown"].gather(work["node"]).alias("node"))
    rows = work.select(
        "track", "node", "start", end=pl.col("start") + pl.col("gpu_ns"), time_ns="gpu_ns",
        kernels=pl.col("kernel").cast(pl.Int64), depth=_gather(nodes["depth"], work["node"]),
        call=calls["call"].gather(_known(work["range"])),
    ).sort("track", "start", maintain_order=True)  # fmt: skip
    found = [pl.DataFrame(schema=_SPAN)]
    deepest = rows["depth"].max()
    for depth in range(deepest if isinstance(deepest, int) else 0, 0, -1):
        rows = _merged(rows.with_columns(_is_own(rows, calls)))
        here = pl.col("depth") == depth
        found.append(rows.filter(here).select(*_SPAN))
        outer = rows.select(node=_gather(nodes["parent"], rows["node"]), call=calls["above"].gather(rows["call"]))
        rows = rows.with_columns(
            node=pl.when(here).then(outer["node"]).otherwise("node"),
            call=pl.when(here & pl.col("own")).then(outer["call"]).otherwise("call"),
            depth=pl.when(here).then(depth - 1).otherwise("depth").cast(pl.Int32),
        )
    return pl.concat(found)


def _merged(rows: pl.DataFrame) -> pl.DataFrame:
    """Neighbours of one layer that were launched in one call, of that layer or another."""
    same = pl.struct("track", "node", "call")
    groups = rows.group_by(same.rle_id().alias("run"), maintain_order=True)
    return groups.agg(
        pl.col("track", "node", "call", "own", "depth", "start").first(), pl.col("end").max(),
        pl.col("time_ns", "kernels").sum(),
    ).drop("run")  # fmt: skip


def _is_own(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Whether the call is one of the layer: work of a CUDA graph is launched in another, for one."""
    return (calls["node"].gather(rows["call"]) == rows["node"]).fill_null(False).alias("own")


def _known(rows: pl.Series) -> pl.Series:
    """Rows with null for -1."""
    return pl.select(pl.when(rows != NONE).then(rows)).to_series()


def _gather(values: pl.Series, rows: pl.Series) -> pl.Series:
    """Values by row; null for row -1."""
    return values.gather(_known(rows))


def _depths(attribution: Attribution) -> pl.DataFrame:
    """Of each node its parent and how many keys its chain has: parent, depth; shown: the node whose span it is in."""
    parents = attribution.forest.nodes.parents
    depths: list[int] = []
    shown: list[int] = []
    for node, parent in enumerate(parents):
        depths.append(1 if parent == NONE else depths[parent] + 1)
        shown.append(node if depths[node] <= _DEEPEST else shown[parent])
    columns = {"parent": parents, "depth": depths, "shown": shown}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int32))


def _calls(attribution: Attribution, shown: pl.Series) -> pl.DataFrame:
    """Of each range in the tree: node; call: the range that began it, for what lies in it can be of the same node;
    above: the call around that one; null: none."""
    tree = attribution.forest.tree
    nodes = _gather(shown, tree["path"]).fill_null(NONE).alias("node")
    parents, of_range = tree["parent"].to_list(), nodes.to_list()
    calls: list[int] = []
    above: list[int | None] = []
    for row, parent in enumerate(parents):
        inside = parent != NONE and of_range[parent] == of_range[row]
        calls.append(calls[parent] if inside else row)
        above.append(above[parent] if inside else None if parent == NONE else calls[parent])
    columns = {"node": nodes, "call": calls, "above": above}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int32))


def _of_ranges(attribution: Attribution, tracks: Tracks) -> pl.DataFrame:
    """The ranges that begin a call, on the tracks of their threads and processes."""
    forest = attribution.forest
    tree, nodes = forest.tree, _depths(attribution)
    calls = _calls(attribution, nodes["shown"])
    where = forest.threads.table.select("process", "thread")[tree["thread"].head(forest.trunk)]
    track = pl.concat([tracks.of_threads(where), tracks.of_layers(process_lanes(forest))]).alias("track")
    depth = _gather(nodes["depth"], tree["path"]).alias("depth")
    rows = tree.select(
        track, "start", "end", depth, node="path", call=pl.int_range(pl.len(), dtype=pl.Int32),
        time_ns=pl.col("end") - pl.col("start"), kernels=pl.lit(0, pl.Int64), own=pl.lit(True),
    )  # fmt: skip
    return rows.filter((calls["call"] == rows["call"]) & (pl.col("node") != NONE)).select(*_SPAN)


def _named(attribution: Attribution, rows: pl.DataFrame) -> pl.DataFrame:
    """Say what the spans are of, without what could not be attributed."""
    forest = attribution.forest
    keys = pl.DataFrame(forest.keys.names, schema=dict.fromkeys(KEY, pl.String), orient="row")
    of_node = pl.Series(forest.nodes.keys, dtype=pl.Int64).gather(rows["node"])
    call = rows.select(pl.when("own").then("call")).to_series()
    says = forest.tree["says"].gather(call)
    said = pl.DataFrame([forest.says["shapes"].gather(says), forest.says["number"].gather(says)])
    return pl.concat([rows, keys[of_node], said], how="horizontal").filter(pl.col("layer") != UNATTRIBUTED)


def _facts(attribution: Attribution) -> pl.DataFrame:
    """What is known of each layer: flops, bound, roof_share and only_shapes, in which all its calls agree."""
    rows = by_layer(attribution).select(*KEY, "calls", "shapes")
    only = pl.when(pl.col("shapes").list.len() == 1).then(pl.col("shapes").list.first()).alias("only_shapes")
    forward = rows.filter(pl.col("phase") == "forward").select("layer", "module", only)
    limits = layer_roofline(attribution, default_peaks(attribution)).select(*KEY, "flops", "bound", "roof_share")
    rows = rows.join(limits, on=list(KEY), how="left").join(forward, on=["layer", "module"], how="left")
    alike = pl.col("only_shapes").is_not_null() & (pl.col("calls") > 0)
    flops = pl.when(alike).then((pl.col("flops") / pl.col("calls")).round())
    return rows.select(*KEY, flops.alias("flops"), "bound", "roof_share", "only_shapes")
