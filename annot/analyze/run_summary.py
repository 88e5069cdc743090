"""The summary of a run: parts of the step time, GPU activities of the steps, and counts of steps, layers and kernels.

The items are those of the summary of NVIDIA's Deep Learning Profiler (DLProf), from any profile. Idle time is split by
what the CPU does meanwhile. Steps above the median show on which parts long steps spend more time than the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import polars as pl

from annot.analyze.cpu_parts import (
    COMPUTED,
    CPU_PARTS,
    GPU_PARTS,
    IDLE,
    OTHER,
    OUTSIDE,
    PartName,
    going_on_without_gpu,
    layers_of_parts,
    repeated_layers,
)
from annot.analyze.gpu_activities import SAME, idle_intervals
from annot.analyze.kernel_names import MATRIX
from annot.analyze.step_parts import (
    WORK,
    Device,
    Intervals,
    StepInputs,
    exclusive,
    intervals_of,
    merged,
    shares_of_devices,
    step_inputs,
)
from annot.analyze.tensor_cores import layer_tensor_cores, matrix_units, tensor_core_work
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.ingest import EPOCH
from annot.attribution.layer_tables import LAYER_PHASES, by_layer
from annot.attribution.nesting import KEY
from annot.attribution.steps import steady_steps
from annot.attribution.summary import by_step, step_spans, summarize
from annot.labels.foreign import BATCH, DATA
from annot.labels.layer_path import named
from annot.util.weak_keys import once_for_each


@once_for_each
def step_time(attribution: Attribution) -> pl.DataFrame:
    """Return the breakdown of step time into disjoint shares that add up exactly.

    The step time is that of `annot.analyze.step_parts.step_inputs`, without warm-up. Each device of a process has a
    breakdown of the whole step time of the process.

    The columns are process; device (null: the process uses no device); share: one of
    `annot.analyze.cpu_parts.GPU_PARTS`, or of `CPU_PARTS` for a process without GPU activities; ns: time of the share;
    hidden_ns: time overlapped by an earlier share, such as copies and collectives behind kernels; wall_ns: step time,
    the sum of ns over the shares of a device. All are Int64 except share.
    """
    return _shares_of_steps(attribution, step_inputs(attribution))


def _shares_of_steps(attribution: Attribution, inputs: StepInputs) -> pl.DataFrame:
    """Return the table of `step_time` of the windows of `inputs`."""
    causes = idle_intervals(attribution, inputs) if inputs.work else None
    rows = shares_of_devices(inputs, partial(_going_on, attribution, causes))
    on_cpu = (pl.col("share") == COMPUTED[0]).any().over("process", "device")
    rest = IDLE[-1] if known(attribution.meta) else "unrecorded"
    named = pl.when(pl.col("share") == "idle").then(pl.when(on_cpu).then(pl.lit(OUTSIDE)).otherwise(pl.lit(rest)))
    share = named.otherwise(pl.col("share").replace(SAME if rest == IDLE[-1] else dict.fromkeys(SAME, rest)))
    # Other ranges contain the phases. Nothing is hidden behind idle time.
    hides = ~pl.col("share").is_in([OTHER, *IDLE[1:]])
    sums = rows.with_columns(share.alias("share")).with_columns(hidden_ns=pl.when(hides).then("hidden_ns").otherwise(0))
    keys = ("process", "device", "share")
    sums = sums.group_by(keys, maintain_order=True).agg(pl.col("ns", "hidden_ns").sum(), pl.col("wall_ns").first())
    return sums.select(rows.columns)


def busy_times(table: pl.DataFrame) -> pl.DataFrame:
    """Return the time in which each device is busy, from the table of `step_time`: process, device, ns (above 0)."""
    on_cpu = (pl.col("share") == COMPUTED[0]).any().over("process", "device")
    ran = table.filter(pl.col("share").is_in(WORK) & ~on_cpu & (pl.col("ns") > 0))
    return ran.group_by("process", "device").agg(pl.col("ns").sum())


def part_names(attribution: Attribution) -> dict[str, PartName]:
    """Return the parts of the step time of a profile in order of precedence, with the name of its matrix units."""
    present = set(step_time(attribution)["share"])
    used = [names for names in (GPU_PARTS, CPU_PARTS) if present & (names.keys() - _SHARED)] or [GPU_PARTS]
    units = matrix_units(attribution.meta)
    named = {
        key: [text.replace("Tensor Cores", units) for text in texts] for names in used for key, texts in names.items()
    }
    return {key: PartName(*texts) for key, texts in named.items()}


_SHARED: Final = GPU_PARTS.keys() & CPU_PARTS.keys()


def _going_on(
    attribution: Attribution,
    causes: Callable[[Device], dict[str, Intervals]] | None,
    inputs: StepInputs,
    device: Device,
) -> dict[str, Intervals]:
    """The intervals of each share of one device, or of the process if it uses no device."""
    here = inputs.of_device(device)
    if causes is None or here.is_empty():
        return going_on_without_gpu(attribution, inputs, device[0])
    busy: dict[str, Intervals] = {share: partial(_intervals_of_share, here, share) for share in WORK}
    return busy | causes(device)


def _intervals_of_share(work: pl.DataFrame, share: str) -> pl.DataFrame:
    return intervals_of(work.lazy().filter(pl.col("share") == share).select("start", "end").collect())


def step_work(attribution: Attribution, groups: pl.Series | None = None) -> pl.DataFrame:
    """Return the GPU activities of the steps with their exclusive time.

    The columns are node, name, kernel, pinned (see `annot.profile.COPIES`), calls (started) and wall_ns.

    Where activities overlap on a device, the time counts to the one that started first. The times of a device add up to
    its busy time. Removing an activity shortens the steps by at most its time. With `groups`, a number for each range
    of the tree, `node` is the group of the range, -1 outside any range.
    """
    inputs, sums = step_inputs(attribution), pl.col("calls", "wall_ns").sum()
    tables = [pl.DataFrame(schema=_GROUPS | dict.fromkeys(("calls", "wall_ns"), pl.Int64))]
    windows = inputs.windows.partition_by("process", "device", as_dict=True)
    for device, work in inputs.work.items():
        if device not in windows:
            continue
        used = pl.all_horizontal(~pl.col("left_out"), pl.col("start", "end").is_not_null())
        rows = work.lazy().filter(used).select("start", "end", "range", *_GROUPS).collect()
        if groups is not None:
            node = groups.gather(column_ops.known(rows["range"])).fill_null(column_ops.NONE)
            rows = rows.with_columns(node.alias("node"))
        rows = exclusive(rows.drop("range"), merged(windows[device]))
        tables.append(rows.group_by(list(_GROUPS), maintain_order=True).agg(sums))
    table = pl.concat(tables).group_by(list(_GROUPS), maintain_order=True).agg(sums)
    table = table.filter((pl.col("calls") > 0) | (pl.col("wall_ns") > 0))
    return table.with_columns(pl.col("name").cast(pl.String).fill_null(""))


_GROUPS: Final = {"node": pl.Int32, "name": pl.Categorical, "kernel": pl.Boolean, "pinned": pl.Boolean}


def excess_of_long_steps(attribution: Attribution, steps: pl.DataFrame, inputs: StepInputs) -> dict[str, float]:
    """Return how much of the excess of the long steps each cause has, the largest part first.

    The excess is the difference of the mean times of the steps that are longer than the median, and of the others.

    Args:
        attribution: the profile.
        steps: process, step and step_ns of the compared steps.
        inputs: `annot.analyze.step_parts.step_inputs` of the profile.

    Returns:
        Fractions of the excess, which add up to 1, by the parts of `annot.analyze.cpu_parts`. Empty: all steps take
        the same time.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.attribution.summary import by_step
        >>> from annot.analyze.step_parts import step_inputs
        >>> from annot.profile import Profile
        >>> empty = attribute(Profile.build({}))
        >>> excess_of_long_steps(empty, by_step(empty), step_inputs(empty))
        {}
    """
    long = pl.col("step_ns") > pl.col("step_ns").median()
    means = [_mean_times(attribution, steps.filter(which), inputs) for which in (long, ~long)]
    causes = {name: means[0].get(name, 0) - means[1].get(name, 0) for name in (*means[0], *means[1])}
    excess = sum(causes.values())
    shares = {name: ns / excess for name, ns in causes.items()} if excess > 0 else {}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def usual_parts(attribution: Attribution) -> dict[str, float]:
    """Return the mean time (ns) of each part of the step on a device, so that a few long steps do not count.

    The mean is that of the steps between the quartiles of step time, or the whole run if it has no steps. The parts are
    those of `step_time`, and add up to the time of the step.
    """
    steps = by_step(attribution)
    ns, middle = pl.col("step_ns"), steps.clear()
    if attribution.steps.table.height:
        steady = steady_steps(steps)
        middle = steady.filter(ns.is_between(ns.quantile(0.25, "lower"), ns.quantile(0.75, "higher")))
    inputs, devices = step_inputs(attribution), pl.struct("process", "device").n_unique()
    if middle.height:
        sums, per_step = _mean_times(attribution, middle, inputs), pl.col("process").n_unique()
    else:
        by_share = step_time(attribution).group_by("share").agg(pl.col("ns").sum())
        sums, per_step = {share: float(ns) for share, ns in by_share.iter_rows()}, pl.lit(1)
    count = inputs.windows.select(devices / per_step).item() if inputs.windows.height else 1
    return {name: sums[name] / count for name in sorted(sums)}


def _mean_times(attribution: Attribution, steps: pl.DataFrame, inputs: StepInputs) -> dict[str, float]:
    """Return the mean time (ns) of each cause in a step."""
    codes = attribution.whole.threads.table.select("process", "process_code").unique()
    spans = step_spans(attribution).join(codes, on="process_code").join(steps, on=["process", "step"], how="semi")
    windows = inputs.windows.join(spans, on=["process", "start"], how="semi", nulls_equal=True)
    shares = _shares_of_steps(attribution, replace(inputs, windows=windows))
    sums = shares.group_by("share").agg(pl.col("ns").sum())
    return {name: ns / max(steps.height, 1) for name, ns in sums.iter_rows()}


def _layers_in(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of layers; operations and other named ranges if the profile does not contain layers."""
    named = (pl.col("layer") != "") | (pl.col("module") != "")
    layers = rows.filter(named & pl.col("phase").is_in(LAYER_PHASES))
    if layers.height:
        return layers
    return rows.filter((pl.col("layer") != "") & ~pl.col("layer").is_in([EPOCH, BATCH, DATA, UNATTRIBUTED]))


_LAYERS: Final = 5
"""Layers in each part of the step; the others are one row."""


@dataclass(frozen=True, slots=True)
class _Row:
    """An item of the summary; `whole` (ns) is the total for its share."""

    section: str
    item: str
    count: int | None = None
    ns: int | None = None
    whole: int | None = None
    hidden_ns: int | None = None
    text: str = ""


@once_for_each
def by_summary(attribution: Attribution) -> pl.DataFrame:
    """Return the items of DLProf's summary, a row each.

    Returns:
        section, item, count, ns, share (of the section's total, from 0 to 1), hidden_ns and text (values other than
        numbers):

        ``time``     wall: step time without warm-up, summed over devices; each of `GPU_PARTS` of
                     `annot.analyze.cpu_parts`, without a GPU of `CPU_PARTS`, which add up to it; hidden_ns: time
                     overlapped by the parts above
        ``parts``    forward, backward and optimizer of processes without a GPU: the longest layers, repeated layers as
                     one (count: their number), and the others; ns of an item add up to that of ``time``; share: of
                     step time; text: layer and class
        ``gpu``      busy: time of GPU activities in the steps, as share of step time; tensor_cores: time of kernels on
                     Tensor Cores, as share of all kernels; tensor_cores_of_eligible: as share of the kernels of
                     eligible layers; null: no name of a kernel shows the unit
        ``steps``    all, warmup, and mean, median, min, max and spread (interquartile range) of step times
        ``layers``   all, tc_used, tc_unused (eligible layers without Tensor Cores), tc_unknown, other: GPU self time;
                     host: CPU self time
        ``kernels``  all, tensor_cores, other; and copies
        ``system``   format, producer, software (name and version of each), cpu (its model), devices

        A profile without GPU activity lacks ``gpu``, ``kernels`` and the GPU self time of ``layers``.
    """
    times = step_time(attribution)
    rows = [*_time(attribution, times), *_phase_layers(attribution, times)]
    if attribution.names.height:
        of_gpu = (*_layers(attribution), *_host(attribution), *_kernels(attribution))
        rows += [*_gpu(attribution, times), *_steps(attribution), *of_gpu]
    else:
        rows += [*_steps(attribution), *_host(attribution)]
    rows += _system(attribution)
    share = pl.when(pl.col("whole") > 0).then(pl.col("ns") / pl.col("whole")).alias("share")
    return pl.DataFrame(rows).select("section", "item", "count", "ns", share, "hidden_ns", "text")


def _time(attribution: Attribution, table: pl.DataFrame) -> list[_Row]:
    by_share = table.group_by("share").agg(pl.col("ns", "hidden_ns").sum())
    sums = {share: (ns, hidden) for share, ns, hidden in by_share.iter_rows()}
    wall = sum(ns for ns, _ in sums.values())
    devices = table.select("process", "device").n_unique() if table.height else 0
    rows = [_Row("time", "wall", devices, wall, wall)]
    for share in part_names(attribution):
        ns, hidden = sums.get(share, (0, 0))
        rows.append(_Row("time", share, None, ns, wall, hidden))
    return rows


def _phase_layers(attribution: Attribution, table: pl.DataFrame) -> list[_Row]:
    """The longest layers in each part of the steps of processes without a GPU."""
    if not (table["share"] == COMPUTED[0]).any():
        return []
    wall, layers = int(table["ns"].sum()), layers_of_parts(attribution)
    rows = []
    for phase in COMPUTED:
        folded = repeated_layers(layers.filter(pl.col("part") == phase), "ns")
        for layer, module, ns, repeats in folded.head(_LAYERS).iter_rows():
            repeated = repeats if repeats > 1 else None
            rows.append(_Row("parts", phase, repeated, ns, wall, text=_name(phase, layer, module, repeats)))
        others = folded.slice(_LAYERS)
        if number := int(others["layers"].sum()):
            text = "1 other layer" if number == 1 else f"{number:,} other layers"
            rows.append(_Row("parts", phase, number, int(others["ns"].sum()), wall, text=text))
    return rows


def _name(phase: str, layer: str, module: str, repeats: int) -> str:
    if not layer and not module:
        return "(outside layers)"
    times = f" ×{repeats:,}" if repeats > 1 else ""
    return named(layer or ("" if phase == "optimizer" else "(model)"), module) + times


def _gpu(attribution: Attribution, steps: pl.DataFrame) -> list[_Row]:
    work = tensor_core_work(attribution).filter("kernel")
    eligible = layer_tensor_cores(attribution).filter("tc_eligible").select(KEY)
    of_eligible = int(work.join(eligible, on=KEY, how="semi")["gpu_ns"].sum())
    used = work.filter("tensor_cores")
    busy = busy_times(steps)
    tc_ns: int | None = int(used["gpu_ns"].sum())
    calls: int | None = int(used["calls"].sum())
    if not calls and work.filter(pl.col("kind").is_in(MATRIX))["tensor_cores"].null_count():
        tc_ns = calls = None  # no kernel shows that it uses Tensor Cores, and some may
    return [
        _Row("gpu", "busy", busy.height, int(busy["ns"].sum()), int(steps["ns"].sum())),
        _Row("gpu", "tensor_cores", calls, tc_ns, int(work["gpu_ns"].sum())),
        _Row("gpu", "tensor_cores_of_eligible", calls, tc_ns, of_eligible),
    ]


def _steps(attribution: Attribution) -> list[_Row]:
    meta = summarize(attribution)
    times = meta["step_ns"]
    rows = [_Row("steps", "all", meta["steps"], text=meta["steps_found_by"])]
    if times is not None:
        rows.append(_Row("steps", "warmup", times["warmup"]))
        names = {"mean": "mean", "median": "median", "min": "min", "max": "max", "spread": "iqr"}
        rows += [_Row("steps", name, None, times[key]) for name, key in names.items()]
    return rows


def _layers(attribution: Attribution) -> list[_Row]:
    rows = _layers_in(layer_tensor_cores(attribution))
    whole = int(rows["gpu_self_ns"].sum())
    used, unknown = pl.col("tc_used").fill_null(False), pl.col("tc_eligible") & pl.col("tc_used").is_null()
    unused = pl.col("tc_eligible") & ~used & ~unknown
    others = ~pl.col("tc_eligible") & ~used
    kinds = {"all": pl.lit(True), "tc_used": used, "tc_unused": unused, "tc_unknown": unknown, "other": others}
    summary = []
    for name, which in kinds.items():
        group = rows.filter(which)
        layers = group.select("layer", "module").n_unique() if group.height else 0
        summary.append(_Row("layers", name, layers, int(group["gpu_self_ns"].sum()), whole))
    return summary


def _host(attribution: Attribution) -> list[_Row]:
    if not known(attribution.meta):
        return []
    times = by_layer(attribution)
    of_layers, whole = (int(rows["host_self_ns"].sum()) for rows in (_layers_in(times), times))
    return [_Row("layers", "host", None, of_layers, whole)]


def _kernels(attribution: Attribution) -> list[_Row]:
    work = tensor_core_work(attribution)
    whole = int(work["gpu_ns"].sum())
    uses, kernel = pl.col("tensor_cores").fill_null(False) & pl.col("kernel"), pl.col("kernel")
    kinds = {"all": kernel, "tensor_cores": uses, "other": kernel & ~uses, "copies": ~kernel}
    return [
        _Row("kernels", name, int(group["calls"].sum()), int(group["gpu_ns"].sum()), whole)
        for name, which in kinds.items()
        for group in [work.filter(which)]
    ]


def _system(attribution: Attribution) -> list[_Row]:
    meta: dict[str, Any] = attribution.meta
    names = Counter(str(device.get("name", "unknown")) for device in meta.get("devices") or ())
    rows = [_Row("system", name, text=str(meta.get(name, ""))) for name in ("format", "producer")]
    rows += [_Row("system", "software", text=" ".join(pair)) for pair in meta.get("software", {}).items()]
    rows += [_Row("system", "cpu", text=str(meta["cpu"]))] if meta.get("cpu") else []
    return rows + [_Row("system", "device", count, text=name) for name, count in names.items()]
