"""Steps of training: what happened in each batch."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.correlate.attribution import Attribution
from annot.correlate.keys import BATCH

__all__ = ["by_step"]

_PHASES: Final = ("forward", "backward", "optimizer")


def by_step(attribution: Attribution) -> pl.DataFrame:
    """Return a row per batch range that lies in no other batch range, in order of time.

    What other threads of the process do while the batch lasts counts to it: a backward range or a launch
    belongs to the step in which it began.

    Returns:
        process, step (from 0, per process), batch (its number in the epoch; null if unknown), start_ns,
        host_ns, data_ns (the wait for data since the step before), forward_ns, backward_ns, optimizer_ns (on
        the host, with what lies in them), gpu_ns (all device work launched in it) and kernels.
    """
    ranges = _located(attribution)
    batches = ranges.filter((pl.col("layer") == BATCH) & ~pl.col("within")).sort("process", "start", "end")
    batches = batches.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).over("process").alias("step"))
    steps = batches.select(
        "process", "step", "start", "end", "host_ns", batch=pl.col("number"), start_ns=pl.col("start")
    )
    steps = steps.sort("start")
    for part in (_phase_times(ranges, steps), _data_times(ranges, steps), _device_times(attribution, steps)):
        steps = steps.join(part, on=["process", "step"], how="left", maintain_order="left")
    phases = [f"{phase}_ns" for phase in _PHASES]
    counted = ["data_ns", *phases, "gpu_ns", "kernels"]
    columns = ["process", "step", "batch", "start_ns", "host_ns", *counted]
    return steps.with_columns(pl.col(counted).fill_null(0)).select(columns).sort("start_ns", "process")


def _located(attribution: Attribution) -> pl.DataFrame:
    """All ranges, with `within`: whether a range around them is a batch or has the same phase."""
    tree, within = attribution.tree, []
    marks: list[frozenset[str]] = []
    for layer, phase, parent in tree.select("layer", "phase", "parent").iter_rows():
        around = marks[parent] if parent is not None else frozenset()
        mine = BATCH if layer == BATCH else phase
        within.append(mine in around or (phase in _PHASES and not around.isdisjoint(_PHASES)))
        marks.append(around if mine in around else around | {mine})
    columns = ["process", "layer", "phase", "start", "end", "host_ns", pl.col("step").alias("number")]
    inner = tree.select(columns).with_columns(pl.Series("within", within, pl.Boolean))
    return pl.concat([inner, attribution.loose.select(columns).with_columns(within=pl.lit(False))])


def _in_step(events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The events that began within a step, with its number."""
    spans = steps.select("process", "start", "step", until="end")
    found = events.sort("start").join_asof(spans, on="start", by="process", check_sortedness=False)
    return found.filter(pl.col("start") <= pl.col("until"))


def _phase_times(ranges: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    phases = _in_step(ranges.filter(pl.col("phase").is_in(_PHASES) & ~pl.col("within")), steps)
    times = {f"{phase}_ns": pl.col("host_ns").filter(pl.col("phase") == phase).sum() for phase in _PHASES}
    return phases.group_by("process", "step").agg(**times)


def _data_times(ranges: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Waits for data that ended before a step began count to it, unless another step comes between."""
    waits = ranges.filter((pl.col("phase") == "data") & ~pl.col("within"))
    waits = waits.select("process", "host_ns", start="end").sort("start")
    spans = steps.select("process", "start", "step")
    found = waits.join_asof(spans, on="start", by="process", strategy="forward", check_sortedness=False)
    return found.drop_nulls("step").group_by("process", "step").agg(pl.col("host_ns").sum().alias("data_ns"))


def _device_times(attribution: Attribution, steps: pl.DataFrame) -> pl.DataFrame:
    launched = _in_step(attribution.work.drop_nulls("start").drop("end"), steps)
    return launched.group_by("process", "step").agg(
        pl.col("gpu_ns").sum(), pl.col("kernel").sum().cast(pl.Int64).alias("kernels")
    )
