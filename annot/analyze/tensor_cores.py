"""Which layers compute on Tensor Cores, which could and do not, and why.

What Tensor Cores need: a product of matrices, a dtype that they have, and sizes that are multiples of 16 bytes
(https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html, "Requirements to
use Tensor Cores"). Newer libraries use them for other sizes as well, at a lower speed; such a layer uses them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import polars as pl

from annot import tag
from annot.analyze.kernels import MATRIX, layer_names, with_classes
from annot.correlate import by_layer
from annot.correlate.attribution import Attribution
from annot.profile import Profile, kernels_as_work

__all__ = ["COUNTERS", "F32_KERNEL", "layer_tensor_cores", "matrix_units", "multiplies", "tensor_core_work"]

COUNTERS: Final = {
    "exact": r"^(?:sm|smsp)__\w*(?:pipe_tensor_\w*mma|path_tensor|op_\w*mma)|^tensor_(?:precision|int)_fu_utilization$",
    "pipe": r"^(?:sm|smsp)__inst_executed_pipe_tensor\.sum$",
    "packed": r"^(?:sm|smsp)__sass_thread_inst_executed_op_hfma_pred_on\.sum$",
}
"""Metrics of Nsight Compute and nvprof that tell whether a kernel computed on Tensor Cores.

Those that are exact are above 0 if and only if it did. The pipe of an A100 executes packed half-precision
multiply-adds as well, which any kernel may have: 32 threads to an instruction, as far as they are counted.
"""

_KEY: Final = ("layer", "module", "phase")
_CLASS: Final = re.compile(
    r"(?:^|\+)(?:Lazy|NonDynamicallyQuantizable|Quantized)?"
    r"(?:Linear|Bilinear|(?:Conv|ConvTranspose|SeparableConv)[123][dD]|Conv[123]DTranspose|Dense|EinsumDense"
    r"|Multi[hH]eadAttention|(?:LSTM|GRU|RNN)(?:Cell)?)(?:\+|$)"
)
_DIVISOR: Final = {"f16": 8, "bf16": 8, "f32": 4, "i8": 16, "u8": 16, "f64": 2}
_FLOAT8: Final = "float8"
_HAS_TF32: Final = re.compile(r"tf32|tensorop_s1688")
F32_KERNEL: Final = re.compile(r"(?:^|_)s(?:gemm|cudnn)|_simt_s|_ffma|_f32f32_f32f32_f32_|gemv\w*<[^(]*float")
"""Names of kernels that multiply matrices in 32 bits outside Tensor Cores."""
_F64_KERNEL: Final = re.compile(r"(?:^|_)d(?:gemm|cudnn)|_simt_d")
_METHODS: Final = (
    (re.compile(r"(?i)winograd"), "a Winograd convolution"),
    (re.compile(r"(?i)fft|gcgemm"), "a convolution by FFT"),
    (re.compile(r"(?i)gemv|dot_kernel|gemmk1"), "a product of a matrix and a vector"),
)
_AUTOCAST: Final = "use torch.autocast, or torch.set_float32_matmul_precision('high') for TF32"


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What the texts of a layer say of its inputs: dtype ("" if unknown), and sizes by name."""

    dtype: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    depthwise: bool = False


class _Kernel(NamedTuple):
    """All calls of one kernel in a layer."""

    name: str
    kind: str
    library: str
    tensor_cores: bool
    gpu_ns: int


def layer_tensor_cores(attribution: Attribution) -> pl.DataFrame:
    """Return which layers use Tensor Cores (AMD: Matrix Cores), and why the others do not.

    Returns:
        layer, module, phase: the rows of `annot.correlate.by_layer`, in its order.
        tc_eligible: whether the layer multiplies matrices, by its class or by its own kernels, and not one channel
            at a time. Dtype and sizes can be changed: they stand in `reason`.
        tc_used: whether any of its own kernels uses them, by the counters if the profile has some (`COUNTERS`), else
            by name; null: it has no kernels of its own, or their names do not tell.
        tc_ns, gpu_self_ns: device time of the kernels that do, and all that is its own.
        reason: why an eligible layer does not; or that it is not eligible; empty if it does.

    Example:
        >>> from annot.correlate import attribute
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["norm LayerNorm [4,8]f32 |fwd"], "start": [0], "end": [900]}
        >>> layer_tensor_cores(attribute(Profile.build({}, ranges=pl.DataFrame(ranges)))).row(0)[3:]
        (False, None, 0, 0, 'no product of matrices')
    """
    work = tensor_core_work(attribution)
    inputs, meta = _inputs(attribution), attribution.meta
    tf32 = any(_HAS_TF32.search(name) for name in work.filter("tensor_cores")["name"])
    kernels = _kernels(work)
    rows = []
    for layer, module, phase, ns in by_layer(attribution).select(*_KEY, "gpu_self_ns").iter_rows():
        seen = inputs.get((layer, module), _Inputs())
        verdict = _verdict(module, kernels.get((layer, module, phase), []), seen, meta, tf32=tf32)
        rows.append((layer, module, phase, *verdict, ns))
    schema = dict.fromkeys(_KEY, pl.String) | {
        "tc_eligible": pl.Boolean, "tc_used": pl.Boolean, "tc_ns": pl.Int64, "reason": pl.String,
        "gpu_self_ns": pl.Int64,
    }  # fmt: skip
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table.select(*_KEY, "tc_eligible", "tc_used", "tc_ns", "gpu_self_ns", "reason")


def matrix_units(meta: Mapping[str, Any]) -> str:
    """Return what devices call their units for matrices: Tensor Cores, or Matrix Cores if all are AMD's.

    Args:
        meta: of the profile.

    Example:
        >>> matrix_units({"devices": [{"name": "AMD Instinct MI300X"}]}), matrix_units({})
        ('Matrix Cores', 'Tensor Cores')
    """
    names = [str(device.get("name", "")) for device in meta.get("devices") or ()]
    return "Matrix Cores" if any(names) and all("AMD" in name for name in names if name) else "Tensor Cores"


def multiplies(module: str) -> bool:
    """Return whether a class of layers is known to multiply matrices; ``A+B`` is several in one kernel.

    Example:
        >>> multiplies("Conv2d"), multiplies("ReLU+Linear"), multiplies("BatchNorm2d")
        (True, True, False)
    """
    return _CLASS.search(module) is not None


def tensor_core_work(attribution: Attribution) -> pl.DataFrame:
    """Return what `annot.analyze.kernels.layer_names` does, but tensor_cores is what counters say, if there are any."""
    names = layer_names(attribution)
    counted = _counted(attribution)
    if counted is None:
        return names
    forest = attribution.forest
    keys = pl.DataFrame(forest.keys.names, schema=_KEY, orient="row")
    key = pl.Series(forest.nodes.keys, dtype=pl.Int64).gather(counted["node"])
    rows = pl.concat([keys[key], counted], how="horizontal")
    rows = with_classes(rows).with_columns(pl.coalesce(_says_counter(), "tensor_cores").alias("tensor_cores"))
    sums = rows.group_by(*_KEY, "name", "kernel", "kind", "library", "tensor_cores", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("gpu_ns").sum()
    )
    return pl.concat([sums.select(names.columns), names.filter(~pl.col("kernel"))])


def _counted(attribution: Attribution) -> pl.DataFrame | None:
    """Each kernel of a profile with such counters: node, name, kernel, gpu_ns, and the most of each of `COUNTERS`."""
    profile = attribution.source
    if not isinstance(profile, Profile):
        return None
    counters = profile.metrics.filter(pl.col("name").str.contains(f"{COUNTERS['exact']}|{COUNTERS['pipe']}"))
    if counters.is_empty():
        return None
    value = pl.col("value")
    most = [value.filter(pl.col("name").str.contains(pattern)).max().alias(name) for name, pattern in COUNTERS.items()]
    used = profile.metrics.group_by("kernel").agg(most)
    placed = attribution.places.of(kernels_as_work(profile.kernels)).with_row_index("row")
    placed = placed.with_columns(pl.col("row").cast(pl.Int64)).filter(~pl.col("left_out"))
    placed = placed.join(used, left_on="row", right_on="kernel", how="left", maintain_order="left")
    return placed.select("node", "name", "kernel", "gpu_ns", *COUNTERS)


def _says_counter() -> pl.Expr:
    """Whether counters tell that a kernel computed on Tensor Cores; null: it has none."""
    by_kind = (pl.col("pipe") > 0) & pl.col("kind").is_in([*MATRIX, "other"])
    beyond_packed = pl.col("pipe") > 2 * pl.col("packed") / 32  # not all 32 threads of an instruction need count
    return pl.coalesce(pl.col("exact") > 0, beyond_packed, by_kind)


def _kernels(work: pl.DataFrame) -> dict[tuple[str, str, str], list[_Kernel]]:
    """The kernels of each layer, the longest first."""
    found: dict[tuple[str, str, str], list[_Kernel]] = defaultdict(list)
    rows = work.filter("kernel").sort("gpu_ns", "name", descending=[True, False])
    for *key, name, kind, library, uses, ns in rows.select(*_KEY, *_Kernel._fields).iter_rows():
        found[key[0], key[1], key[2]].append(_Kernel(name, kind, library, uses, ns))
    return found


def _verdict(
    module: str, kernels: list[_Kernel], inputs: _Inputs, meta: Mapping[str, Any], *, tf32: bool
) -> tuple[bool, bool | None, int, str]:
    """tc_eligible, tc_used, tc_ns and reason of a layer with these kernels."""
    using = [one.gpu_ns for one in kernels if one.tensor_cores]
    if using:
        return True, True, sum(using), ""
    used = False if kernels else None
    products = [one for one in kernels if one.kind in MATRIX]
    if not products and not multiplies(module):
        return False, used, 0, "no product of matrices"
    if inputs.depthwise or (products and all("depthwise" in one.name.lower() for one in products)):
        return False, used, 0, "a depthwise convolution"
    if not kernels:
        return True, None, 0, _obstacle(inputs, tf32=True) or "no kernels of its own"
    if any(one.library == "Triton" for one in products):
        return True, None, 0, "the names of Triton's kernels do not tell"
    return True, False, 0, _why_not([one.name for one in products], inputs, meta, tf32=tf32)


def _why_not(names: list[str], inputs: _Inputs, meta: Mapping[str, Any], *, tf32: bool) -> str:
    """The first reason that is true of a layer whose matrix products are these kernels, the longest first."""
    if _too_old(meta):
        return "the device has none"
    if not names:
        return "its kernels are no products of matrices"
    method = next((said for pattern, said in _METHODS if pattern.search(names[0])), None)
    return (
        _obstacle(inputs, tf32=tf32)
        or (method and f"the library chose {method}")
        or _by_kernel(names[0], inputs)
        or f"the library chose a kernel without them: {names[0][:60]}"
    )


def _obstacle(inputs: _Inputs, *, tf32: bool) -> str:
    """What of dtype or sizes stands against Tensor Cores; empty: nothing that is known."""
    if inputs.dtype == "f32" and not tf32:
        return f"f32 without TF32: {_AUTOCAST}"
    divisor = 16 if inputs.dtype.startswith(_FLOAT8) else _DIVISOR.get(inputs.dtype)
    if divisor is None:
        return f"no Tensor Cores for {inputs.dtype}" if inputs.dtype else ""
    odd = [f"{name}={size}" for name, size in inputs.sizes if size % divisor]
    return f"{', '.join(odd)} not divisible by {divisor}" if odd else ""


def _by_kernel(name: str, inputs: _Inputs) -> str:
    """Where no dtype is known, the name of the kernel may tell it."""
    if inputs.dtype:
        return ""
    if _F64_KERNEL.search(name):
        return "f64"
    return f"f32 without TF32: {_AUTOCAST}" if F32_KERNEL.search(name) else ""


def _too_old(meta: Mapping[str, Any]) -> bool:
    """Whether all devices are older than Volta, as far as the profile says what they are."""
    devices = [device for device in meta.get("devices") or () if "AMD" not in str(device.get("name", ""))]
    majors = [device.get("computeMajor", device.get("compute_cap_major")) for device in devices]
    return bool(majors) and all(isinstance(major, int) and 0 < major < 7 for major in majors)


def _inputs(attribution: Attribution) -> dict[tuple[str, str], _Inputs]:
    """What is known of the inputs of each layer and class: the first text with tensors, of its forward or its ops."""
    found: dict[tuple[str, str], _Inputs] = {}
    for said in _tags(attribution.forest.says["text"]):
        if said.phase in ("forward", "recompute") and said.tensors:
            found.setdefault((said.layer, said.module), _inputs_of(said))
    return found


def _tags(texts: Iterable[str | None]) -> Iterator[tag.Tag]:
    return (said for text in texts if text and (said := tag.parse(text)) is not None)


def _inputs_of(said: tag.Tag) -> _Inputs:
    first, given = said.tensors[0], dict(said.arguments)
    cast = given.get("autocast")
    dtype = cast if isinstance(cast, str) and first.dtype in ("f32", "f16", "bf16") else first.dtype
    sizes = dict(_sizes(said.module, first.shape))
    out = given.get("out")
    if isinstance(out, int):
        sizes["out"] = out
    groups = given.get("groups")
    depthwise = isinstance(groups, int) and groups > 1 and groups == sizes.get("in")
    return _Inputs(dtype, tuple(sizes.items()), depthwise)


def _sizes(module: str, shape: tuple[int | None, ...]) -> Iterator[tuple[str, int]]:
    """The sizes of a matrix product that the shape of its input tells."""
    is_convolution = "Conv" in module
    channel = 1 if is_convolution and module.endswith("d") and len(shape) > 1 else -1
    known = [size for size in shape if size is not None]
    if len(known) < len(shape) or not shape:
        return
    yield "in", known[channel]
    if not is_convolution and len(known) > 1 and "Linear" in module:
        yield "batch", math.prod(known[:-1])
