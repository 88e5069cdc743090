"""The collectives of the steps, and the layers that wait for them.

Time of a collective is exposed while no compute kernel runs on its device. An exposed nanosecond belongs to the
collective that started first, and to the next compute kernel of the device, which waits. In a process without a GPU,
time is exposed while no thread computes a phase, and the layer around the range of the collective waits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.cpu_parts import phase_times
from annot.analyze.kernel_kinds import with_classes
from annot.analyze.messages import COLLECTIVE, UNNAMED, messages, operations
from annot.analyze.overlap import cut, exclusive, merged, within, without
from annot.analyze.step_parts import Device, StepInputs, by_device, intervals_of, step_inputs
from annot.attribution import UNATTRIBUTED
from annot.attribution.attribute import Attribution
from annot.attribution.column_ops import NONE
from annot.attribution.nesting import KEY
from annot.attribution.range_trees import Forest, loops
from annot.util.weak_keys import once_for_each

__all__ = ["NOBODY", "Collectives", "collectives_of"]

NOBODY: Final = "no kernel follows"
"""Module of the unattributed row of exposed time after the last compute kernel of a device."""

_ELSEWHERE: Final = "launched outside the steps"
"""Module of the unattributed row of kernels that run in the selected steps and were launched in others."""

_REASONS: Final = {NONE: NOBODY, NONE - 1: _ELSEWHERE}
"""Nodes without a layer, and their module."""

_KERNELS: Final = {"start": pl.Int64, "end": pl.Int64, "node": pl.Int32, "range": pl.Int32, "collective": pl.String}
_COLLECTIVES: Final = {
    **dict.fromkeys(("process", "device", "start", "end", "calls", "wall_ns"), pl.Int64), "range": pl.Int32,
    **dict.fromkeys((*KEY, "operation", "group"), pl.String), "ranks": pl.Int64, "bytes": pl.Int64,
    "factor": pl.Float64,
}  # fmt: skip
_EXPOSED: Final = {"row": pl.Int64, "ns": pl.Int64, **dict.fromkeys(KEY, pl.String)}


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of a profile.

    Args:
        table: a row per collective: process, device (null: the process uses no device), start, end (ns), calls (1 if it
            starts in the steps, else 0), wall_ns (its time in the steps, without that of collectives that started
            earlier on the device), range (row in the tree of ranges, -1 for none), layer, module, phase (that launch
            it), operation, and group, ranks, bytes and factor of `annot.analyze.messages.messages`.
        exposed: a row per collective and waiting layer: row (in `table`), ns, layer, module, phase.
    """

    table: pl.DataFrame
    exposed: pl.DataFrame


@once_for_each
def collectives_of(attribution: Attribution) -> Collectives:
    """Return the collectives of each device, and of each process without a GPU, by start."""
    inputs = step_inputs(attribution)
    devices = [device for device, rows in inputs.work.items() if (rows["share"] == "collectives").any()]
    kernels = _kernels(attribution, devices)
    tables, exposed, count = [pl.DataFrame(schema=_COLLECTIVES)], [pl.DataFrame(schema=_EXPOSED)], 0
    for device, times in inputs.windows.partition_by("process", "device", as_dict=True).items():
        window = merged(intervals_of(times))
        if inputs.of_device(device).is_empty():
            own, waits = _cpu_collectives(attribution, inputs, device, window)
        else:
            own, waits = _gpu_collectives(
                attribution.forest, kernels.get(device, pl.DataFrame(schema=_KERNELS)), window
            )
        process, number = (pl.lit(value, pl.Int64) for value in device)
        tables.append(_typed(own.with_columns(process=process, device=number), _COLLECTIVES))
        exposed.append(_typed(waits.with_columns(pl.col("row") + count), _EXPOSED))
        count += own.height
    return Collectives(pl.concat(tables), pl.concat(exposed))


def _typed(rows: pl.DataFrame, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    return rows.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _kernels(attribution: Attribution, devices: Collection[Device]) -> dict[Device, pl.DataFrame]:
    """The kernels of devices, with the columns of `_KERNELS`."""
    if attribution.source is None or not devices:
        return {}
    blocks = by_device(_placed(attribution, block.filter("kernel")) for block in attribution.source.work_blocks())
    return {device: pl.concat(blocks[device]) for device in devices}


def _placed(attribution: Attribution, kernels: pl.DataFrame) -> pl.DataFrame:
    rows = attribution.attributor.of(kernels).drop_nulls(["start", "end"])
    collective = (with_classes(rows.select("name"))["kind"] == "collective").alias("collective")
    rows = rows.with_columns(pl.when(collective).then("name").alias("collective"))
    rows = rows.with_columns(pl.when("left_out").then(NONE - 1).otherwise("node").alias("node"))
    ids = [pl.col(name) if name in rows.columns else pl.lit(None).alias(name) for name in ("process", "device")]
    return rows.select(*(key.cast(pl.Int64) for key in ids), *(pl.col(name).cast(of) for name, of in _KERNELS.items()))


def _gpu_collectives(forest: Forest, kernels: pl.DataFrame, window: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The collectives of a device, and their exposed time."""
    launched = kernels.filter(pl.col("collective").is_not_null(), pl.col("end") >= pl.col("start"))
    operation = _range_operations(forest, launched["range"])
    own = exclusive(launched.with_columns(operation, _message_ranges(forest, launched["range"])), window)
    own = own.with_columns(forest.tree["label"].gather(own["range"]).alias("label"))
    compute = kernels.filter(pl.col("collective").is_null(), pl.col("end") > pl.col("start"))
    free = without(window, merged(compute))
    exposed = _exposed(own, free, compute.sort("start", maintain_order=True))
    return _described(forest, own.rename({"collective": "name"})), _name_layers(forest, exposed)


def _range_operations(forest: Forest, ranges: pl.Series) -> pl.Series:
    """The operation that the innermost range around each launch names; null: the range is another one.

    NCCL runs an all-to-all as a kernel with the name SendRecv, in a range of PyTorch that is named nccl:all_to_all.
    """
    at = ranges.to_frame("range").select(pl.when(pl.col("range") >= 0).then("range")).to_series()
    labels = forest.labels.with_columns(operation=operations(forest.labels["text"]))
    named = labels.select(pl.when(COLLECTIVE, pl.col("operation") != UNNAMED).then("operation")).to_series()
    return named.gather(forest.tree["label"].gather(at)).alias("operation")


def _message_ranges(forest: Forest, ranges: pl.Series) -> pl.Series:
    """The range with the message of each collective: the innermost around its launch, after calls of libraries."""
    tree, labels = forest.tree, forest.labels
    inner = labels.select(COLLECTIVE & (pl.col("phase") != "collective") & pl.col("call").is_null()).to_series()
    at = ranges.to_frame("range").select(pl.when(pl.col("range") >= 0).then("range")).to_series()
    while True:
        parent = tree["parent"].gather(at)
        outward = inner.gather(tree["label"].gather(at)).fill_null(False) & (parent >= 0)
        if not outward.any():
            return at
        at = parent.zip_with(outward, at).alias("range")


def _exposed(own: pl.DataFrame, free: pl.DataFrame, compute: pl.DataFrame) -> pl.DataFrame:
    """The exposed time of each collective: row, ns, node of the compute kernel that ends it."""
    pieces = own.select("begin", "until", row=pl.int_range(pl.len())).filter(pl.col("until") > pl.col("begin"))
    spans = without(free, without(free, merged(own)))
    gaps = cut(spans, pieces["begin"]).join_asof(pieces, left_on="start", right_on="begin", strategy="backward")
    following = compute.select("node", since="start").unique("since", keep="first", maintain_order=True)
    gaps = gaps.join_asof(following, left_on="end", right_on="since", strategy="forward")
    length = (pl.col("end") - pl.col("start")).sum().alias("ns")
    return gaps.group_by("row", pl.col("node").fill_null(NONE), maintain_order=True).agg(length)


def _cpu_collectives(
    attribution: Attribution, inputs: StepInputs, device: Device, window: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The same of a process without a GPU, from its ranges of collectives."""
    forest = attribution.whole
    mine = pl.col("process").eq_missing(pl.lit(device[0], pl.Int64))
    rows = inputs.host["collectives"].filter(mine, pl.col("end") >= pl.col("start"))
    rows = exclusive(rows.with_columns(forest.labels["text"].gather(rows["label"]).alias("name")), window)
    own, layers = _described(forest, rows), forest.layers()[forest.labels["key"].gather(rows["label"])]
    crossing = rows["node"].is_null()  # such a range has no node
    own = own.with_columns(pl.when(crossing).then(layers[name]).otherwise(name).alias(name) for name in KEY)
    free = without(window, merged(phase_times(attribution, inputs).filter(mine)))
    length = within(own["until"], free) - within(own["begin"], free)
    exposed = own.select(*KEY, length.alias("ns"), row=pl.int_range(pl.len()))
    return own, exposed.filter(pl.col("ns") > 0)


def _described(forest: Forest, own: pl.DataFrame) -> pl.DataFrame:
    """Add the layer, operation and message of each collective."""
    parsed = messages(forest.labels.select(pl.coalesce("call", "text")).to_series(), own["label"])
    named = [own["operation"]] if "operation" in own.columns else []
    own = own.with_columns(*parsed.drop("operation").get_columns()).with_columns(
        pl.coalesce(parsed["operation"], *named, operations(own["name"])).alias("operation")
    )
    return _name_layers(forest, own)


def _enclosing_layers(forest: Forest, nodes: pl.Series) -> pl.Series:
    """The layer around each node: the innermost range that is neither a collective nor a loop, or its own."""
    parents, keys = forest.nodes.parents, forest.nodes.keys
    own = set(forest.layers().with_row_index("key").filter(COLLECTIVE)["key"])
    skipped = loops(forest.labels)
    outer: dict[int, int] = {}
    for node in nodes.drop_nulls().unique():
        at = node
        while at >= 0 and keys[at] in own:
            at = parents[at]
        outer[node] = node if at < 0 or keys[at] in skipped else at
    return nodes.replace(outer).alias("node")


def _name_layers(forest: Forest, rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the nodes by layer, module and phase of the layers around them."""
    nodes = _enclosing_layers(forest, rows["node"])
    layer_nodes = nodes.to_frame().select(pl.when(pl.col("node") >= 0).then("node")).to_series()
    layers = forest.layers_of_nodes().select(pl.all().gather(layer_nodes))
    missing = nodes.replace_strict(_REASONS, default=None, return_dtype=pl.String)
    return rows.drop("node").hstack(
        layers.with_columns(
            pl.col("layer").fill_null(UNATTRIBUTED),
            pl.col("module").fill_null(missing),
            pl.col("phase").fill_null("other"),
        )
    )
