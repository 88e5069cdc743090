"""Reports of NVIDIA's Deep Learning Profiler (DLProf) from any profile.

DLProf correlates kernels with operations, which it names by call stacks. Here a layer replaces the operation (Op Name
is `layer`), and its module class replaces the operation type. CPU Time is `host_ns`, CPU Overhead (API calls) is
`launch_ns`, Direction is `phase`, and Using TC is `tc_used`. Times are in ns and not rounded. Grids, blocks and stack
traces are left out because not all profiles contain them. GPU Idle per operation is left out as well:
`annot.analyze.step_time` reports idle time per step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from annot.analyze.api_calls import calls_of
from annot.analyze.gpu_activities import KEY, attributed_blocks
from annot.analyze.hardware_counters import over
from annot.analyze.kernel_kinds import with_classes
from annot.analyze.tensor_cores import layer_tensor_cores, tensor_core_work
from annot.attribution import UNATTRIBUTED, by_layer, column_ops
from annot.attribution.attribute import Attribution
from annot.attribution.ingest import BATCH, DATA, EPOCH
from annot.attribution.layer_tables import of_modules

__all__ = ["by_iteration", "by_op_type", "by_tensor_core", "layers_in"]

_LAYER_PHASES: Final = ("forward", "backward", "recompute")
_FORWARD: Final = pl.col("phase") == "forward"
_BACKWARD: Final = pl.col("phase").is_in(["backward", "recompute"])


def layers_in(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of layers; operations and other named ranges if the profile does not contain layers."""
    named = (pl.col("layer") != "") | (pl.col("module") != "")
    layers = rows.filter(named & pl.col("phase").is_in(_LAYER_PHASES))
    if layers.height:
        return layers
    return rows.filter((pl.col("layer") != "") & ~pl.col("layer").is_in([EPOCH, BATCH, DATA, UNATTRIBUTED]))


def by_iteration(attribution: Attribution) -> pl.DataFrame:
    """Return DLProf's report of kernels by iteration: a row per kernel, copy and memset, by start.

    Returns:
        step (null: outside the steps), layer, module, phase, name, kind, library, tensor_cores (null: the name does not
        show it), process, device, stream, start_ns and gpu_ns on the device, launch_start_ns and launch_ns of the API
        call (null: unknown). Texts are `pl.Categorical`, because they repeat.
    """
    calls, keys = calls_of(attribution), attribution.forest.layers_of_nodes().cast(pl.Categorical)
    tables = [pl.DataFrame(schema=_ITERATION)]
    for block in blocks_of(attribution):
        row = calls.rows(block["process"], block["correlation"])
        columns = [pl.col(name).cast(pl.Int64) for name in ("process", "device", "stream") if name in block.columns]
        times = block.select(
            pl.when(pl.col("step") != column_ops.NONE).then("step").cast(pl.Int64).alias("step"), *columns,
            pl.col("start").cast(pl.Int64).alias("start_ns"), "gpu_ns", launch_start_ns=calls.start.gather(row),
            launch_ns=calls.ns.gather(row),
        )  # fmt: skip
        kinds = with_classes(block.select("name"))
        rows = pl.concat([times, keys[block["node"]], kinds], how="horizontal")
        tables.append(
            rows.select(
                (pl.col(name) if name in rows.columns else pl.lit(None).alias(name)).cast(dtype)
                for name, dtype in _ITERATION.items()
            )
        )
    del calls
    work = pl.concat(tables)
    del tables
    is_sorted = work["start_ns"].is_sorted(nulls_last=True)
    return work if is_sorted else work.sort("start_ns", maintain_order=True, nulls_last=True)


_ITERATION: Final = {
    "step": pl.Int64,
    **dict.fromkeys((*KEY, "name", "kind", "library"), pl.Categorical),
    "tensor_cores": pl.Boolean,
    **dict.fromkeys(("process", "device", "stream", "start_ns", "gpu_ns", "launch_start_ns", "launch_ns"), pl.Int64),
}


def blocks_of(attribution: Attribution) -> Iterator[pl.DataFrame]:
    return iter(()) if attribution.source is None else attributed_blocks(attribution)


def by_tensor_core(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer that launches kernels or could use Tensor Cores, in the order of `by_layer`.

    Returns:
        layer, module, phase, tc_eligible, tc_used; gpu_self_ns, of which tc_ns in kernels on Tensor Cores and
        other_ns in the others; tc_share, from 0 to 1; kernels, of which tc_kernels; tc_names and other_names: lists of
        names, longest total time first; reason: why the layer does not use Tensor Cores.
    """
    work = tensor_core_work(attribution).filter("kernel").sort("gpu_ns", "name", descending=[True, False])
    uses = pl.col("tensor_cores")
    kernels = work.group_by(KEY, maintain_order=True).agg(
        pl.col("calls").sum().alias("kernels"),
        pl.col("calls").filter(uses).sum().alias("tc_kernels"),
        pl.col("name").filter(uses).alias("tc_names"),
        pl.col("name").filter(~uses).alias("other_names"),
    )
    rows = layer_tensor_cores(attribution).join(kernels, on=KEY, how="left", maintain_order="left")
    rows = rows.filter(pl.col("kernels").is_not_null() | (pl.col("tc_eligible") & _has_gpu_work(attribution)))
    return rows.select(
        *KEY, "tc_eligible", "tc_used", "gpu_self_ns", "tc_ns", other_ns=pl.col("gpu_self_ns") - pl.col("tc_ns"),
        tc_share=over("tc_ns", "gpu_self_ns"), kernels=pl.col("kernels").fill_null(0),
        tc_kernels=pl.col("tc_kernels").fill_null(0), tc_names=pl.col("tc_names").fill_null([]),
        other_names=pl.col("other_names").fill_null([]), reason="reason",
    )  # fmt: skip


def _has_gpu_work(attribution: Attribution) -> bool:
    """Whether the profile contains GPU activities."""
    return bool(attribution.nodes.select((pl.col("kernels") + pl.col("copies")).sum() > 0).item())


_OF_DEVICES: Final = ("matrix_ns", "outside_ns", "outside", "launch_ns", "reason")


def on_devices(table: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """The table with null in its GPU columns if the profile is without GPU activities: 0 would mean measured."""
    if _has_gpu_work(attribution):
        return table
    unknown = [name for name in table.columns if name.startswith(("tc_", "gpu_")) or name in _OF_DEVICES]
    return table.with_columns(pl.lit(None, table.schema[name]).alias(name) for name in unknown)


def by_op_type(attribution: Attribution) -> pl.DataFrame:
    """Return a row per module class, with forward and backward together, the longest first.

    Returns:
        module, with the names of `annot.attribution.layer_tables.by_module` for time without one; layers: number of
        distinct layers, of which tc_eligible and tc_used; calls: forward calls, or all calls of classes without forward
        ranges; host_ns, gpu_ns: self times; tc_ns: the part of gpu_ns on Tensor Cores; gpu_mean_ns: mean of gpu_ns per
        call; gpu_min_ns, gpu_max_ns: minimum and maximum over the layers of their mean per call; forward_ns,
        backward_ns: parts of gpu_ns by phase (recompute is backward). In a profile without GPU activities the GPU
        columns are null, and forward_ns and backward_ns are parts of host_ns.
    """
    rows = of_modules(_tensor_core_times(by_layer(attribution), attribution))
    per_layer = rows.group_by("module", "layer", maintain_order=True).agg(*_sums())
    mean = pl.when(pl.col("calls") > 0).then(pl.col("gpu_ns") // pl.col("calls"))
    table = (
        per_layer.with_columns(mean.alias("mean"))
        .group_by("module", maintain_order=True)
        .agg(*_totals(), gpu_min_ns=pl.col("mean").min(), gpu_max_ns=pl.col("mean").max())
    )
    table = table.sort("gpu_ns", "host_ns", descending=True, maintain_order=True).with_columns(gpu_mean_ns=mean)
    return on_devices(table, attribution).select(
        "module", "layers", "tc_eligible", "tc_used", "calls", "host_ns", "gpu_ns", "tc_ns", "gpu_mean_ns",
        "gpu_min_ns", "gpu_max_ns", "forward_ns", "backward_ns",
    )  # fmt: skip


_SUMMED: Final = ["calls", "host_ns", "gpu_ns", "tc_ns", "forward_ns", "backward_ns"]


def _tensor_core_times(rows: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """Rows by layer with their self times, and the part of these on Tensor Cores."""
    rows = rows.select(*KEY, "calls", "host_self_ns", "gpu_self_ns")
    used = layer_tensor_cores(attribution).drop("gpu_self_ns", "reason")
    rows = rows.join(used, on=KEY, how="left", maintain_order="left")
    rows = rows.rename({"host_self_ns": "host_ns", "gpu_self_ns": "gpu_ns"})
    return rows.with_columns(time_ns=pl.col("gpu_ns" if _has_gpu_work(attribution) else "host_ns"))


def _sums() -> list[pl.Expr]:
    """Aggregates over the phases of a layer."""
    calls = pl.when(_FORWARD.any()).then(pl.col("calls").filter(_FORWARD).sum()).otherwise(pl.col("calls").sum())
    return [
        calls.alias("calls"),
        pl.col("host_ns", "gpu_ns", "tc_ns").sum(),
        pl.col("time_ns").filter(_FORWARD).sum().alias("forward_ns"),
        pl.col("time_ns").filter(_BACKWARD).sum().alias("backward_ns"),
        pl.col("tc_eligible", "tc_used").any(),
    ]


def _totals() -> list[pl.Expr]:
    """Aggregates over layers."""
    layers = pl.len().cast(pl.Int64).alias("layers")
    return [layers, pl.col("tc_eligible", "tc_used").sum().cast(pl.Int64), pl.col(_SUMMED).sum()]
