"""Bottleneck of each layer: time, roofline bound and hardware counters by layer, phase and batch size.

The quantities are those by which Zhao et al. compare the layers of AlexNet and VGG-16 in training.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import Final

import polars as pl

from annot.analyze.gpu_activities import KEY
from annot.analyze.hardware_counters import COUNTERS, layer_counters
from annot.analyze.peak_sources import default_peaks
from annot.analyze.roofline import layer_roofline, under_roof
from annot.analyze.roofs import Peaks
from annot.attribution import Attribution, by_layer

__all__ = ["by_bottleneck", "step_batches"]

_BATCH: Final = re.compile(r"\[(\d+),")
_MOST_RUNS: Final = 16
"""Maximum number of runs of consecutive steps with one batch size that are analysed separately."""

_SUMMED: Final = (
    "calls", "time_ns", "self_ns", "kernels", "gpu_idle_ns", "gpu_launch_ns", "flops", "bytes", "instructions",
    "whole_ns", "batch_steps",
)  # fmt: skip
_MEANS: Final = tuple(name for name in COUNTERS if name not in ("stall_reason", "instructions"))


def by_bottleneck(attribution: Attribution, peaks: Peaks | None = None) -> pl.DataFrame:
    """Return the time, roofline bound and hardware counters of each layer.

    If steps have different batch sizes, each size has separate rows.

    Args:
        attribution: the profile.
        peaks: peaks of the device; None: those of `annot.analyze.peak_sources.default_peaks`.

    Returns:
        layer, module, phase; batch (first dimension of the model's input, Int64; null: unknown); calls;
        time_ns, self_ns (without nested layers), time_share (of the total time with that batch size, 0 to 1);
        backward_to_forward (ratio of times, in rows of the backward pass); kernels; gpu_idle_ns, gpu_launch_ns, flops,
        bytes, intensity, flops_per_s, precision, roof_share, bound of `annot.analyze.roofline.layer_roofline`; and
        the columns of `annot.analyze.hardware_counters.COUNTERS`; batch_steps (number of steps with that batch size,
        null with one size). Null: unknown or not counted.
    """
    peaks = peaks or default_peaks(attribution)
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
    return rows.select(*KEY, "batch", *_COLUMNS)


_COLUMNS: Final = (
    "calls", "time_ns", "self_ns", "time_share", "backward_to_forward", "kernels", "gpu_idle_ns", "gpu_launch_ns",
    "flops", "bytes", "intensity", "flops_per_s", "precision", "roof_share", "bound", *COUNTERS, "batch_steps",
)  # fmt: skip


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
