"""Summary of a run: DLProf's summary report."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, TypeAlias

import polars as pl

from annot.analyze.cpu_parts import COMPUTED, layers_of_parts
from annot.analyze.dlprof_reports import layers_in
from annot.analyze.gpu_activities import KEY
from annot.analyze.kernel_kinds import MATRIX
from annot.analyze.repeated_layers import repeated_layers
from annot.analyze.step_parts import WORK, step_inputs
from annot.analyze.step_time import part_names, step_time
from annot.analyze.tensor_cores import layer_tensor_cores, tensor_core_work
from annot.attribution import by_layer, summarize
from annot.attribution.attribute import Attribution, known
from annot.labels.layer_path import named
from annot.util.weak_keys import once_for_each

__all__ = ["by_summary"]

_SCHEMA: Final = {
    "section": pl.String, "item": pl.String, "count": pl.Int64, "ns": pl.Int64, "share": pl.Float64,
    "hidden_ns": pl.Int64, "text": pl.String,
}  # fmt: skip
_LAYERS: Final = 5
"""Layers in each part of the step; the others are one row."""
_Row: TypeAlias = tuple[str, str, int | None, int | None, float | None, int | None, str]


@once_for_each
def by_summary(attribution: Attribution) -> pl.DataFrame:
    """Return the items of DLProf's summary, a row each.

    Returns:
        section, item, count, ns, share (of the section's total, from 0 to 1), hidden_ns and text (values other than
        numbers):

        ``time``     wall: step time without warm-up, summed over devices; each of `GPU_PARTS` of
                     `annot.analyze.part_names`, without a GPU of `CPU_PARTS`, which add up to it; hidden_ns: time
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
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _row(
    section: str, item: str, count: int | None, ns: int | None, whole: int | None = None, *,
    hidden: int | None = None, text: str = "",
) -> _Row:  # fmt: skip
    share = ns / whole if whole and ns is not None else None
    return section, item, count, ns, share, hidden, text


def _time(attribution: Attribution, table: pl.DataFrame) -> list[_Row]:
    by_share = table.group_by("share").agg(pl.col("ns", "hidden_ns").sum())
    sums = {share: (ns, hidden) for share, ns, hidden in by_share.iter_rows()}
    wall = sum(ns for ns, _ in sums.values())
    devices = table.select("process", "device").n_unique() if table.height else 0
    rows = [_row("time", "wall", devices, wall, wall)]
    for share in part_names(attribution):
        ns, hidden = sums.get(share, (0, 0))
        rows.append(_row("time", share, None, ns, wall, hidden=hidden))
    return rows


def _phase_layers(attribution: Attribution, table: pl.DataFrame) -> list[_Row]:
    """The longest layers in each part of the steps of processes without a GPU."""
    if not (table["share"] == COMPUTED[0]).any():
        return []
    wall, layers = int(table["ns"].sum()), layers_of_parts(attribution, step_inputs(attribution))
    rows = []
    for phase in COMPUTED:
        folded = repeated_layers(layers.filter(pl.col("part") == phase), "ns")
        for layer, module, ns, repeats in folded.head(_LAYERS).iter_rows():
            repeated = repeats if repeats > 1 else None
            rows.append(_row("parts", phase, repeated, ns, wall, text=_name(phase, layer, module, repeats)))
        others = folded.slice(_LAYERS)
        if number := int(others["layers"].sum()):
            text = "1 other layer" if number == 1 else f"{number:,} other layers"
            rows.append(_row("parts", phase, number, int(others["ns"].sum()), wall, text=text))
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
    on_cpu = (pl.col("share") == COMPUTED[0]).any().over("process", "device")
    ran = steps.filter(pl.col("share").is_in(WORK) & ~on_cpu)
    devices = ran.filter(pl.col("ns") > 0).select("process", "device").n_unique()
    tc_ns: int | None = int(used["gpu_ns"].sum())
    calls: int | None = int(used["calls"].sum())
    if not calls and work.filter(pl.col("kind").is_in(MATRIX))["tensor_cores"].null_count():
        tc_ns = calls = None  # no kernel shows that it uses Tensor Cores, and some may
    return [
        _row("gpu", "busy", devices, int(ran["ns"].sum()), int(steps["ns"].sum())),
        _row("gpu", "tensor_cores", calls, tc_ns, int(work["gpu_ns"].sum())),
        _row("gpu", "tensor_cores_of_eligible", calls, tc_ns, of_eligible),
    ]


def _steps(attribution: Attribution) -> list[_Row]:
    meta = summarize(attribution)
    times = meta["step_ns"]
    rows = [_row("steps", "all", meta["steps"], None, text=meta["steps_found_by"])]
    if times is not None:
        rows.append(_row("steps", "warmup", times["warmup"], None))
        names = {"mean": "mean", "median": "median", "min": "min", "max": "max", "spread": "iqr"}
        rows += [_row("steps", name, None, times[key]) for name, key in names.items()]
    return rows


def _layers(attribution: Attribution) -> list[_Row]:
    rows = layers_in(layer_tensor_cores(attribution))
    whole = int(rows["gpu_self_ns"].sum())
    used, unknown = pl.col("tc_used").fill_null(False), pl.col("tc_eligible") & pl.col("tc_used").is_null()
    unused = pl.col("tc_eligible") & ~used & ~unknown
    others = ~pl.col("tc_eligible") & ~used
    kinds = {"all": pl.lit(True), "tc_used": used, "tc_unused": unused, "tc_unknown": unknown, "other": others}
    summary = []
    for name, which in kinds.items():
        group = rows.filter(which)
        layers = group.select("layer", "module").n_unique() if group.height else 0
        summary.append(_row("layers", name, layers, int(group["gpu_self_ns"].sum()), whole))
    return summary


def _host(attribution: Attribution) -> list[_Row]:
    if not known(attribution.meta):
        return []
    times = by_layer(attribution)
    return [_row("layers", "host", None, int(layers_in(times)["host_self_ns"].sum()), int(times["host_self_ns"].sum()))]


def _kernels(attribution: Attribution) -> list[_Row]:
    work = tensor_core_work(attribution)
    whole = int(work["gpu_ns"].sum())
    uses, kernel = pl.col("tensor_cores").fill_null(False) & pl.col("kernel"), pl.col("kernel")
    kinds = {"all": kernel, "tensor_cores": uses, "other": kernel & ~uses, "copies": ~kernel}
    return [
        _row("kernels", name, int(group["calls"].sum()), int(group["gpu_ns"].sum()), whole)
        for name, which in kinds.items()
        for group in [work.filter(which)]
    ]


def _system(attribution: Attribution) -> list[_Row]:
    meta: dict[str, Any] = attribution.meta
    names = Counter(str(device.get("name", "unknown")) for device in meta.get("devices") or ())
    rows = [_row("system", name, None, None, text=str(meta.get(name, ""))) for name in ("format", "producer")]
    rows += [_row("system", "software", None, None, text=" ".join(pair)) for pair in meta.get("software", {}).items()]
    rows += [_row("system", "cpu", None, None, text=str(meta["cpu"]))] if meta.get("cpu") else []
    return rows + [_row("system", "device", count, None, text=name) for name, count in names.items()]
