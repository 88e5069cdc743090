"""Use of Tensor Cores by layers: eligibility, actual use, and reasons for not using them.

Tensor Cores require a matrix multiplication, a supported dtype, and sizes that are multiples of 16 bytes
(https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html, "Requirements to
use Tensor Cores"). Newer libraries also use them for other sizes, at a lower speed; such layers count as using them.

The reports by kernel, operation type and layer are those of NVIDIA's Deep Learning Profiler (DLProf), which correlates
kernels with operations and names these by call stacks. Here a layer replaces the operation (Op Name is `layer`), and
its module class replaces the operation type. CPU Time is `host_ns`, CPU Overhead (API calls) is `launch_ns`, Direction
is `phase`, and Using TC is `tc_used`. Times are in ns and not rounded. Grids, blocks and stack traces are left out
because not all profiles contain them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import polars as pl
import polars.selectors as cs

from annot.analyze.gpu_activities import attributed_kernels, has_gpu_activities, over
from annot.analyze.kernel_names import MATRIX, layer_names, with_classes
from annot.analyze.step_parts import calls_of, typed
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import by_layer, of_modules
from annot.attribution.nesting import KEY
from annot.labels import tag
from annot.profile import Profile

COUNTERS: Final = {
    "exact": r"^(?:sm|smsp)__\w*(?:pipe_tensor_\w*mma|path_tensor|op_\w*mma)|^tensor_(?:precision|int)_fu_utilization$",
    "pipe": r"^(?:sm|smsp)__inst_executed_pipe_tensor\.sum$",
    "packed": r"^(?:sm|smsp)__sass_thread_inst_executed_op_hfma_pred_on\.sum$",
}
"""Metrics of Nsight Compute and nvprof that show whether a kernel computes on Tensor Cores.

"exact" metrics are above 0 if and only if it does. The "pipe" of an A100 also executes packed half-precision
multiply-adds, which any kernel may contain; "packed" counts these per thread, 32 threads to an instruction.
"""

_CLASS: Final = re.compile(
    r"(?:^|\+)(?:Lazy|NonDynamicallyQuantizable|Quantized)?"
    r"(?:Linear|Bilinear|(?:Conv|ConvTranspose|SeparableConv)[123][dD]|Conv[123]DTranspose|Dense|EinsumDense"
    r"|Multi[hH]eadAttention|(?:LSTM|GRU|RNN)(?:Cell)?)(?:\+|$)"
)
_DIVISOR: Final = {"f16": 8, "bf16": 8, "f32": 4, "i8": 16, "u8": 16, "f64": 2}
_FLOAT8: Final = "float8"
_HAS_TF32: Final = re.compile(r"tf32|tensorop_s1688")
F32_KERNEL: Final = re.compile(r"(?:^|_)s(?:gemm|cudnn)|_simt_s|_ffma|_f32f32_f32f32_f32_|gemv\w*<[^(]*float")
"""Names of float32 GEMM and convolution kernels outside Tensor Cores."""
_F64_KERNEL: Final = re.compile(r"(?:^|_)d(?:gemm|cudnn)|_simt_d")
_METHODS: Final = (
    (re.compile(r"(?i)winograd"), "a Winograd convolution"),
    (re.compile(r"(?i)fft|gcgemm"), "an FFT convolution"),
    (re.compile(r"(?i)gemv|dot_kernel|gemmk1"), "a matrix-vector multiplication"),
)
_NO_TF32: Final = "f32 without TF32: use torch.autocast, or torch.set_float32_matmul_precision('high') for TF32"


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of a layer, parsed from its labels: dtype ("" if unknown), and GEMM sizes by name."""

    dtype: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    depthwise: bool = False


class _Kernel(NamedTuple):
    """All calls of one kernel in a layer."""

    name: str
    kind: str
    library: str
    tensor_cores: bool | None
    gpu_ns: int


def layer_tensor_cores(attribution: Attribution) -> pl.DataFrame:
    """Return which layers use Tensor Cores (AMD: Matrix Cores), and why the others do not.

    Returns:
        layer, module, phase: the rows of `annot.attribution.by_layer`, in its order.
        tc_eligible: whether the layer multiplies matrices, by its class or by the kernels that it launches; depthwise
            convolutions are not eligible. Unsuitable dtypes and sizes do not count, because they can be changed; see
            `reason`.
        tc_used: whether any of its kernels uses them, by hardware counters (`COUNTERS`) if available, else by name;
            null: it launches no kernels, or their names do not show it.
        tc_ns, gpu_self_ns: GPU time of the kernels on Tensor Cores, and of all activities that the layer launches.
        reason: why the layer does not use them or is not eligible; empty if it uses them.
    """
    work = tensor_core_work(attribution)
    inputs, meta = _inputs(attribution), attribution.meta
    tf32 = any(_HAS_TF32.search(name) for name in work.filter("tensor_cores")["name"])
    longest = work.filter("kernel").sort("gpu_ns", "name", descending=[True, False]).select(*KEY, *_Kernel._fields)
    kernels = {
        key: list(map(_Kernel._make, group.rows()))
        for key, group in longest.partition_by(KEY, as_dict=True, include_key=False).items()
    }
    rows = []
    for layer, module, phase, ns in by_layer(attribution).select(*KEY, "gpu_self_ns").iter_rows():
        seen = inputs.get((layer, module), _Inputs())
        *verdict, reason = _verdict(module, kernels.get((layer, module, phase), []), seen, meta, tf32=tf32)
        rows.append((layer, module, phase, *verdict, ns, reason))
    schema = dict.fromkeys(KEY, pl.String) | {
        "tc_eligible": pl.Boolean,
        "tc_used": pl.Boolean,
        "tc_ns": pl.Int64,
        "gpu_self_ns": pl.Int64,
        "reason": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def matrix_units(meta: Mapping[str, Any]) -> str:
    """Return the name of the devices' matrix units: Tensor Cores, or Matrix Cores if all devices are from AMD.

    Args:
        meta: metadata of the profile.

    Example:
        >>> matrix_units({"devices": [{"name": "AMD Instinct MI300X"}]}), matrix_units({})
        ('Matrix Cores', 'Tensor Cores')
    """
    names = [str(device.get("name", "")) for device in meta.get("devices") or ()]
    return "Matrix Cores" if any(names) and all("AMD" in name for name in names if name) else "Tensor Cores"


def precision_words(precision: str, units: str) -> str:
    """Return a precision (`annot.analyze.peaks.Peaks`) in words for the matrix units of a device.

    Example:
        >>> precision_words("f16 tensor", "Matrix Cores"), precision_words("f16 tensor", "Tensor Cores")
        ('f16 matrix', 'f16 tensor')
    """
    return precision.replace("tensor", units.split()[0].lower())


def multiplies(module: str) -> bool:
    """Return whether a module class multiplies matrices; ``A+B`` is a fusion of several layers.

    Example:
        >>> multiplies("Conv2d"), multiplies("ReLU+Linear"), multiplies("BatchNorm2d")
        (True, True, False)
    """
    return _CLASS.search(module) is not None


def tensor_core_work(attribution: Attribution) -> pl.DataFrame:
    """Return the rows of `layer_names`, with tensor_cores from hardware counters if available."""
    names = layer_names(attribution)
    counted = _counted(attribution)
    if counted is None:
        return names
    rows = with_classes(attribution.forest.layers_of_nodes()[counted["node"]].hstack(counted))
    by_kind = (pl.col("pipe") > 0) & pl.col("kind").is_in([*MATRIX, "other"])
    beyond_packed = pl.col("pipe") > 2 * pl.col("packed") / 32  # predicated-off threads of an instruction do not count
    by_counters = pl.coalesce(pl.col("exact") > 0, beyond_packed, by_kind)  # null: not counted
    rows = rows.with_columns(pl.coalesce(by_counters, "tensor_cores").alias("tensor_cores"))
    sums = rows.group_by(*KEY, "name", "kernel", "kind", "library", "tensor_cores", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("gpu_ns").sum()
    )
    return pl.concat([sums.select(names.columns), names.filter(~pl.col("kernel"))])


def _counted(attribution: Attribution) -> pl.DataFrame | None:
    """Kernels of a profile with counters: node, name, kernel, gpu_ns, and the maximum of each of `COUNTERS`."""
    profile = attribution.source
    if not isinstance(profile, Profile):
        return None
    counters = profile.metrics.filter(pl.col("name").str.contains(f"{COUNTERS['exact']}|{COUNTERS['pipe']}"))
    if counters.is_empty():
        return None
    value = pl.col("value")
    most = [value.filter(pl.col("name").str.contains(pattern)).max().alias(name) for name, pattern in COUNTERS.items()]
    used = profile.metrics.group_by("kernel").agg(most)
    placed = attributed_kernels(attribution, profile.kernels).join(
        used, left_on="row", right_on="kernel", how="left", maintain_order="left"
    )
    return placed.select("node", "name", "kernel", "gpu_ns", *COUNTERS)


def _verdict(
    module: str, kernels: list[_Kernel], inputs: _Inputs, meta: Mapping[str, Any], *, tf32: bool
) -> tuple[bool, bool | None, int, str]:
    """tc_eligible, tc_used, tc_ns and reason of a layer with these kernels."""
    times = [kernel.gpu_ns for kernel in kernels if kernel.tensor_cores]
    if times:
        return True, True, sum(times), ""
    used = False if kernels else None
    gemms = [kernel for kernel in kernels if kernel.kind in MATRIX]
    if not gemms and not multiplies(module):
        return False, used, 0, "no matrix multiplication"
    if inputs.depthwise or (gemms and all("depthwise" in kernel.name.lower() for kernel in gemms)):
        return False, used, 0, "depthwise convolution"
    if not kernels:
        return True, None, 0, _obstacle(inputs, tf32=True) or "the layer itself launches no kernels"
    unclear = next((kernel.name for kernel in gemms or kernels if kernel.tensor_cores is None), None)
    if unclear is not None and (not inputs.dtype or divisor_of(inputs.dtype) is not None):
        return True, None, 0, f"unknown: the kernel name does not show it: {unclear[:60]}"
    return True, False, 0, _why_not([kernel.name for kernel in gemms], inputs, meta, tf32=tf32)


def _why_not(names: list[str], inputs: _Inputs, meta: Mapping[str, Any], *, tf32: bool) -> str:
    """The first applicable reason for a layer with these GEMM kernels, the longest first."""
    devices = [device for device in meta.get("devices") or () if "AMD" not in str(device.get("name", ""))]
    majors = [device.get("computeMajor", device.get("compute_cap_major")) for device in devices]
    if majors and all(isinstance(major, int) and 0 < major < 7 for major in majors):  # compute capability of Volta
        return "the GPU is older than Volta"
    if not names:
        return "its kernels do not multiply matrices"
    if obstacle := _obstacle(inputs, tf32=tf32):
        return obstacle
    if method := next((method for pattern, method in _METHODS if pattern.search(names[0])), None):
        return f"the library chose {method}"
    if not inputs.dtype and _F64_KERNEL.search(names[0]):
        return "f64"
    if not inputs.dtype and F32_KERNEL.search(names[0]):
        return _NO_TF32
    return f"the library chose a kernel without them: {names[0][:60]}"


def _obstacle(inputs: _Inputs, *, tf32: bool) -> str:
    """The dtype or sizes that prevent the use of Tensor Cores; empty: unknown."""
    if inputs.dtype == "f32" and not tf32:
        return _NO_TF32
    divisor = divisor_of(inputs.dtype)
    if divisor is None:
        return f"{inputs.dtype} is not supported" if inputs.dtype else ""
    odd = [f"{name}={size}" for name, size in inputs.sizes if size % divisor]
    return f"{', '.join(odd)} not divisible by {divisor}" if odd else ""


def divisor_of(dtype: str) -> int | None:
    """Return the number of elements in 16 bytes, of which GEMM sizes on Tensor Cores are multiples; None: unsupported.

    Example:
        >>> divisor_of("bf16"), divisor_of("i64")
        (8, None)
    """
    return 16 if dtype.startswith(_FLOAT8) else _DIVISOR.get(dtype)


def _inputs(attribution: Attribution) -> dict[tuple[str, str], _Inputs]:
    """Inputs of each layer and class from its first forward label with tensors."""
    inputs: dict[tuple[str, str], _Inputs] = {}
    for text in attribution.forest.labels["text"]:
        parsed = tag.parse(text or "")
        if parsed is None or parsed.phase not in ("forward", "recompute") or not parsed.tensors:
            continue
        first, arguments = parsed.tensors[0], dict(parsed.arguments)
        cast, out, groups = (arguments.get(name) for name in ("autocast", "out", "groups"))
        dtype = cast if isinstance(cast, str) and first.dtype in ("f32", "f16", "bf16") else first.dtype
        sizes = dict(_sizes(parsed.module, first.shape)) | ({"out": out} if isinstance(out, int) else {})
        depthwise = isinstance(groups, int) and groups > 1 and groups == sizes.get("in")
        inputs.setdefault((parsed.layer, parsed.module), _Inputs(dtype, tuple(sizes.items()), depthwise))
    return inputs


def _sizes(module: str, shape: tuple[int | None, ...]) -> Iterator[tuple[str, int]]:
    """GEMM sizes that follow from the input shape."""
    is_convolution = "Conv" in module
    channel = 1 if is_convolution and module.endswith("d") and len(shape) > 1 else -1
    sizes = [size for size in shape if size is not None]
    if len(sizes) < len(shape) or not shape:
        return
    yield "in", sizes[channel]
    if not is_convolution and len(sizes) > 1 and "Linear" in module:
        yield "batch", math.prod(sizes[:-1])


def by_iteration(attribution: Attribution) -> pl.DataFrame:
    """Return DLProf's report of kernels by iteration: a row per kernel, copy and memset, by start.

    Returns:
        step (null: outside the steps), layer, module, phase, name, kind, library, tensor_cores (null: the name does not
        show it), process, device, stream, start_ns and gpu_ns on the device, launch_start_ns and launch_ns of the API
        call (null: unknown). Texts are `pl.Categorical`, because they repeat.
    """
    calls, keys = calls_of(attribution), attribution.forest.layers_of_nodes().cast(pl.Categorical)
    tables = [pl.DataFrame(schema=_ITERATION)]
    for block in attribution.activity_blocks():
        row = calls.rows(block["process"], block["correlation"])
        times = block.select(
            column_ops.known(block["step"]),
            cs.by_name("process", "device", "stream", require_all=False),
            "gpu_ns",
            start_ns="start",
            launch_start_ns=calls.start.gather(row),
            launch_ns=calls.ns.gather(row),
        )
        kinds = with_classes(block.select("name"))
        rows = pl.concat([times, keys[block["node"]], kinds], how="horizontal")
        tables.append(typed(rows, _ITERATION))
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
    rows = rows.filter(pl.col("kernels").is_not_null() | (pl.col("tc_eligible") & has_gpu_activities(attribution)))
    return rows.select(
        *KEY,
        "tc_eligible",
        "tc_used",
        "gpu_self_ns",
        "tc_ns",
        other_ns=pl.col("gpu_self_ns") - pl.col("tc_ns"),
        tc_share=over("tc_ns", "gpu_self_ns"),
        kernels=pl.col("kernels").fill_null(0),
        tc_kernels=pl.col("tc_kernels").fill_null(0),
        tc_names=pl.col("tc_names").fill_null([]),
        other_names=pl.col("other_names").fill_null([]),
        reason="reason",
    )


_OF_DEVICES: Final = ("matrix_ns", "outside_ns", "outside", "launch_ns", "reason")


def on_devices(table: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """The table with null in its GPU columns if the profile is without GPU activities: 0 would mean measured."""
    if has_gpu_activities(attribution):
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
    rows = by_layer(attribution).select(*KEY, "calls", host_ns="host_self_ns", gpu_ns="gpu_self_ns")
    used = layer_tensor_cores(attribution).drop("gpu_self_ns", "reason")
    rows = of_modules(rows.join(used, on=KEY, how="left", maintain_order="left"))
    time = pl.col("gpu_ns" if has_gpu_activities(attribution) else "host_ns")
    forward, backward = pl.col("phase") == "forward", pl.col("phase").is_in(["backward", "recompute"])
    calls = pl.when(forward.any()).then(pl.col("calls").filter(forward).sum()).otherwise(pl.col("calls").sum())
    per_layer = rows.group_by("module", "layer", maintain_order=True).agg(
        calls.alias("calls"),
        pl.col("host_ns", "gpu_ns", "tc_ns").sum(),
        pl.col("tc_eligible", "tc_used").any(),
        forward_ns=time.filter(forward).sum(),
        backward_ns=time.filter(backward).sum(),
    )
    mean = pl.when(pl.col("calls") > 0).then(pl.col("gpu_ns") // pl.col("calls"))
    table = (
        per_layer.with_columns(mean.alias("mean"))
        .group_by("module", maintain_order=True)
        .agg(
            pl.col("calls", "host_ns", "gpu_ns", "tc_ns", "forward_ns", "backward_ns").sum(),
            pl.col("tc_eligible", "tc_used").sum().cast(pl.Int64),
            layers=pl.len().cast(pl.Int64),
            gpu_min_ns=pl.col("mean").min(),
            gpu_max_ns=pl.col("mean").max(),
        )
    )
    table = table.sort("gpu_ns", "host_ns", descending=True, maintain_order=True).with_columns(gpu_mean_ns=mean)
    return on_devices(table, attribution).select(
        pl.col("module", "layers", "tc_eligible", "tc_used", "calls", "host_ns", "gpu_ns", "tc_ns"),
        pl.col("gpu_mean_ns", "gpu_min_ns", "gpu_max_ns", "forward_ns", "backward_ns"),
    )
