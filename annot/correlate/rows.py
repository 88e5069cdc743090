"""Add layers up: by layer, by module class, by phase, by kernel, by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.account import UNATTRIBUTED
from annot.correlate.attribution import Attribution
from annot.correlate.host_times import without_unknown
from annot.correlate.memory import MEMORY_COLUMNS
from annot.correlate.sequence import twins

__all__ = ["by_kernel", "by_layer", "by_module", "by_op", "by_phase"]

_SHAPES_KEPT: Final = 8
_KEY: Final = ("layer", "module", "phase")
_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")
_OWN: Final = (
    "calls", "host_self_ns", "gpu_self_ns", "gpu_by_time_ns", "gpu_by_sequence_ns", "kernels", "copies",
)  # fmt: skip
_INCLUSIVE: Final = {"host_ns": "host_self_ns", "gpu_ns": "gpu_self_ns", "kernels_total": "kernels"}


def by_layer(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, module class and phase, as `annot.correlate.correlate` documents."""
    rows = _rolled_up(attribution, pl.DataFrame(attribution.forest.keys.names, schema=_KEY, orient="row"))
    rows = rows.join(_shapes(attribution), on="group", how="left", maintain_order="left")
    rows = rows.join(_device_columns(attribution), on="group", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("shapes").fill_null([]), pl.col("gpu_busy_ns", "gpu_span_ns").fill_null(0))
    memory = () if attribution.memory is None else MEMORY_COLUMNS
    if attribution.memory is not None:
        rows = rows.join(attribution.memory.rename({"key": "group"}), on="group", how="left", maintain_order="left")
    last = pl.col("layer") == UNATTRIBUTED
    rows = rows.sort(last, "start", *_KEY, nulls_last=True)
    rows = rows.select(
        *_KEY, "calls", *_TIMES, "gpu_busy_ns", "gpu_span_ns", "gpu_by_sequence_ns", "gpu_by_time_ns", "kernels",
        "kernels_total", "copies", *memory, "shapes",
    )  # fmt: skip
    return without_unknown(rows, attribution.meta)


def by_module(attribution: Attribution) -> pl.DataFrame:
    """Return a row per module class and phase, with `layers`, the number of distinct layers in it.

    Only ranges that name a class take part, so the times do not add up to the whole run.
    """
    names = pl.DataFrame(attribution.forest.keys.names, schema=_KEY, orient="row")
    named = (pl.col("module") != "") & (pl.col("layer") != UNATTRIBUTED)
    groups = names.filter(named).group_by("module", "phase", maintain_order=True)
    layers = groups.agg(pl.col("layer").n_unique().cast(pl.Int64).alias("layers"))
    rows = _rolled_up(attribution, names.filter(named).select("module", "phase"), names.select(named).to_series())
    rows = rows.join(layers, on=["module", "phase"], how="left", maintain_order="left")
    rows = rows.sort("start", "module", "phase", nulls_last=True)
    rows = rows.select("module", "phase", "layers", "calls", *_TIMES, "kernels", "copies")
    return without_unknown(rows, attribution.meta)


def by_phase(attribution: Attribution) -> pl.DataFrame:
    """Return a row per phase whose times add up: each range's own time goes to the phase that it lies in.

    A range without a phase of its own counts to the range around it. `calls` are those that began the phase.

    Returns:
        phase, calls, host_ns, gpu_ns, kernels, copies; the last row is what is attributed to no range.
    """
    nodes = attribution.nodes
    phases, begins = _phases_in_force(attribution)
    table = nodes.with_columns(pl.Series("phase", phases, pl.String), pl.Series("begins", begins, pl.Boolean))
    rows = table.group_by("phase", maintain_order=True).agg(
        pl.col("calls").filter("begins").sum(),
        pl.col("host_self_ns").sum().alias("host_ns"),
        pl.col("gpu_self_ns").sum().alias("gpu_ns"),
        pl.col("kernels", "copies").sum(),
        pl.col("start").min(),
    )
    rows = rows.filter((pl.col("phase") != UNATTRIBUTED) | (pl.col("kernels") + pl.col("copies") > 0))
    rows = rows.sort(pl.col("phase") == UNATTRIBUTED, "start", nulls_last=True).drop("start")
    return without_unknown(rows, attribution.meta)


def by_kernel(attribution: Attribution) -> pl.DataFrame:
    """Return a row per name of a kernel, copy or set, the longest total first.

    Returns:
        name, kernel (false for copies and sets), calls, gpu_ns, mean_ns, min_ns, max_ns, and layers: how many
        distinct layers launched it.
    """
    layers = [layer for layer, _, _ in attribution.forest.keys.names]
    of_node = [None if layers[key] == UNATTRIBUTED else layers[key] for key in attribution.forest.nodes.keys]
    names = attribution.names.with_columns(pl.Series("layer", of_node, pl.String).gather(attribution.names["node"]))
    rows = names.with_columns(pl.col("name").cast(pl.String)).group_by("name", "kernel").agg(
        pl.col("calls", "gpu_ns").sum(),
        (pl.col("gpu_ns").sum() // pl.col("calls").sum()).alias("mean_ns"),
        pl.col("min_ns").min(),
        pl.col("max_ns").max(),
        pl.col("layer").drop_nulls().n_unique().cast(pl.Int64).alias("layers"),
    )  # fmt: skip
    return rows.sort("gpu_ns", "name", descending=[True, False])


def by_op(attribution: Attribution) -> pl.DataFrame:
    """Return a row per operation that annot, the framework, `emit_nvtx` or PyProf recorded, the longest first.

    Each piece of device work, and each moment of a thread, counts to the innermost operation around it.

    Returns:
        op, phase (forward, backward or other), calls, host_self_ns, gpu_self_ns, kernels, copies.
    """
    forest = attribution.forest
    operations = forest.says["role"].is_in(["operator", "backward"])
    which = operations.gather(forest.tree["says"])
    columns = ("layer", "phase", "host_self_ns", "gpu_self_ns", "kernels", "copies")
    again = twins(forest.tree, forest.says).alias("again")  # which are no call of their own
    rows = attribution.ranges().select(columns).with_columns(again).filter(which).rename({"layer": "op"})
    rows = rows.with_columns(phase=pl.when("again").then(pl.lit("backward")).otherwise("phase"))
    sums = pl.col("host_self_ns", "gpu_self_ns", "kernels", "copies").sum().cast(pl.Int64)
    table = rows.group_by("op", "phase").agg((~pl.col("again")).sum().cast(pl.Int64).alias("calls"), sums)
    table = table.sort("gpu_self_ns", "host_self_ns", "op", "phase", descending=[True, True, False, False])
    return without_unknown(table, attribution.meta)


def _rolled_up(attribution: Attribution, groups: pl.DataFrame, member: pl.Series | None = None) -> pl.DataFrame:
    """Add nodes up by group, in which a layer inside itself counts once.

    Args:
        attribution: what is to be added up.
        groups: for each key (for each for which `member` is true) what it is grouped by.
        member: whether a key is in any group.

    Returns:
        The columns of the groups, group (their row), `_OWN`, `_INCLUSIVE` and start.
    """
    nodes, keys = attribution.nodes, attribution.forest.keys.names
    distinct = groups.unique(maintain_order=True).with_row_index("group")
    numbers = groups.join(distinct, on=groups.columns, how="left", maintain_order="left")["group"].to_list()
    places = iter(numbers)
    of_key = [next(places) if member is None or member[key] else sweep.NONE for key in range(len(keys))]
    of_node = [of_key[key] for key in attribution.forest.nodes.keys]
    table = nodes.with_columns(
        pl.Series("group", of_node, pl.Int64),
        pl.Series("outermost", attribution.forest.nodes.outermost(of_node), pl.Boolean),
        *(sweep.fold(nodes["parent"], nodes[own]).alias(name) for name, own in _INCLUSIVE.items()),
    ).with_columns(pl.col("host_ns") - sweep.fold(nodes["parent"], nodes["host_overlap_ns"]))
    sums = table.filter(pl.col("group") != sweep.NONE).group_by("group").agg(
        pl.col(_OWN).sum(), pl.col(*_INCLUSIVE).filter("outermost").sum(), pl.col("start").min()
    )  # fmt: skip
    sums = _with_loose(attribution, sums, of_key)
    shown = (pl.col("calls") > 0) | (pl.col("kernels_total") > 0) | (pl.col("copies") > 0) | (pl.col("gpu_ns") > 0)
    distinct = distinct.with_columns(pl.col("group").cast(pl.Int64))
    return sums.filter(shown).join(distinct, on="group", how="left")


def _with_loose(attribution: Attribution, sums: pl.DataFrame, of_key: Sequence[int]) -> pl.DataFrame:
    """Add ranges outside the tree: their calls, their length and what was launched in them."""
    loose = attribution.forest.loose
    keys = attribution.forest.says["key"].gather(loose["says"])
    rows = loose.select(
        pl.Series("group", of_key, pl.Int64).gather(keys), "start", host_ns=pl.col("end") - pl.col("start"),
        gpu_ns=attribution.loose_gpu_ns, calls=pl.lit(1, pl.Int64),
    ).filter(pl.col("group") != sweep.NONE)  # fmt: skip
    every = pl.concat([sums, rows], how="diagonal").group_by("group")
    return every.agg(pl.col(*_OWN, *_INCLUSIVE).sum(), pl.col("start").min())


def _shapes(attribution: Attribution) -> pl.DataFrame:
    """The shapes seen by each layer, the most frequent first."""
    forest = attribution.forest
    spoken = pl.concat([forest.tree["says"], forest.loose["says"]]).value_counts(name="len").rename({"says": "row"})
    says = forest.says.select(pl.col("key").cast(pl.Int64).alias("group"), "shapes").with_row_index("row")
    seen = says.with_columns(pl.col("row").cast(pl.Int32)).drop_nulls("shapes").join(spoken, on="row")
    seen = seen.group_by("group", "shapes").agg(pl.col("len").sum()).sort("len", "shapes", descending=[True, False])
    return seen.group_by("group", maintain_order=True).agg(pl.col("shapes").head(_SHAPES_KEPT))


def _device_columns(attribution: Attribution) -> pl.DataFrame:
    """Busy time, added over devices, and the stretch from first start to last end, of each layer."""
    return attribution.busy.group_by(pl.col("key").cast(pl.Int64).alias("group")).agg(
        pl.col("busy_ns").sum().alias("gpu_busy_ns"),
        (pl.col("last_ns").max() - pl.col("first_ns").min()).alias("gpu_span_ns"),
    )


def _phases_in_force(attribution: Attribution) -> tuple[list[str], list[bool]]:
    """The phase that each node lies in, and whether the node is the one that began it."""
    names = attribution.forest.keys.names
    phases: list[str] = []
    begins = []
    for parent, key in zip(attribution.forest.nodes.parents, attribution.forest.nodes.keys, strict=True):
        around = phases[parent] if parent != sweep.NONE else ""
        layer, _, phase = names[key]
        phase = UNATTRIBUTED if layer == UNATTRIBUTED else phase
        phases.append((around or "other") if phase == "other" else phase)
        begins.append(phases[-1] != around)
    return phases, begins
