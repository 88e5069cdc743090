"""What holds each layer back: the table of layers, phases and batch sizes with counters and the roofline.

It has the quantities by which Zhao et al. compare the layers of AlexNet and VGG-16 in training.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import Final

import polars as pl

from annot.analyze.counters import COUNTERS, device_of_profile, layer_counters
from annot.analyze.peaks import Peaks, peaks_of
from annot.analyze.pieces import KEY
from annot.analyze.roofline import layer_roofline, under_roof
from annot.correlate import Attribution, by_layer

__all__ = ["by_bottleneck", "default_peaks", "step_batches"]

_BATCH: Final = re.compile(r"\[(\d+),")
_MOST_RUNS: Final = 16
"""Stretches of steps of one batch size that are looked at one by one."""

_SUMMED: Final = (
    "calls",
    "time_ns",
    "kernels",
    "gpu_idle_ns",
    "gpu_launch_ns",
    "flops",
    "bytes",
    "instructions",
    "whole_ns",
)
_MEANS: Final = tuple(name for name in COUNTERS if name not in ("stall_reason", "instructions"))


def by_bottleneck(attribution: Attribution, peaks: Peaks | None = None) -> pl.DataFrame:
    """Return what each layer spends its time on, and what holds it back.

    Where steps have different batch sizes, each size has rows of its own.

    Args:
        attribution: the profile.
        peaks: of the device; None: those that the profile tells.

    Returns:
        layer, module, phase; batch (first dimension of what came into the model, Int64; null: not known); calls;
        time_ns, time_share (of all that happened with that batch size, 0 to 1);
        backward_to_forward (on rows of the backward pass); kernels; gpu_idle_ns, gpu_launch_ns, flops, bytes,
        intensity, flops_per_s, precision, roof_share, bound as `annot.analyze.roofline.layer_roofline` gives them; and
        the columns of `annot.analyze.counters.COUNTERS`. Null: not known, not counted.
    """
    peaks = peaks or default_peaks(attribution)
    parts = [_rows(part, peaks).with_columns(batch=pl.lit(size, pl.Int64)) for size, part in _parts(attribution)]
    rows = under_roof(_added_up(pl.concat(parts)), peaks)
    rows = rows.with_columns(time_share=pl.when(pl.col("whole_ns") > 0).then(pl.col("time_ns") / pl.col("whole_ns")))
    return _with_ratio(rows).select(*KEY, "batch", *_COLUMNS)


_COLUMNS: Final = (
    "calls", "time_ns", "time_share", "backward_to_forward", "kernels", "gpu_idle_ns", "gpu_launch_ns", "flops",
    "bytes", "intensity", "flops_per_s", "precision", "roof_share", "bound", *COUNTERS,
)  # fmt: skip


def default_peaks(attribution: Attribution) -> Peaks | None:
    """Return the peaks of the device that did most, as far as the profile tells; None: it does not."""
    devices = attribution.meta.get("devices") or [row for row in [device_of_profile(attribution)] if row]
    busiest = attribution.device_busy.sort("busy_ns", descending=True)["device"]
    return peaks_of(devices, busiest[0] if busiest.len() else None)


def step_batches(attribution: Attribution) -> list[tuple[int, int]]:
    """Return steps and their batch sizes: what most shapes of the forward pass begin with, where any are known.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> step_batches(attribute(Profile.build({})))
        []
    """
    says = attribution.forest.says
    batch = says["shapes"].str.extract(_BATCH.pattern).cast(pl.Int64, strict=False)
    forward = says["phase"] == "forward"
    tree = attribution.forest.tree
    process = attribution.forest.threads.table["process_code"].gather(tree["thread"])
    rows = (
        pl.DataFrame(
            {
                "step": attribution.steps.at(process, tree["start"]),
                "batch": batch.gather(tree["says"]),
                "forward": forward.gather(tree["says"]),
            }
        )
        .filter(pl.col("forward") & (pl.col("step") >= 0))
        .drop_nulls("batch")
    )
    counts = rows.group_by("step", "batch").len().sort("step", "len", "batch", descending=[False, True, False])
    return [
        (int(step), int(size))
        for step, size in counts.group_by("step", maintain_order=True).first().select("step", "batch").rows()
    ]


def _parts(attribution: Attribution) -> list[tuple[int | None, Attribution]]:
    """The batch sizes, and the steps of each stretch of one size."""
    found = step_batches(attribution)
    runs = [(size, [step for step, _ in group]) for size, group in groupby(found, key=lambda row: row[1])]
    sizes = {size for size, _ in runs}
    if len(sizes) < 2 or len(runs) > _MOST_RUNS or attribution.of_steps is None:
        return [(_only_batch(attribution) if len(sizes) < 2 else None, attribution)]
    return [
        (size, attribution.of_steps(slice(steps[0], steps[-1] + 1))) for size, steps in runs
    ]  # fmt: skip


def _only_batch(attribution: Attribution) -> int | None:
    """The batch size that most texts of forward ranges have."""
    says = attribution.forest.says.filter((pl.col("phase") == "forward") & pl.col("shapes").is_not_null())
    sizes = Counter(match[1] for shapes in says["shapes"] if (match := _BATCH.match(shapes)))
    return int(sizes.most_common(1)[0][0]) if sizes else None


def _rows(attribution: Attribution, peaks: Peaks | None) -> pl.DataFrame:
    """What adds up of each layer, its precision and its counters."""
    layers = by_layer(attribution)
    own = "gpu_self_ns" if layers["gpu_self_ns"].sum() else "host_self_ns"
    rows = layer_roofline(attribution, peaks).with_columns(whole_ns=pl.lit(attribution.nodes[own].sum(), pl.Int64))
    rows = rows.join(layers.select(*KEY, "calls", "kernels"), on=list(KEY), how="left", maintain_order="left")
    counters = layer_counters(attribution)
    if counters is None:
        types = {"stall_reason": pl.String, "instructions": pl.Int64}
        return rows.with_columns(pl.lit(None, types.get(name, pl.Float64)).alias(name) for name in COUNTERS)
    return rows.join(counters, on=list(KEY), how="left", maintain_order="left")


def _added_up(rows: pl.DataFrame) -> pl.DataFrame:
    """Add up the stretches of each batch size; rates are means weighted by time."""
    sums = [pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in _SUMMED]
    weight = pl.col("time_ns").clip(1)
    means = [
        pl.when(pl.col(name).count() > 0).then(
            (pl.col(name) * weight).sum() / pl.when(pl.col(name).is_not_null()).then(weight).sum()
        )
        for name in _MEANS
    ]
    texts = pl.col("precision", "stall_reason").sort_by("time_ns", descending=True).first()
    groups = rows.group_by(*KEY, "batch", maintain_order=True)
    return groups.agg(*sums, *(mean.alias(name) for mean, name in zip(means, _MEANS, strict=True)), texts)


def _with_ratio(rows: pl.DataFrame) -> pl.DataFrame:
    """Say of the backward pass of each layer how many times as long it took as the forward pass."""
    forward = rows.filter(pl.col("phase") == "forward").select("layer", "module", "batch", forward_ns="time_ns")
    rows = rows.join(forward, on=["layer", "module", "batch"], how="left", nulls_equal=True, maintain_order="left")
    backward = (pl.col("phase") == "backward") & (pl.col("forward_ns") > 0)
    return rows.with_columns(backward_to_forward=pl.when(backward).then(pl.col("time_ns") / pl.col("forward_ns")))
