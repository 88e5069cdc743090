"""Tables of an attribution: by layer, module class, phase, kernel and operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, self_times
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.host_times import without_unknown
from annot.attribution.layer_chains import KEY
from annot.attribution.memory import MEMORY_COLUMNS
from annot.attribution.range_trees import Forest
from annot.attribution.sequence_numbers import inside_engine_range
from annot.util.weak_keys import once_for_each

__all__ = [
    "NO_MODULE", "NO_OPERATION", "by_kernel", "by_layer", "by_module", "by_op", "by_phase", "modules_of_keys",
    "of_modules", "phases_of_nodes",
]  # fmt: skip

_SHAPES_KEPT: Final = 8
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""
_LAYER_PHASES: Final = ("forward", "backward", "recompute")
_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")
_OPERATIONS: Final = ("operator", "backward")
_OF_OPERATIONS: Final = {"op": pl.String, "phase": pl.String} | dict.fromkeys(
    ("calls", "host_self_ns", "gpu_self_ns", "kernels", "copies"), pl.Int64
)
NO_MODULE: Final = "(no module)"
"""Module of the ranges without a module class in tables by module."""
NO_OPERATION: Final = "(no operation)"
"""Operation of the other ranges in tables by operation."""
_REST: Final = (NO_MODULE, UNATTRIBUTED)
_OWN: Final = ("calls", "host_self_ns", "gpu_self_ns", "gpu_by_time_ns", "gpu_by_sequence_ns", "kernels", "copies")
_INCLUSIVE: Final = {"host_ns": "host_self_ns", "gpu_ns": "gpu_self_ns", "kernels_total": "kernels"}


@once_for_each
def by_layer(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, module class and phase. `annot.correlate` documents the columns."""
    layers = attribution.forest.layers()
    rows = _rolled_up(attribution, layers, range(layers.height))
    rows = rows.join(_shapes(attribution), on="group", how="left", maintain_order="left")
    devices = attribution.busy.group_by(group=pl.col("key").cast(pl.Int64)).agg(  # added up over devices
        gpu_busy_ns=pl.col("busy_ns").sum(), gpu_span_ns=pl.col("last_ns").max() - pl.col("first_ns").min()
    )
    rows = rows.join(devices, on="group", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("shapes").fill_null([]), pl.col("gpu_busy_ns", "gpu_span_ns").fill_null(0))
    memory = () if attribution.memory is None else MEMORY_COLUMNS
    if attribution.memory is not None:
        rows = rows.join(attribution.memory.rename({"key": "group"}), on="group", how="left", maintain_order="left")
    # Layers that only a capture names have no start. They follow in the order of their first GPU activity.
    unstarted = pl.when(pl.col("start").is_null()).then("group")
    rows = rows.sort(pl.col("layer") == UNATTRIBUTED, "start", unstarted, *KEY, nulls_last=True)
    rows = rows.select(
        *KEY, "calls", *_TIMES, "gpu_busy_ns", "gpu_span_ns", "gpu_by_sequence_ns", "gpu_by_time_ns", "kernels",
        "kernels_total", "copies", *memory, *_source(attribution), "shapes",
    )  # fmt: skip
    return without_unknown(rows, attribution.meta)


def _source(attribution: Attribution) -> list[pl.Expr]:
    """Return the column with the file and line of the module class; none if the profile does not contain them."""
    sources: dict[str, str] = attribution.meta.get("sources", {})
    source = pl.col("module").replace_strict(sources, default=None, return_dtype=pl.String)
    return [pl.when(pl.col("phase").is_in(_LAYER_PHASES)).then(source).alias("source")] if sources else []


def by_module(attribution: Attribution) -> pl.DataFrame:
    """Return a row per module class and phase, with `layers`, the number of its distinct layers.

    The last rows are the other ranges, `NO_MODULE`, by phase, and the unattributed GPU time, with self times only, so
    that self times add up to those of the run. A profile without module classes has no rows.
    """
    keys = _name_modules(attribution.forest.layers())
    groups = keys.select("module", "phase").unique(maintain_order=True).with_columns(group=pl.int_range(pl.len()))
    keys = keys.join(groups, on=["module", "phase"], how="left", maintain_order="left")
    rows = _rolled_up(attribution, groups.drop("group"), keys["group"].to_list())
    layers = keys.group_by("group").agg(layers=pl.col("layer").n_unique().cast(pl.Int64))
    rows = rows.join(layers, on="group", how="left").with_columns(rest=pl.col("module").is_in(_REST))
    if rows["rest"].all():
        rows = rows.clear()
    own = (pl.when("rest").then(f"{of}_self_ns").otherwise(f"{of}_ns").alias(f"{of}_ns") for of in ("host", "gpu"))
    rows = rows.with_columns(own).sort(
        "rest", pl.col("module") == UNATTRIBUTED, "start", "module", "phase", nulls_last=True
    )
    rows = rows.select("module", "phase", "layers", "calls", *_TIMES, "kernels", "copies")
    return without_unknown(rows, attribution.meta)


def of_modules(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows by layer in which each has a module: its class, `NO_MODULE`, or `UNATTRIBUTED`, also as its phase.

    Rows without any module class are left out.
    """
    rows = _name_modules(rows)
    return rows.clear() if rows["module"].is_in(_REST).all() else rows


def _name_modules(rows: pl.DataFrame) -> pl.DataFrame:
    lost, word = pl.col("layer") == UNATTRIBUTED, pl.lit(UNATTRIBUTED)
    module = pl.when(lost).then(word).when(pl.col("module") == "").then(pl.lit(NO_MODULE)).otherwise("module")
    return rows.with_columns(module.alias("module"), pl.when(lost).then(word).otherwise("phase").alias("phase"))


def by_phase(attribution: Attribution) -> pl.DataFrame:
    """Return a row per phase with self times, so that the times add up to those of the run.

    A range without a phase counts towards the phase of the range around it. `calls` counts the outermost ranges of a
    phase.

    Returns:
        phase, calls, host_ns, gpu_ns, kernels, copies. The last row is the unattributed GPU time, or without GPU
        activity the time outside ranges.
    """
    nodes = attribution.nodes
    phases = phases_of_nodes(attribution.forest)
    begins = phases.ne_missing(phases.gather(column_ops.known(nodes["parent"])))
    table = nodes.with_columns(phases, begins.alias("begins"))
    rows = table.group_by("phase", maintain_order=True).agg(
        pl.col("calls").filter("begins").sum(),
        pl.col("host_self_ns").sum().alias("host_ns"),
        pl.col("gpu_self_ns").sum().alias("gpu_ns"),
        pl.col("kernels", "copies").sum(),
        pl.col("start").min(),
    )
    has_any = pl.any_horizontal(pl.col("kernels", "copies", "host_ns") > 0)
    rows = rows.filter((pl.col("phase") != UNATTRIBUTED) | has_any)
    rows = rows.sort(pl.col("phase") == UNATTRIBUTED, "start", nulls_last=True).drop("start")
    return without_unknown(rows, attribution.meta)


def by_kernel(attribution: Attribution) -> pl.DataFrame:
    """Return a row per name of a kernel, copy or memset, by descending GPU time.

    Returns:
        name, kernel (false for copies and memsets), calls, gpu_ns, mean_ns, min_ns, max_ns, and layers, the number of
        distinct layers that launched it.
    """
    layers = attribution.forest.layers_of_nodes().select("layer")[attribution.names["node"]]
    names = attribution.names.hstack(layers.select(pl.when(pl.col("layer") != UNATTRIBUTED).then("layer")))
    rows = names.with_columns(pl.col("name").cast(pl.String)).group_by("name", "kernel").agg(
        pl.col("calls", "gpu_ns").sum(),
        (pl.col("gpu_ns").sum() // pl.col("calls").sum()).alias("mean_ns"),
        pl.col("min_ns").min(),
        pl.col("max_ns").max(),
        pl.col("layer").drop_nulls().n_unique().cast(pl.Int64).alias("layers"),
    )  # fmt: skip
    return rows.sort("gpu_ns", "name", descending=[True, False])


def by_op(attribution: Attribution) -> pl.DataFrame:
    """Return a row per operation that annot, the framework, `emit_nvtx` or PyProf recorded, by descending GPU time.

    The phase is that of `by_phase`. The last rows are the self times of the other ranges, `NO_OPERATION`, and the
    unattributed GPU time, so that times add up to those of `by_phase`, phase by phase. A profile without operations
    has no rows.

    Returns:
        op, phase, calls, host_self_ns, gpu_self_ns, kernels, copies.
    """
    forest = attribution.forest
    tree, labels = forest.tree, forest.labels
    is_operation = labels["role"].is_in(_OPERATIONS)
    if not is_operation.gather(tree["label"]).any():
        return pl.DataFrame(schema=_OF_OPERATIONS)
    names = labels.select(op=pl.when(is_operation).then("layer").otherwise(pl.lit(NO_OPERATION)))["op"]
    names, phases = _as_enum(names, NO_OPERATION), _as_enum(phases_of_nodes(forest), "other")
    op = names.gather(tree["label"])
    first = ~inside_engine_range(tree, labels).alias("calls")  # the others are counted by the engine's range
    phase = phases.gather(column_ops.known(tree["path"])).fill_null("other")
    ranges = pl.DataFrame([op, phase, first, self_times(forest)])
    sums = [block.group_by("op", "phase").agg(pl.all().sum()) for block in ranges.iter_slices(_SLICE)]
    del ranges, phase, first  # may have millions of rows
    for block in () if attribution.source is None else attribution.source.work_blocks():
        work = attribution.attributor.of(block).filter(~pl.col("left_out"))
        rows = work.select(
            op.gather(column_ops.known(work["range"])).fill_null(NO_OPERATION), phases.gather(work["node"]),
            gpu_self_ns="gpu_ns", kernels="kernel", copies=~pl.col("kernel"),
        )  # fmt: skip
        sums.append(rows.group_by("op", "phase").agg(pl.all().sum()))
    outside = attribution.nodes.select(phases.cast(pl.String), "host_self_ns")
    outside = outside.filter(pl.col("phase") == UNATTRIBUTED, pl.col("host_self_ns") > 0)
    sums = [*(block.with_columns(pl.col("op", "phase").cast(pl.String)) for block in sums), outside]
    table = pl.concat([pl.DataFrame(schema=_OF_OPERATIONS), *sums], how="diagonal_relaxed")
    lost = pl.col("phase") == UNATTRIBUTED
    table = table.with_columns(op=pl.when(lost).then("phase").otherwise("op"))
    table = table.group_by("op", "phase").agg(pl.all().sum().cast(pl.Int64))
    last = pl.col("op").replace_strict({NO_OPERATION: 1, UNATTRIBUTED: 2}, default=0)
    longest = -pl.col("gpu_self_ns", "host_self_ns")
    return without_unknown(table.sort(last, longest, "op", "phase"), attribution.meta)


def _as_enum(texts: pl.Series, other: str) -> pl.Series:
    """Return texts as numbers with names, to which `other` belongs: a text per range takes much memory."""
    return texts.cast(pl.Enum(pl.concat([texts, pl.Series([other])]).unique(maintain_order=True)))


def modules_of_keys(forest: Forest) -> tuple[pl.DataFrame, list[int]]:
    """Return module and phase of each group of layers with a module class, and the group of each key; -1: none."""
    numbers: dict[tuple[str, str], int] = {}
    of_key = [
        numbers.setdefault((module, phase), len(numbers)) if module and layer != UNATTRIBUTED else column_ops.NONE
        for layer, module, phase in forest.keys.names
    ]
    return pl.DataFrame(list(numbers), schema=dict.fromkeys(KEY[1:], pl.String), orient="row"), of_key


def _rolled_up(attribution: Attribution, groups: pl.DataFrame, of_key: Sequence[int]) -> pl.DataFrame:
    """Sum up nodes by group of their key. A layer inside itself counts once.

    The result has the columns of the groups, group (its number), `_OWN`, `_INCLUSIVE` and start.
    """
    nodes = attribution.nodes
    of_node = [of_key[key] for key in attribution.forest.nodes.keys]
    table = nodes.with_columns(
        pl.Series("group", of_node, pl.Int64),
        pl.Series("outermost", attribution.forest.nodes.outermost(of_node), pl.Boolean),
        *(column_ops.fold(nodes["parent"], nodes[own]).alias(name) for name, own in _INCLUSIVE.items()),
    ).with_columns(pl.col("host_ns") - column_ops.fold(nodes["parent"], nodes["host_overlap_ns"]))
    sums = (
        table.filter(pl.col("group") != column_ops.NONE)
        .group_by("group")
        .agg(pl.col(_OWN).sum(), pl.col(*_INCLUSIVE).filter("outermost").sum(), pl.col("start").min())
    )
    sums = _add_crossing(attribution, sums, of_key)
    shown = pl.any_horizontal(pl.col("calls", "kernels_total", "copies", "gpu_ns", "host_ns") > 0)
    numbered = groups.with_columns(group=pl.int_range(pl.len()))
    return sums.filter(shown).join(numbered, on="group", how="left")


def _add_crossing(attribution: Attribution, sums: pl.DataFrame, of_key: Sequence[int]) -> pl.DataFrame:
    """Add the crossing ranges: their calls, their host time and the GPU time launched in them."""
    crossing = attribution.forest.crossing
    keys = attribution.forest.labels["key"].gather(crossing["label"])
    rows = crossing.select(
        pl.Series("group", of_key, pl.Int64).gather(keys), "start", host_ns=pl.col("end") - pl.col("start"),
        gpu_ns=attribution.crossing_gpu_ns, calls=pl.lit(1, pl.Int64),
    ).filter(pl.col("group") != column_ops.NONE)  # fmt: skip
    every = pl.concat([sums, rows], how="diagonal").group_by("group")
    return every.agg(pl.col(*_OWN, *_INCLUSIVE).sum(), pl.col("start").min())


def _shapes(attribution: Attribution) -> pl.DataFrame:
    """Return the input shapes of each layer, most frequent first: those of its range, else of its operators."""
    forest = attribution.forest
    row = pl.int_range(pl.len(), dtype=pl.Int32).alias("label")
    labels = forest.labels.select(pl.col("key").cast(pl.Int64).alias("group"), "shapes", row).drop_nulls("shapes")
    seen = labels.join(forest.label_counts(), on="label").select("group", "shapes", "count")
    if forest.labels["call"].count():
        seen = pl.concat([seen, _shapes_of_operators(forest).join(seen, on="group", how="anti")])
    seen = seen.group_by("group", "shapes").agg(pl.col("count").sum())
    seen = seen.sort("count", "shapes", descending=[True, False])
    return seen.group_by("group", maintain_order=True).agg(pl.col("shapes").head(_SHAPES_KEPT))


def _shapes_of_operators(forest: Forest) -> pl.DataFrame:
    """Return group, shapes and count of the operators with recorded inputs that each layer calls directly."""
    operator = (forest.labels["role"] == "operator").gather(forest.tree["label"])
    direct = ~operator.gather(column_ops.known(forest.tree["parent"])).fill_null(False)
    called = forest.labels["call"].is_not_null() & forest.labels["shapes"].str.contains(r"\[\d")
    of_layer = forest.layers_of_nodes()["phase"].is_in(_LAYER_PHASES).gather(column_ops.known(forest.tree["path"]))
    shapes = forest.labels["shapes"].gather(forest.tree["label"])
    rows = forest.tree.select("path", shapes).filter(direct & called.gather(forest.tree["label"]) & of_layer)
    group = pl.Series("group", forest.nodes.keys, pl.Int64).gather(rows["path"])
    counts = rows.with_columns(group).group_by("group", "shapes").agg(count=pl.len())
    return counts.select("group", "shapes", "count")


def phases_of_nodes(forest: Forest) -> pl.Series:
    """Return the phase of each node, inherited from the innermost node around it with a phase, else other."""
    names = forest.keys.names
    phases: list[str] = []
    for parent, key in zip(forest.nodes.parents, forest.nodes.keys, strict=True):
        layer, _, phase = names[key]
        around = phases[parent] if parent != column_ops.NONE else "other"
        phases.append(UNATTRIBUTED if layer == UNATTRIBUTED else around if phase == "other" else phase)
    return pl.Series("phase", phases, pl.String)
