"""Expected work of the layers of a profile, summed over their calls, and measured FLOPs from hardware counters.

The counters of Nsight Compute, nvprof and CUPTI are:

    flop_count_sp, _dp, _hp                                         nvprof; a multiply-add counts as two
    sm…__sass_thread_inst_executed_op_{f,d,h}{add,mul,fma}_pred_on.sum   thread instructions; a multiply-add is one
    sm__ops_path_tensor_src_…_dst_….sum                             operations of Tensor Cores, since Ampere
    sm__inst_executed_pipe_tensor.sum                               Tensor Core instructions of undocumented size

Sources: https://docs.nvidia.com/nsight-compute/ProfilingGuide/ and https://docs.nvidia.com/cuda/profiler-users-guide/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from annot.analyze.gpu_activities import attributed_kernels, has_gpu_activities
from annot.analyze.kernel_names import classify
from annot.analyze.work.call import Cost, Gemms, Work
from annot.analyze.work.formulas import cost, expected
from annot.analyze.work.operators import Calls, operator_calls, work_of_labels
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import LAYER_PHASES, by_layer
from annot.attribution.nesting import KEY, Key
from annot.labels import layer_path
from annot.labels.marks import parse_work
from annot.labels.tag import Tag, parse
from annot.profile import Profile

_STEP: Final = (pl.col("phase") == "optimizer") & (pl.col("layer") == "") & (pl.col("module") != "")

_WORK_COLUMNS: Final = dict.fromkeys(("flops", "bytes_read", "bytes_written", "params"), pl.Int64)
"""Columns that `layer_work` adds to a layer."""

_IS_LAYER: Final = (pl.col("phase").is_in(LAYER_PHASES) & ((pl.col("layer") != "") | (pl.col("module") != ""))) | _STEP
"""Whether a row of `annot.attribution.by_layer` is a layer or an optimizer step."""

_MOST: Final = 2**63 - 1
"""Maximum of an Int64 column. Only a damaged profile exceeds it."""


def _is_void(calls: Calls) -> bool:
    return any(work is None for work, _ in calls)


def _row(calls: Calls) -> tuple[int | None, int | None, int | None, int | None, bool]:
    """Return the sums as a row, null if the work of any call is unknown."""
    counted = [(work, count) for work, count in calls if work is not None]
    flops, read, written = (
        sum(getattr(work, name) * count for work, count in counted) for name in ("flops", "bytes_read", "bytes_written")
    )
    numbers = flops, read, written, max((work.params for work, _ in counted), default=0)
    if len(counted) < len(calls) or max(numbers) > _MOST or min(numbers) < 0:
        return None, None, None, None, False
    return *numbers, True


def layer_work(attribution: Attribution) -> pl.DataFrame:
    """Return the minimum work of each layer, summed over its calls.

    The work of an inner layer counts in its own row only, so the rows add up to the whole model. The work of an
    unknown class is the sum of the operations that it calls directly, if the profile has operation ranges
    (``ops=True``), or the operators of torch.profiler with their inputs (``record_shapes=True``).

    Args:
        attribution: the attributed profile.

    Returns:
        A row per layer, module and phase, and a row per optimizer class (layer empty, phase ``optimizer``): layer,
        module, phase, flops (a multiply-add counts as 2), bytes_read, bytes_written, params, counted (Boolean; false:
        the class is unknown or its labels are incomplete, and the work is null).
    """
    return with_work(by_layer(attribution).filter(_IS_LAYER), attribution).select(*KEY, *_WORK_COLUMNS, "counted")


def with_work(rows: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """Return rows of `annot.attribution.by_layer` with the columns of `layer_work`, null outside layers."""
    sums = _sums(attribution)
    works = [_row(sums[key]) if key in sums else (None,) * 4 + (False,) for key in rows.select(KEY).iter_rows()]
    return rows.hstack(pl.DataFrame(works, schema={**_WORK_COLUMNS, "counted": pl.Boolean}, orient="row"))


def not_counted(work: pl.DataFrame) -> tuple[list[str], ...]:
    """Return the classes with unknown work: first those without inner layers, then those with inner layers.

    A class with inner layers may compute nothing itself. Only operation ranges (``ops=True``) show it.

    Args:
        work: rows of `layer_work`.
    """
    outer = layer_path.containers(work["layer"], work["layer"])
    contains = pl.col("layer").is_in(list(outer)) & (pl.col("phase") != "optimizer")
    missing = work.filter(~pl.col("counted")).with_columns(outer=contains)
    classes = missing.select("module", "outer").unique(maintain_order=True)
    return tuple(classes.filter(outer=has_layers)["module"].to_list() for has_layers in (False, True))


def by_text(attribution: Attribution) -> dict[Key, list[Tag]]:
    """Return the parsed distinct labels of each layer, module and phase."""
    tags: dict[Key, list[Tag]] = {}
    for text, _ in _texts(attribution):
        tag = parse(text)
        if tag is not None and tag.phase in LAYER_PHASES:
            tags.setdefault((tag.layer, tag.module, tag.phase), []).append(tag)
    return tags


def _sums(attribution: Attribution) -> dict[Key, Calls]:
    """Return the work by layer, module and phase, from the distinct labels and their numbers of calls."""
    seen = [(tag, calls) for text, calls in _texts(attribution) if (tag := parse(text)) is not None]
    inside = layer_path.containers(
        (tag.layer for tag, _ in seen), (tag.layer for tag, _ in seen if tag.phase == "forward")
    )
    sums: dict[Key, Calls] = {}
    for tag, calls in seen:
        if _is_layer(tag):
            work = expected(tag, alone=tag.layer not in inside)
            sums.setdefault((tag.layer, tag.module, tag.phase), []).append((work, calls))
    _add_operations(sums, _operations(attribution), _registered(attribution.meta.get("works", ())))
    for key, works in operator_calls(attribution).items():
        if key[2] in LAYER_PHASES and (key not in sums or _is_void(sums[key])):
            sums[key] = works
    return sums


def _is_layer(tag: Tag) -> bool:
    """Return whether a range belongs to a row for which `_IS_LAYER` is true."""
    if tag.phase == "optimizer":
        return bool(tag.module and not tag.layer)
    return tag.phase in LAYER_PHASES and bool(tag.layer or tag.module)


def _texts(attribution: Attribution) -> Iterator[tuple[str, int]]:
    """Yield each distinct label and its number of calls. A range nested in one with the same label is one call."""
    forest = attribution.forest
    texts = forest.labels.select("text", label=pl.int_range(pl.len(), dtype=pl.Int32))
    counted = texts.join(forest.label_counts(), on="label", maintain_order="left")
    yield from counted.select("text", "count").iter_rows()


_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


def _operations(attribution: Attribution) -> Iterator[tuple[Tag, str, int]]:
    """Yield operations with the phase of the enclosing layer and the number of calls."""
    forest = attribution.forest
    operators = forest.labels["role"] == "operator"
    if not operators.any():
        return
    rows, phases = forest.tree.select("label", "path"), forest.layers_of_nodes()["phase"]
    counts = pl.concat(
        block.filter(operators.gather(block["label"])).group_by("label", "path").len()
        for block in rows.iter_slices(_SLICE)
    )
    counts = counts.group_by("label", "path").agg(pl.col("len").sum()).sort("label", "path")
    for labels, path, calls in counts.iter_rows():
        tag = parse(forest.labels["text"][labels])
        if tag is not None and tag.phase == "op" and path != column_ops.NONE:
            yield tag, phases[path], calls


def _registered(marks: Iterable[str]) -> dict[str, Work | None]:
    """Return the work that marks name for the text of an operation; None: two of them differ."""
    works: dict[str, Work | None] = {}
    for text, flops, read, written in filter(None, map(parse_work, marks)):
        work = Work(flops, read, written, params=0)
        works[text] = work if works.setdefault(text, work) == work else None
    return works


def _add_operations(
    sums: dict[Key, Calls], operations: Iterator[tuple[Tag, str, int]], registered: Mapping[str, Work | None]
) -> None:
    """Add the work of operations to layers of unknown classes; the backward gets that of the forward operations.

    The work is that of annot's formula, or else the `registered` one, which does not say what the backward computes.
    """
    by_key: dict[Key, tuple[Calls, Calls]] = {}
    for tag, phase, calls in operations:
        key = tag.layer, tag.module, phase
        if key in sums and phase in ("forward", "recompute") and _is_void(sums[key]):
            forward, backward = by_key.setdefault(key, ([], []))
            work = cost(tag)
            forward.append((_forward(tag, registered), calls))
            backward.append((work.backward() if work else None, calls))
    for (layer, module, phase), (forward, backward) in by_key.items():
        count = sum(calls for _, calls in sums[layer, module, phase])
        sums[layer, module, phase] = forward
        before = sums.get((layer, module, "backward"), [])
        if phase == "forward" and _is_void(before) and sum(calls for _, calls in before) == count:
            sums[layer, module, "backward"] = backward


def _forward(tag: Tag, registered: Mapping[str, Work | None]) -> Work | None:
    work = cost(tag)
    return work.forward() if work else registered.get(str(tag))


def work_of_operations(attribution: Attribution) -> list[Work | None]:
    """Return the work of a call of each label of the ranges: of operators and of annot's operations; None: unknown."""
    works, registered = work_of_labels(attribution.forest), _registered(attribution.meta.get("works", ()))
    for label, text in enumerate(attribution.forest.labels["text"]):
        if works[label] is None and (tag := parse(text)) is not None and tag.phase == "op":
            works[label] = _forward(tag, registered)
    return works


_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")
_MOVED: Final = (pl.col("bytes_read") + pl.col("bytes_written")).alias("bytes")


def by_layer_with_work(attribution: Attribution) -> pl.DataFrame:
    """Return `annot.attribution.by_layer` with flops, bytes (read and written) and params, null if unknown."""
    rows = by_layer(attribution)
    columns = rows.columns[:-1]
    return with_work(rows, attribution).select(*columns, "flops", _MOVED, "params", rows.columns[-1])


def by_work(attribution: Attribution) -> pl.DataFrame:
    """Return the expected work and the achieved FLOP/s of each layer and phase.

    Args:
        attribution: the attributed profile.

    Returns:
        layer, module, phase, calls, host_ns, host_self_ns, gpu_ns, gpu_self_ns and shapes from
        `annot.attribution.by_layer`; flops, bytes_read, bytes_written, params, counted from `layer_work`; bytes (read
        and written); flops_per_s: flops over gpu_self_ns, or over host_self_ns if the profile has no GPU activity.
    """
    rows = with_work(by_layer(attribution).filter(_IS_LAYER), attribution)
    time = pl.col("gpu_self_ns" if has_gpu_activities(attribution) else "host_self_ns")
    speed = pl.when(time > 0).then(pl.col("flops") * 1e9 / time).alias("flops_per_s")
    work = ("flops", _MOVED, "bytes_read", "bytes_written", "params", "counted", speed)
    return rows.select(*KEY, "calls", *_TIMES, *work, "shapes")


_COUNTERS: Final = (
    (re.compile(r"flop_count_([sdh])p(?:\.sum)?"), 1),
    (re.compile(r"(?:smsp|sm)__sass_thread_inst_executed_op_([fdh])(?:add|mul)_pred_on\.sum"), 1),
    (re.compile(r"(?:smsp|sm)__sass_thread_inst_executed_op_([fdh])fma_pred_on\.sum"), 2),
    (re.compile(r"(?:smsp|sm)__ops_path_(tensor)_src_\w+(?<!sparsity_on)(?<!sparsity_off)\.sum"), 1),
    (re.compile(r"(?:smsp|sm)__inst_executed_(pipe)_tensor\.sum"), 1),
)
_COLUMNS: Final = {
    **dict.fromkeys("fsd", "flops"),
    "h": "half_flops",
    "tensor": "tensor_flops",
    "pipe": "tensor_instructions",
}
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
    counts = [pl.col("value").filter(pl.col("column") == name) for name in _FLOPS]
    sums = [pl.when(count.len() > 0).then(count.sum()).round().cast(pl.Int64, strict=False) for count in counts]
    return rows.group_by("kernel").agg(**dict(zip(_FLOPS, sums, strict=True))).sort("kernel")


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
        _measured_row(layer, groups[layer[:3]], texts.get(layer[:3], []))
        for layer in layers.iter_rows()
        if layer[:3] in groups
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


_SCHEMA: Final = {
    **dict.fromkeys(KEY, pl.String),
    **dict.fromkeys(("kernels", "flops", "flops_measured"), pl.Int64),
    "ratio": pl.Float64,
    "explanation": pl.String,
}


def _measured_row(layer: tuple[Any, ...], kernels: pl.DataFrame, calls: Sequence[Tag]) -> tuple[Any, ...]:
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


def padded(gemms: Gemms, tile: tuple[int, int]) -> int:
    """Return the FLOPs of GEMMs (batch, M, N, K) padded to whole tiles, in the orientation with fewer tiles."""
    total = 0
    for batch, rows, columns, depth in gemms:
        least = min(-(-rows // high) * high * -(-columns // wide) * wide for high, wide in (tile, (tile[1], tile[0])))
        total += 2 * batch * least * depth
    return total
