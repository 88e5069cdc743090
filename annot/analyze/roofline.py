"""The roofline of layers, kernels and operators: achieved performance relative to the peaks of their device.

F operations on B bytes have the arithmetic intensity F/B. A device with P operations and W bytes per second reaches at
most min(P, W · F/B) operations per second (Williams, Waterman, Patterson: "Roofline", CACM 52(4), 2009). Below the
ridge P/W a layer is memory-bound, above it compute-bound. A layer is launch-bound or host-bound if the device waits
longer for the CPU than it works: for launches, or for other CPU code.

The quantities of a bottleneck are those by which Zhao et al. compare the layers of AlexNet and VGG-16 in training.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import polars as pl

from annot.analyze.gpu_activities import device_idle
from annot.analyze.hardware_counters import COUNTERS, default_peaks, layer_counters, measured_work
from annot.analyze.kernel_names import MATRIX, classify, with_classes, with_short_names
from annot.analyze.peaks import Peaks
from annot.analyze.tensor_cores import multiplies
from annot.analyze.work.call import Work
from annot.analyze.work.layer_work import by_text, layer_work, work_of_operations
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, self_times
from annot.attribution.column_ops import Numbers
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import LAYER_PHASES, NO_OPERATION, by_layer, phases_of_nodes
from annot.attribution.nesting import KEY
from annot.attribution.range_trees import Forest, inside_engine_range
from annot.labels.tag import parse
from annot.util.weak_keys import once_for_each

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
        precision: a name of `annot.analyze.peaks.Peaks`. It is the precision in the name of the longest kernel
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
    rows = rows.filter(pl.col("phase").is_in(LAYER_PHASES) & (pl.col("module") != ""))
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
    if idle is not None:
        rows = rows.join(idle, on=list(KEY), how="left", maintain_order="left")
        rows = rows.with_columns(pl.col(_IDLE).fill_null(0))
    return under_roof(rows, peaks).select(*KEY, "self_ns", *_COLUMNS)


_BYTES: Final = pl.col("bytes_read") + pl.col("bytes_written")
_IDLE: Final = ("gpu_idle_ns", "gpu_launch_ns")
_ROOF: Final = ("precision", "roof_share", "bound")
_COLUMNS: Final = ("flops", "bytes", "intensity", "time_ns", *_IDLE, "flops_per_s", "bytes_per_s", *_ROOF)


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
    rows = work.with_columns(pl.Series("precision", precisions, pl.String))
    roofline = under_roof(rows, peaks).select("name", "calls", *_COLUMNS)
    return with_short_names(roofline.sort("time_ns", "name", descending=[True, False]), attribution)


def under_roof(rows: pl.DataFrame, peaks: Peaks) -> pl.DataFrame:
    """Add intensity, achieved rates, roof_share and bound to rows.

    The rows have flops, bytes, time_ns and precision, and gpu_idle_ns and gpu_launch_ns where idle time is known.
    """
    rows = rows.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _IDLE if name not in rows.columns)
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


_BATCH: Final = re.compile(r"\[(\d+),")
_MOST_RUNS: Final = 16
"""Maximum number of runs of consecutive steps with one batch size that are analysed separately."""

_WHOLE: Final = ("instructions", "whole_ns", "batch_steps")
_SUMMED: Final = ("calls", "time_ns", "self_ns", "kernels", *_IDLE, "flops", "bytes", *_WHOLE)
_MEANS: Final = tuple(name for name in COUNTERS if name not in ("stall_reason", "instructions"))


def by_bottleneck(attribution: Attribution) -> pl.DataFrame:
    """Return the time, roofline bound and hardware counters of each layer.

    If steps have different batch sizes, each size has separate rows.

    Args:
        attribution: the profile. Peaks are those of `annot.analyze.hardware_counters.default_peaks`.

    Returns:
        layer, module, phase; batch (first dimension of the model's input, Int64; null: unknown); calls;
        time_ns, self_ns (without nested layers), time_share (of the total time with that batch size, 0 to 1);
        backward_to_forward (ratio of times, in rows of the backward pass); kernels; gpu_idle_ns, gpu_launch_ns, flops,
        bytes, intensity, flops_per_s, precision, roof_share, bound of `annot.analyze.roofline.layer_roofline`; and
        the columns of `annot.analyze.hardware_counters.COUNTERS`; batch_steps (number of steps with that batch size,
        null with one size). Null: unknown or not counted.
    """
    peaks = default_peaks(attribution)
    tables = [
        _rows(run, peaks).with_columns(batch=pl.lit(size, pl.Int64), batch_steps=pl.lit(steps, pl.Int64))
        for size, steps, run in _batch_runs(attribution)
    ]
    rows = under_roof(_summed(pl.concat(tables)), peaks)
    rows = rows.with_columns(time_share=pl.when(pl.col("whole_ns") > 0).then(pl.col("time_ns") / pl.col("whole_ns")))
    forward = rows.filter(pl.col("phase") == "forward").select("layer", "module", "batch", forward_ns="time_ns")
    rows = rows.join(forward, on=["layer", "module", "batch"], how="left", nulls_equal=True, maintain_order="left")
    backward = (pl.col("phase") == "backward") & (pl.col("forward_ns") > 0)
    rows = rows.with_columns(backward_to_forward=pl.when(backward).then(pl.col("time_ns") / pl.col("forward_ns")))
    roofline = (*_IDLE, "flops", "bytes", "intensity", "flops_per_s", *_ROOF)
    return rows.select(*KEY, "batch", *_TIMES, *roofline, *COUNTERS, "batch_steps")


_TIMES: Final = ("calls", "time_ns", "self_ns", "time_share", "backward_to_forward", "kernels")


def step_batches(attribution: Attribution) -> list[tuple[int, int]]:
    """Return steps and their batch sizes: the most frequent first dimension in the forward labels of the step."""
    tree = attribution.forest.tree
    batch = pl.col("shapes").str.extract(_BATCH.pattern).cast(pl.Int64, strict=False)
    labels = attribution.forest.labels.select("phase", batch=batch)[tree["label"]]
    process = attribution.forest.threads.table["process_code"].gather(tree["thread"])
    rows = labels.with_columns(step=attribution.steps.at(process, tree["start"])).drop_nulls("batch")
    rows = rows.filter((pl.col("phase") == "forward") & (pl.col("step") >= 0))
    counts = rows.group_by("step", "batch").len().sort("step", "len", "batch", descending=[False, True, False])
    return counts.group_by("step", maintain_order=True).first().select("step", "batch").rows()


def _batch_runs(attribution: Attribution) -> list[tuple[int | None, int | None, Attribution]]:
    """The batch size, number and profile of each run of consecutive steps with one size; a single run: no number."""
    batches = step_batches(attribution)
    runs = [(size, [step for step, _ in group]) for size, group in groupby(batches, key=lambda row: row[1])]
    sizes = {size for size, _ in runs}
    if len(sizes) < 2:  # the most frequent batch size in the labels of forward ranges
        labels = attribution.forest.labels.filter((pl.col("phase") == "forward") & pl.col("shapes").is_not_null())
        counts = Counter(match[1] for shapes in labels["shapes"] if (match := _BATCH.match(shapes)))
        return [(int(counts.most_common(1)[0][0]) if counts else None, None, attribution)]
    if len(runs) > _MOST_RUNS or attribution.of_steps is None:
        return [(None, None, attribution)]
    return [(size, len(steps), attribution.of_steps(slice(steps[0], steps[-1] + 1))) for size, steps in runs]


def _rows(attribution: Attribution, peaks: Peaks) -> pl.DataFrame:
    """The sums, precision and counters of each layer."""
    layers = by_layer(attribution)
    self_time = "gpu_self_ns" if layers["gpu_self_ns"].sum() else "host_self_ns"
    rows = layer_roofline(attribution, peaks).with_columns(
        whole_ns=pl.lit(attribution.nodes[self_time].sum(), pl.Int64)
    )
    rows = rows.join(layers.select(*KEY, "calls", "kernels"), on=list(KEY), how="left", maintain_order="left")
    counters = layer_counters(attribution)
    if counters is None:
        types = {"stall_reason": pl.String, "instructions": pl.Int64}
        return rows.with_columns(pl.lit(None, types.get(name, pl.Float64)).alias(name) for name in COUNTERS)
    return rows.join(counters, on=list(KEY), how="left", maintain_order="left")


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the rows of each batch size; rates are means weighted by time."""
    sums = [pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in _SUMMED]
    weight = pl.col("time_ns").clip(1)
    whole = {name: pl.when(pl.col(name).is_not_null()).then(weight).sum() for name in _MEANS}
    means = [
        pl.when(pl.col(name).count() > 0).then((pl.col(name) * weight).sum() / whole[name]).alias(name)
        for name in _MEANS
    ]
    texts = pl.col("precision", "stall_reason").sort_by("time_ns", descending=True).first()
    return rows.group_by(*KEY, "batch", maintain_order=True).agg(*sums, *means, texts)


_ROLES: Final = ("operator", "backward")
_WORK: Final = ("flops", "bytes_read", "bytes_written")
_KEYS: Final = ("op", "inputs", "phase")
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """The operators of a profile.

    Operators are nested: ``aten::linear`` calls ``aten::addmm``, which launches the kernel. The outermost operator with
    known work counts with all that it calls. An operator outside such operators counts with its own launches only. So
    no time and no work counts twice.

    Args:
        rows: a row per operator, call and phase: group (its number), op, call (as in `annot.profile.RANGES`, null:
            unknown), inputs (shapes and dtypes of its tensors, null: unknown), phase, calls, host_self_ns, and flops,
            bytes_read and bytes_written of all calls (null: unknown). Other ranges are the operation
            ``(no operation)``, and unattributed GPU activities ``(unattributed)``.
        kernels: a row per group and name of a GPU activity: group, name, kernel, calls, gpu_ns.
        groups: the group of each range of the tree (Int32).
    """

    rows: pl.DataFrame
    kernels: pl.DataFrame
    groups: pl.Series


@once_for_each
def operator_table(attribution: Attribution) -> OperatorTable:
    """Return the operators of a profile. A profile without operators has no rows."""
    forest = attribution.forest
    works = work_of_operations(attribution)
    sums, groups = _grouped(forest, works)
    outside_ns = attribution.nodes["host_self_ns"][attribution.attributor.outside] or 0
    lost = pl.DataFrame(
        [(column_ops.NONE, UNATTRIBUTED, outside_ns), (column_ops.NONE, "other", 0)],
        schema={"label": pl.Int32, "phase": pl.String, "host_self_ns": sums.schema["host_self_ns"]},
        orient="row",
    )
    sums = pl.concat([sums, lost.join(sums, on=["label", "phase"], how="anti")], how="diagonal").with_row_index("group")
    keys = sums.select("label", "phase", pl.col("group").cast(pl.Int32))
    outside = {name: keys.filter(label=column_ops.NONE, phase=name)["group"][0] for name in (UNATTRIBUTED, "other")}
    rows = pl.DataFrame([_row(attribution, works, *row) for row in sums.iter_rows()], schema=_SCHEMA, orient="row")
    if not forest.labels["role"].is_in(_ROLES).gather(forest.tree["label"]).any():
        rows = rows.clear()
    return OperatorTable(rows, _kernels(attribution, groups, outside), groups)


def _grouped(forest: Forest, works: list[Work | None]) -> tuple[pl.DataFrame, pl.Series]:
    """Return label, phase, calls and host_self_ns of each group, and the group of each range of the tree."""
    tree, labels = forest.tree, forest.labels
    is_operator = labels["role"].is_in(_ROLES)
    has_work = pl.Series([work is not None for work in works], dtype=pl.Boolean).gather(tree["label"])
    top = column_ops.outermost(tree["parent"], column_ops.inside(has_work, tree["parent"]))
    # The phase is a number: texts, or a join by label and phase, take much memory with millions of ranges.
    phases = phases_of_nodes(forest.nodes, forest.keys.names)
    names = pl.concat([phases, pl.Series(["other"])]).unique(maintain_order=True)
    number, other = phases.cast(pl.Enum(names)).to_physical().cast(pl.Int64), names.to_list().index("other")
    first = ~inside_engine_range(tree, labels) & (top == pl.int_range(tree.height, dtype=pl.Int32, eager=True))
    ranges = pl.DataFrame({"top": top, "calls": first, "host_self_ns": self_times(forest)})
    del top, first  # may have millions of rows
    keys, groups, tables = Numbers(), [pl.Series("group", dtype=pl.Int32)], list[pl.DataFrame]()
    for block in ranges.iter_slices(_SLICE):
        label, path = (tree[name].gather(block["top"]) for name in ("label", "path"))
        label = pl.select(pl.when(is_operator.gather(label)).then(label).otherwise(column_ops.NONE)).to_series()
        phase = number.gather(column_ops.known(path)).fill_null(other)
        groups.append(keys.of((label.cast(pl.Int64) + 1) * len(names) + phase).alias("group"))
        tables.append(block.select("calls", "host_self_ns", groups[-1]).group_by("group").agg(pl.all().sum()))
    sums = pl.concat(tables or [ranges.select("calls", "host_self_ns", group="top")])
    sums = sums.group_by("group").agg(pl.all().sum()).sort("group")
    label = (keys.known // len(names) - 1).cast(pl.Int32).alias("label")
    phase = names.gather(keys.known % len(names)).alias("phase")
    return sums.select(label, phase, "calls", "host_self_ns"), pl.concat(groups)


_SCHEMA: Final = {
    "group": pl.Int32,
    **dict.fromkeys(("op", "call", "inputs", "phase"), pl.String),
    **dict.fromkeys(("calls", "host_self_ns", *_WORK), pl.Int64),
}


def _row(
    attribution: Attribution,
    works: list[Work | None],
    group: int,
    label: int,
    phase: str,
    calls: int | None,
    host: int | None,
) -> tuple[object, ...]:
    if label == column_ops.NONE:
        name = UNATTRIBUTED if phase == UNATTRIBUTED else NO_OPERATION
        return group, name, None, None, phase, 0, host or 0, *[None] * 3
    name, call, text = attribution.forest.labels.select("layer", "call", "text").row(label)
    tag, work, count = parse(call or text), works[label], calls or 0
    shapes = " ".join(map(str, tag.tensors)) if tag and tag.phase != "collective" else None
    # Copies and views have no known work: the formulas of layers do not count what they move.
    sums = (
        [None] * 3 if work is None or not work.bytes_read else [min(getattr(work, of) * count, _MOST) for of in _WORK]
    )
    return group, name, call, shapes or None, phase, count, host or 0, *sums


_MOST: Final = 2**63 - 1


def _kernels(attribution: Attribution, groups: pl.Series, outside: dict[str, int]) -> pl.DataFrame:
    reasons = attribution.attributor.reasons
    schema = {"group": pl.Int32, "name": pl.String, "kernel": pl.Boolean, "calls": pl.Int64, "gpu_ns": pl.Int64}
    tables = [pl.DataFrame(schema=schema)]
    for block in attribution.activity_blocks():
        without = pl.when(block["node"].is_in(reasons)).then(outside[UNATTRIBUTED]).otherwise(outside["other"])
        group = pl.coalesce(groups.gather(column_ops.known(block["range"])), without).cast(pl.Int32)
        rows = block.select("name", "kernel", "gpu_ns", group=group).group_by("group", "name", "kernel")
        sums = rows.agg(calls=pl.len().cast(pl.Int64), gpu_ns=pl.col("gpu_ns").sum())
        tables.append(sums.select(pl.col(name).cast(of) for name, of in schema.items()))
    return pl.concat(tables).group_by("group", "name", "kernel").agg(pl.all().sum())


def by_op_work(attribution: Attribution) -> pl.DataFrame:
    """Return the work of operators by argument shape, the longest first. The times add up to those of `by_op`.

    Returns:
        op, inputs, phase, calls, gpu_self_ns, host_self_ns, flops, bytes (read and written), bytes_read, bytes_written,
        flops_per_s, kernels, copies; see `OperatorTable`.
    """
    rows = _timed_operators(attribution)
    time = _time_of(rows)
    speed = pl.when(time > 0).then(pl.col("flops") * 1e9 / time).alias("flops_per_s")
    work = ("flops", "bytes", "bytes_read", "bytes_written", speed)
    return rows.select(*_KEYS, "calls", "gpu_self_ns", "host_self_ns", *work, "kernels", "copies")


def by_op_roofline(attribution: Attribution) -> pl.DataFrame:
    """Return the roofline of operators by argument shape, the longest first.

    Returns:
        op, inputs, phase, calls, time_ns (GPU time, or host time without a GPU), time_share (0 to 1), flops, bytes,
        intensity, flops_per_s, bytes_per_s, precision, roof_share and bound of `annot.analyze.roofline.layer_roofline`.
    """
    rows = _timed_operators(attribution)
    rows = under_roof(rows.with_columns(time_ns=_time_of(rows)), default_peaks(attribution))
    share = (pl.col("time_ns") / pl.col("time_ns").sum()).fill_nan(None).alias("time_share")
    rates = ("flops", "bytes", "intensity", "flops_per_s", "bytes_per_s")
    return rows.select(*_KEYS, "calls", "time_ns", share, *rates, *_ROOF)


def _time_of(rows: pl.DataFrame) -> pl.Expr:
    return pl.col("gpu_self_ns") if rows["gpu_self_ns"].sum() else pl.col("host_self_ns")


def _timed_operators(attribution: Attribution) -> pl.DataFrame:
    """The rows of `OperatorTable` by `_KEYS` with GPU times, bytes and precision."""
    table = operator_table(attribution)
    kernels = table.kernels.group_by("group").agg(
        gpu_self_ns=pl.col("gpu_ns").sum(),
        kernels=pl.col("calls").filter("kernel").sum(),
        copies=pl.col("calls").filter(~pl.col("kernel")).sum(),
    )
    matrix = with_classes(table.kernels.filter("kernel")).filter(pl.col("kind").is_in(MATRIX))
    longest = matrix.sort("gpu_ns", "name", descending=[True, False]).group_by("group").agg(pl.col("name").first())
    rows = table.rows.join(kernels, on="group", how="left").join(longest, on="group", how="left")
    rows = rows.with_columns(pl.col("gpu_self_ns", "kernels", "copies").fill_null(0))
    precision = [precision_of(name, shapes) for name, shapes in rows.select("name", "inputs").iter_rows()]
    rows = rows.with_columns(pl.Series("precision", precision, pl.String))
    worked = [pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name) for name in _WORK]
    counts = pl.col("calls", "host_self_ns", "gpu_self_ns", "kernels", "copies").sum()
    rows = (
        rows.sort("gpu_self_ns", descending=True)
        .group_by(_KEYS, maintain_order=True)
        .agg(counts, *worked, pl.col("precision").first())
    )
    rows = rows.with_columns(bytes=pl.col("bytes_read") + pl.col("bytes_written"))
    rows = rows.filter(pl.any_horizontal(pl.col("calls", "kernels", "copies", "host_self_ns") > 0))
    last = pl.col("op").replace_strict({NO_OPERATION: 1, UNATTRIBUTED: 2}, default=0)
    return rows.sort(last, -pl.col("gpu_self_ns"), -pl.col("host_self_ns"), *_KEYS, nulls_last=True)
