"""Table of steps, and statistics of their duration."""

from __future__ import annotations

from typing import Any

import polars as pl

from annot.attribution import column_ops
from annot.attribution.attribute import Attribution
from annot.attribution.host_times import without_unknown
from annot.attribution.phase_ranges import PHASES, phase_ranges
from annot.attribution.step_spans import step_spans
from annot.attribution.steps import SIZES, Steps, of_main_kind, steady_steps
from annot.util.weak_keys import once_for_each

__all__ = ["by_step", "step_statistics"]


@once_for_each
def by_step(attribution: Attribution) -> pl.DataFrame:
    """Return a row per selected step, in order of time.

    A range or launch on any thread of the process belongs to the step in which it starts.

    Returns:
        process, step (from 0, per process), batch (number in the epoch, null if unknown), kind, requests, tokens and
        context of a step of a serving engine (null: unknown), warmup (one of the first steps that take longer than the
        later ones), start_ns, host_ns, step_ns (time of the step with the wait for data before it, see
        `annot.attribution.step_spans`), data_ns (the wait for data since the previous step), forward_ns,
        backward_ns, optimizer_ns (total host time), gpu_ns (all GPU activities launched in the step) and kernels.
    """
    steps = attribution.steps
    table = steps.chosen()
    processes = attribution.forest.threads.table.select("process", "process_code").unique()
    rows = table.rename({"process": "process_code"}).join(processes, on="process_code", how="left")
    rows = rows.with_columns(start_ns=pl.col("start"), host_ns=pl.col("end") - pl.col("start")).sort("start")
    ranges = phase_ranges(attribution.whole)
    sums = {f"{phase}_ns": pl.col("host_ns").filter(pl.col("phase") == phase).sum() for phase in PHASES}
    placed = ranges.with_columns(steps.at(ranges["process_code"], ranges["start"]))
    phases = placed.filter(pl.col("step") != column_ops.NONE).group_by("process_code", "step").agg(**sums)
    length = pl.col("end") - pl.col("start")
    lengths = step_spans(attribution).group_by("process_code", "step").agg(step_ns=length.sum())
    for values in (phases, _data_times(ranges, steps), attribution.step_work, lengths):
        rows = rows.join(values, on=["process_code", "step"], how="left", maintain_order="left")
    counted = ["data_ns", *(f"{phase}_ns" for phase in PHASES), "gpu_ns", "kernels"]
    times = ("start_ns", "host_ns", "step_ns")
    columns = ["process", pl.col("step").cast(pl.Int64), "batch", *SIZES, "warmup", *times, *counted]
    rows = rows.with_columns(pl.col(counted).fill_null(0)).select(columns).sort("start_ns", "process")
    return without_unknown(rows, attribution.meta)


def step_statistics(steps: pl.DataFrame) -> dict[str, Any] | None:
    """Return statistics of the duration of the steps that `annot.attribution.steps.steady_steps` returns.

    Args:
        steps: the result of `by_step`.

    Returns:
        mean, median, min, max, iqr (interquartile range) in ns, and warmup (number of others of their kind). None: no
        steps.
    """
    if steps.is_empty():
        return None
    steady = steady_steps(steps)
    lengths = steady["step_ns"].sort().to_list()
    number = len(lengths)
    first, third = lengths[number // 4], lengths[3 * number // 4]
    median = (lengths[(number - 1) // 2] + lengths[number // 2]) // 2
    return {
        "mean": round(sum(lengths) / number), "median": median, "min": lengths[0], "max": lengths[-1],
        "iqr": third - first, "warmup": of_main_kind(steps).height - steady.height,
    }  # fmt: skip


def _data_times(ranges: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """Return data_ns of the steps. A wait for data belongs to the step in which it starts, or else to the next step."""
    waits = ranges.filter(pl.col("phase") == "data")
    waits = waits.with_columns(steps.at(waits["process_code"], waits["start"]).alias("inside")).sort("end")
    spans = steps.table.select("step", process_code="process", end="start").sort("end")
    assigned = waits.join_asof(spans, on="end", by="process_code", strategy="forward", check_sortedness=False)
    assigned = assigned.with_columns(step=pl.when(pl.col("inside") != column_ops.NONE).then("inside").otherwise("step"))
    return assigned.drop_nulls("step").group_by("process_code", "step").agg(pl.col("host_ns").sum().alias("data_ns"))
