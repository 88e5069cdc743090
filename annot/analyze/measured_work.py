"""Measured FLOPs of kernels and layers from hardware counters, compared with the expected FLOPs.

The counters of Nsight Compute, nvprof and CUPTI are:

    flop_count_sp, _dp, _hp                                         nvprof; a multiply-add counts as two
    sm…__sass_thread_inst_executed_op_{f,d,h}{add,mul,fma}_pred_on.sum   thread instructions; a multiply-add is one
    sm__ops_path_tensor_src_…_dst_….sum                             operations of Tensor Cores, since Ampere
    sm__inst_executed_pipe_tensor.sum                               Tensor Core instructions of undocumented size

Sources: https://docs.nvidia.com/nsight-compute/ProfilingGuide/ and https://docs.nvidia.com/cuda/profiler-users-guide/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import polars as pl

from annot.analyze.gpu_activities import KEY, attributed_kernels
from annot.analyze.kernel_kinds import classify
from annot.analyze.work import Cost, by_text, cost, with_work
from annot.attribution import Attribution, by_layer
from annot.labels.tag import Tag
from annot.profile import Profile

__all__ = ["explain", "kernel_flops", "layer_flops", "padded", "tiles", "with_measured"]

_COUNTERS: Final = (
    (re.compile(r"flop_count_([sdh])p(?:\.sum)?"), 1),
    (re.compile(r"(?:smsp|sm)__sass_thread_inst_executed_op_([fdh])(?:add|mul)_pred_on\.sum"), 1),
    (re.compile(r"(?:smsp|sm)__sass_thread_inst_executed_op_([fdh])fma_pred_on\.sum"), 2),
    (re.compile(r"(?:smsp|sm)__ops_path_(tensor)_src_\w+(?<!sparsity_on)(?<!sparsity_off)\.sum"), 1),
    (re.compile(r"(?:smsp|sm)__inst_executed_(pipe)_tensor\.sum"), 1),
)
_COLUMNS: Final = {"f": "flops", "s": "flops", "d": "flops", "h": "half_flops", "tensor": "tensor_flops",
                   "pipe": "tensor_instructions"}  # fmt: skip
_FLOPS: Final = ("flops", "half_flops", "tensor_flops", "tensor_instructions")
_UNITS: Final = {"K": 1e3, "M": 1e6, "G": 1e9}
_HALF: Final = ("f16", "bf16")

_WINOGRAD: Final = re.compile("winograd", re.IGNORECASE)
_FFT: Final = re.compile(r"fft\dd|cgemm", re.IGNORECASE)
_TILE: Final = re.compile(r"(?<![0-9])([1-9]\d{1,2})x([1-9]\d{1,2})(?![0-9])")
_NEAR: Final = 0.005
"""Relative excess that needs no explanation: the instructions around a matrix multiplication."""


def kernel_flops(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the operations counted in the rows of `annot.profile.METRICS`, by kernel.

    The columns are kernel, flops (in 32 and 64 bits), half_flops (in 16 bits; kernels of other types use these
    instructions to move data), tensor_flops, tensor_instructions (warp instructions): Int64, a row per kernel with any
    of these counters, in order; null: not counted.
    """
    names = metrics.select("name", "unit").unique(maintain_order=True).iter_rows()
    counters = [(name, unit, *counter) for name, unit in names if (counter := _counter(name, unit)) is not None]
    schema = dict.fromkeys(("name", "unit", "column"), pl.String) | {"weight": pl.Float64, "what": pl.String}
    table = pl.DataFrame(counters, schema=schema, orient="row")
    # sm__ and smsp__ count the same instructions: keep one
    table = table.unique(["what", "unit"], keep="first", maintain_order=True)
    rows = metrics.join(table, on=["name", "unit"], nulls_equal=True)
    rows = rows.with_columns((pl.col("value") * pl.col("weight")).alias("value"))
    sums = rows.group_by("kernel").agg(
        pl.when((pl.col("column") == name).any())
        .then(pl.col("value").filter(pl.col("column") == name).sum()).round().cast(pl.Int64, strict=False).alias(name)
        for name in _FLOPS
    )  # fmt: skip
    return sums.sort("kernel")


def _counter(name: str, unit: str | None) -> tuple[str, float, str] | None:
    """The column of a counter, its weight in that column, and its name without the unit prefix (sm__ or smsp__)."""
    for pattern, weight in _COUNTERS:
        if match := pattern.fullmatch(name):
            scale = _UNITS.get((unit or "")[:1], 1.0) if (unit or "")[1:].startswith(("inst", "op")) else 1.0
            return _COLUMNS[match[1]], weight * scale, name.rpartition("__")[2]
    return None


def layer_flops(attribution: Attribution, profile: Profile) -> pl.DataFrame:
    """Return the expected FLOPs of each layer and the FLOPs counted in the kernels that the layer itself launches.

    The columns of the layers with counted kernels are layer, module, phase, kernels (counted), flops (expected; null:
    unknown), flops_measured, ratio (measured / expected), explanation: causes of a ratio other than one in the names
    and counters of the kernels; empty: unknown.
    """
    placed = attributed_kernels(attribution, profile.kernels).select("row", "node", "name")
    named = placed.hstack(attribution.forest.layers_of_nodes()[placed["node"]])
    counted = kernel_flops(profile.metrics).join(named, left_on="kernel", right_on="row").sort("kernel")
    groups = counted.partition_by(KEY, as_dict=True)
    texts = by_text(attribution)
    layers = with_work(by_layer(attribution), attribution).select(*KEY, "flops")
    rows = [
        _row(layer, groups[layer[:3]], texts.get(layer[:3], [])) for layer in layers.iter_rows() if layer[:3] in groups
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def with_measured(rows: pl.DataFrame, attribution: Attribution, profile: Profile) -> pl.DataFrame:
    """Add flops_measured, ratio and explanation of `layer_flops` to rows of layers; null: not counted.

    Args:
        rows: table with layer, module and phase.
        attribution: attribution of the profile.
        profile: the profile with its kernels and metrics.
    """
    measured = layer_flops(attribution, profile).select(*KEY, "flops_measured", "ratio", "explanation")
    return rows.join(measured, on=list(KEY), how="left", maintain_order="left")


_SCHEMA: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(KEY, pl.String), "kernels": pl.Int64, "flops": pl.Int64, "flops_measured": pl.Int64,
    "ratio": pl.Float64, "explanation": pl.String,
}  # fmt: skip


def _row(layer: tuple[Any, ...], kernels: pl.DataFrame, calls: Sequence[Tag]) -> tuple[Any, ...]:
    *key, expected = layer
    dtypes = {tensor.dtype for tag in calls for tensor in tag.tensors}
    half = not dtypes.union(str(dict(tag.arguments).get("autocast")) for tag in calls).isdisjoint(_HALF)
    columns = ("flops", "tensor_flops", *(("half_flops",) if half else ()))
    measured = sum(int(kernels[name].sum()) for name in columns)
    ratio = measured / expected if expected else None
    costs = [work for tag in calls if (work := cost(tag)) is not None]
    explanation = explain(ratio, kernels, costs) if ratio is not None else ""
    return *key, kernels.height, expected, measured, ratio, explanation


def explain(ratio: float, kernels: pl.DataFrame, costs: Iterable[Cost] = ()) -> str:
    """Return an explanation of the ratio of measured to expected FLOPs; empty: unknown.

    The kernels of a layer have name, half_flops, tensor_flops, tensor_instructions. The GEMM sizes in the costs of its
    calls show whether tiles are partly empty.
    """
    reasons = []
    names = kernels["name"].to_list()
    if any(map(_WINOGRAD.search, names)):
        reasons.append("Winograd convolution: fewer multiplications than the definition")
    if any(map(_FFT.search, names)):
        reasons.append("FFT convolution: multiplies transforms instead of applying the definition")
    if uncounted := _uncounted_gemms(kernels):
        reasons.append(uncounted)
    if not reasons and ratio > 1 + _NEAR:
        reasons += _padding(names, costs)
    return "; ".join(reasons)


def _uncounted_gemms(kernels: pl.DataFrame) -> str:
    """Return an explanation if kernels used Tensor Cores without counting their operations.

    On some GPUs (A100) the Tensor Core pipe also executes packed 16-bit instructions, which other kernels use to move
    data. Each counts as 64 operations, 2 per thread.
    """
    by_counter = pl.col("tensor_instructions") * 64 > 2 * pl.col("half_flops").fill_null(0) + 64
    by_name = pl.Series([classify(name).tensor_cores for name in kernels["name"].fill_null("")], dtype=pl.Boolean)
    uncounted = kernels.select(by_counter.fill_null(by_name) & (pl.col("tensor_flops").fill_null(0) == 0)).to_series()
    return "Tensor Cores computed matrix multiplications that these counters do not include" if uncounted.any() else ""


def _padding(names: Sequence[str], costs: Iterable[Cost]) -> list[str]:
    """Return the tile sizes that are partly empty, with the ratio of padded to expected FLOPs."""
    sizes = sorted({tile for name in names for tile in tiles(name)})
    with_gemms = [work for work in costs if work.gemms]
    whole = sum(2 * batch * rows * columns * depth for work in with_gemms for batch, rows, columns, depth in work.gemms)
    if not sizes or not whole:
        return []
    ratios = [sum(map(padded, (work.gemms for work in with_gemms), [tile] * len(with_gemms))) / whole for tile in sizes]
    listed = ", ".join(
        f"{tile[0]}x{tile[1]} (x{ratio:.3f})" for tile, ratio in zip(sizes, ratios, strict=True) if ratio > 1
    )
    return [f"tile padding: whole tiles of {listed}"] if listed else []


def tiles(name: str) -> list[tuple[int, int]]:
    """Return the output tile sizes in the name of a GEMM kernel, such as ``ampere_sgemm_128x64_tn``."""
    match = _TILE.search(name) if "gemm" in name or "cudnn" in name or "cutlass" in name else None
    return [(int(match[1]), int(match[2]))] if match else []


def padded(gemms: Sequence[tuple[int, int, int, int]], tile: tuple[int, int]) -> int:
    """Return the FLOPs of GEMMs (batch, M, N, K) padded to whole tiles, in the orientation with fewer tiles."""
    total = 0
    for batch, rows, columns, depth in gemms:
        least = min(-(-rows // high) * high * -(-columns // wide) * wide for high, wide in (tile, (tile[1], tile[0])))
        total += 2 * batch * least * depth
    return total
