"""Roofline model: achieved performance of layers and kernels relative to the peaks of their device.

F operations on B bytes have the arithmetic intensity F/B. A device with P operations and W bytes per second reaches at
most min(P, W · F/B) operations per second (Williams, Waterman, Patterson: "Roofline", CACM 52(4), 2009). Below the
ridge P/W a layer is memory-bound, above it compute-bound. A layer is launch-bound or host-bound if the device waits
longer for the CPU than it works: for launches, or for other CPU code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from annot.analyze.gpu_activities import KEY, device_idle
from annot.analyze.hardware_counters import measured_work
from annot.analyze.kernel_kinds import MATRIX, classify
from annot.analyze.roofs import Peaks
from annot.analyze.tensor_cores import multiplies
from annot.analyze.work import by_text, layer_work
from annot.attribution import Attribution, by_layer

__all__ = ["kernel_roofline", "layer_roofline", "precision_of", "under_roof"]

_DTYPE: Final = re.compile(r"\](f64|f32|f16|bf16|float[84]\w*)")
_FROM_AMD: Final = ("MIOpen", "rocBLAS", "hipBLASLt", "Composable Kernel", "AITER")
_CAST: Final = ("f32", "f16", "bf16")
_NARROW: Final = {"float8": "f8", "float4": "f4"}
_IN_NAME: Final = re.compile(
    r"(?P<bf16>bf16|bfloat16|^Cijk_\w*_B[BS]S_)"
    r"|(?P<f16>^Cijk_\w*_H[HS]S_|(?<![a-z])(?:f16|fp16|h(?:gemm|884|1688|16816)|half)(?![a-z]))"
    r"|(?P<f64>dgemm|f64|(?<![a-z])double(?![a-z]))|(?P<f8>e4m3|e5m2)|(?P<f6>e2m3|e3m2)|(?P<f4>e2m1|nvf4|mxf4(?!nv)|nvfp4)",
    re.IGNORECASE,
)
_SINGLE: Final = re.compile(r"(?<![a-z])(?:float(?![0-9])|t?f32|fp32|s(?:gemm|cudnn)|^Cijk_\w*_SB_)", re.IGNORECASE)


def layer_roofline(attribution: Attribution, peaks: Peaks, work: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the roofline of each layer of a model.

    Args:
        attribution: the profile.
        peaks: peaks of the device; if they are unknown, `bound` is only known for launch-bound and host-bound layers.
        work: expected work of the layers; None: the result of `annot.analyze.work.layer_work`.

    Returns:
        layer, module, phase: in the order of `annot.attribution.by_layer`.
        self_ns: time_ns without nested layers.
        flops, bytes: Int64, of all calls; null: not counted.
        intensity: FLOPs per byte.
        time_ns: GPU time, nested layers included; CPU time if the profile is without GPU activities.
        gpu_idle_ns, gpu_launch_ns: see `annot.analyze.gpu_activities.idle_of_nodes`.
        flops_per_s, bytes_per_s: achieved.
        precision: a name of `annot.analyze.roofs.Peaks`. It is the precision in the name of the longest kernel
            that multiplies matrices, else the autocast dtype, else the dtype of the first floating-point input, else
            the precision in the name of the longest kernel; with ``tensor`` if that kernel uses Tensor Cores; null:
            unknown, as for layers without kernels and dtypes, and for kernels whose names do not show the unit.
        roof_share: achieved performance relative to the roof at this intensity; above 1 if the tensors come from a
            cache, or if the device is faster than its peaks.
        bound: compute, memory, launch (the device waits longer than it works, mostly for launches), host (it waits
            mostly for other CPU code, such as memory allocation) or null.
    """
    rows = by_layer(attribution)
    on_device = bool(rows["gpu_self_ns"].sum())
    rows = rows.filter(pl.col("phase").is_in(["forward", "backward", "recompute"]) & (pl.col("module") != ""))
    time = "gpu" if on_device else "host"
    rows = rows.with_columns(time_ns=f"{time}_ns", self_ns=f"{time}_self_ns")
    work = layer_work(attribution) if work is None else work
    # Containers are left out: their time is inclusive, the work is that of their own operations.
    computing = work.filter(pl.col("counted") & (pl.col("flops") + _BYTES > 0))
    if on_device:
        computing = computing.join(rows.filter(pl.col("gpu_ns") == pl.col("gpu_self_ns")), on=list(KEY), how="semi")
    counted = computing.select(*KEY, "flops", _BYTES.alias("bytes"))
    for table in (counted, _precisions(attribution, rows)):
        rows = rows.join(table, on=list(KEY), how="left", maintain_order="left")
    idle = device_idle(attribution) if on_device else None
    if idle is None:
        rows = rows.with_columns(gpu_idle_ns=pl.lit(None, pl.Int64), gpu_launch_ns=pl.lit(None, pl.Int64))
    else:
        rows = rows.join(idle, on=list(KEY), how="left", maintain_order="left")
        rows = rows.with_columns(pl.col("gpu_idle_ns", "gpu_launch_ns").fill_null(0))
    return under_roof(rows, peaks).select(*KEY, "self_ns", *_COLUMNS)


_BYTES: Final = pl.col("bytes_read") + pl.col("bytes_written")
_COLUMNS: Final = (
    "flops", "bytes", "intensity", "time_ns", "gpu_idle_ns", "gpu_launch_ns", "flops_per_s", "bytes_per_s", "precision",
    "roof_share", "bound",
)  # fmt: skip


def kernel_roofline(attribution: Attribution, peaks: Peaks) -> pl.DataFrame:
    """Return the roofline of each kernel from hardware counters.

    Args:
        attribution: a profile of Nsight Compute or nvprof with counters of operations and of bytes of device memory.
        peaks: peaks of the device.

    Returns:
        name, calls, then the columns of `layer_roofline` from flops, and short (name), the longest first; only kernels
        with counters.
    """
    work = measured_work(attribution)
    precisions = [
        _precision(name, "f64" if double * 2 > flops else "f32")
        for name, flops, double in work.select("name", "flops", "f64_flops").iter_rows()
    ]
    unknown = pl.lit(None, pl.Int64)
    rows = work.with_columns(pl.Series("precision", precisions, pl.String), gpu_idle_ns=unknown, gpu_launch_ns=unknown)
    roofline = under_roof(rows, peaks).select("name", "calls", *_COLUMNS)
    from annot.analyze.kernel_short_names import with_short_names

    return with_short_names(roofline.sort("time_ns", "name", descending=[True, False]), attribution)


def under_roof(rows: pl.DataFrame, peaks: Peaks) -> pl.DataFrame:
    """Add intensity, achieved rates, roof_share and bound to rows.

    The rows have flops, bytes, time_ns, gpu_idle_ns, gpu_launch_ns and precision.
    """
    roofs = [
        peaks.of(precision.removesuffix(" tensor"), tensor_cores=" " in precision)
        for precision in rows["precision"].fill_null("")
    ]
    bandwidth = pl.lit(peaks.bandwidth, pl.Float64)
    seconds = pl.when(pl.col("time_ns") > 0).then(pl.col("time_ns") / 1e9)
    intensity = pl.when(pl.col("bytes") > 0).then(pl.col("flops") / pl.col("bytes"))
    rows = rows.with_columns(
        pl.Series("roof", roofs, pl.Float64),
        intensity.alias("intensity"),
        (pl.col("flops") / seconds).alias("flops_per_s"),
        (pl.col("bytes") / seconds).alias("bytes_per_s"),
    )
    by_memory = pl.col("intensity") * bandwidth <= pl.col("roof")
    by_memory |= (pl.col("intensity") == 0) & bandwidth.is_not_null()  # whatever the precision
    share = pl.when(by_memory).then(pl.col("bytes_per_s") / bandwidth).otherwise(pl.col("flops_per_s") / pl.col("roof"))
    waits = (pl.col("gpu_idle_ns") > pl.col("time_ns")).fill_null(False)
    launches = 2 * pl.col("gpu_launch_ns") >= pl.col("gpu_idle_ns")
    cause = pl.when(launches).then(pl.lit("launch")).otherwise(pl.lit("host"))
    bound = pl.when(waits).then(cause).when(by_memory).then(pl.lit("memory")).when(~by_memory)
    return rows.with_columns(share.alias("roof_share"), bound.then(pl.lit("compute")).alias("bound"))


def _precisions(attribution: Attribution, rows: pl.DataFrame) -> pl.DataFrame:
    """The compute precision of each layer: layer, module, phase, precision."""
    columns = ("layer", "module", "shapes")
    shapes = {(layer, module): texts for layer, module, texts in rows.select(columns).iter_rows() if texts}
    gemms, casts = _longest(attribution, MATRIX), _autocast(attribution)
    longest = _longest(attribution, ())  # fallback for layers with unknown input dtypes
    precisions: list[tuple[str | None, ...]] = []
    for key in rows.select(KEY).rows():
        dtype = casts.get(key[:2]) or _dtype(shapes.get(key[:2], []))
        kernel = gemms.get(key) or ("" if dtype else longest.get(key, ""))
        precisions.append((*key, _precision(kernel, dtype or ("f32" if _SINGLE.search(kernel) else None))))
    return pl.DataFrame(precisions, schema=dict.fromkeys((*KEY, "precision"), pl.String), orient="row")


def _autocast(attribution: Attribution) -> dict[tuple[str, str], str]:
    """The autocast dtype of layers that multiply matrices. Autocast does not cast float64 inputs."""
    casts: dict[tuple[str, str], str] = {}
    for (layer, module, _), tags in by_text(attribution).items():
        for tag in tags if multiplies(module) else ():
            cast = dict(tag.arguments).get("autocast")
            if isinstance(cast, str) and tag.tensors and tag.tensors[0].dtype in _CAST:
                casts.setdefault((layer, module), cast)
    return casts


def precision_of(kernel: str | None, shapes: str | None) -> str | None:
    """Return the precision of an operator with the longest kernel that multiplies matrices; None: unknown.

    It is that of the kernel's name, else of the first floating-point input. Where the name does not show the unit, the
    roof of inputs of 16 bits and fewer is that of Tensor Cores.
    """
    dtype = _dtype([shapes]) if shapes else None
    if kernel is None:
        return dtype
    narrow = dtype not in (None, "f32", "f64") and classify(kernel).tensor_cores is None
    return f"{dtype} tensor" if narrow else _precision(kernel, dtype)


def _precision(kernel: str, dtype: str | None) -> str | None:
    """The precision in the name of a kernel, else the dtype of the inputs."""
    kernel_class = classify(kernel)
    if kernel_class.kind in MATRIX and kernel_class.tensor_cores is None:
        return None
    match = _IN_NAME.search(kernel)
    precision = dtype if match is None else next(name for name, text in match.groupdict().items() if text)
    if not kernel_class.tensor_cores or precision is None:
        return precision
    # Matrix Cores of AMD multiply float32 without rounding to TF32.
    rounded = precision == "f32" and kernel_class.library not in _FROM_AMD
    return f"{'tf32' if rounded else precision} tensor"


def _dtype(shapes: list[str]) -> str | None:
    match = _DTYPE.search(" ".join(shapes))
    return None if match is None else _NARROW.get(match[1][:6], match[1])


def _longest(attribution: Attribution, kinds: Sequence[str]) -> dict[tuple[str, str, str], str]:
    """The longest kernel of the given kinds, or of any kind if empty, that each layer itself launches."""
    names, keys = attribution.forest.keys.names, attribution.forest.nodes.keys
    kernels: dict[tuple[str, str, str], str] = {}
    longest = attribution.names.filter("kernel").sort("gpu_ns", descending=True).select("node", "name")
    for node, name in longest.iter_rows():
        if not kinds or classify(name).kind in kinds:
            kernels.setdefault(names[keys[node]], name)
    return kernels
