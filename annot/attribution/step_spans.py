"""Start and end of the steps of a run, on the CPU, or on a GPU that is behind the CPU."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution.attribute import Attribution
from annot.attribution.host_times import known
from annot.attribution.range_trees import Forest
from annot.attribution.steps import Steps
from annot.util.weak_keys import once_for_each

__all__ = ["step_spans"]

_BEHIND: Final = 1.1
"""Ratio of the time between the ends of steps on the GPU to that on the CPU from which the GPU counts as behind."""


@once_for_each
def step_spans(attribution: Attribution) -> pl.DataFrame:
    """Return process_code, step, start, end (ns), behind (Boolean): a row per step, and per wait for data before it.

    The CPU launches the kernels of a step and goes on. If nothing in the loop waits for the GPU, as in a short profile,
    the range of a step ends long before its kernels. The GPU is then behind the CPU: a step starts when the GPU has
    finished the steps before it, the first one with its first kernel, because earlier steps are not in the profile. It
    ends when the GPU has finished its kernels and copies. Otherwise start and end are those of the range.

    The rows of a process do not overlap. A step takes the sum of its rows.
    """
    table = attribution.steps.table.select("step", "start", "end", process_code="process")
    if not known(attribution.meta):
        return table.with_columns(behind=pl.lit(value=False))
    table = _add_gpu_times(table, attribution)
    behind = pl.col("behind")
    start, end = pl.when(behind).then("begin").otherwise("start"), pl.when(behind).then("until").otherwise("end")
    spans = table.select("process_code", "step", start.alias("start"), end.alias("end"), "behind", ready="start")
    return pl.concat([spans.drop("ready"), _waits(attribution.steps, attribution.whole, spans)]).sort(
        "process_code", "start"
    )


def _add_gpu_times(table: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """Add begin and until, the time of each step on a GPU that is behind, and behind."""
    steady = attribution.steps.steady().select("step", process_code="process", steady=pl.lit(value=True))
    for values in (attribution.step_work.select("process_code", "step", "first_ns", "last_ns"), steady):
        table = table.join(values, on=["process_code", "step"], how="left")
    table = table.sort("process_code", "start")
    finished = pl.col("last_ns").cum_max().forward_fill().over("process_code").alias("finished")
    table = table.with_columns(finished, first=pl.int_range(pl.len()).over("process_code") == 0)
    free = pl.when("first").then("first_ns").otherwise(pl.col("finished").shift(1).over("process_code"))
    table = table.with_columns(begin=pl.max_horizontal("start", free), until=pl.max_horizontal("end", "finished"))
    compared = pl.col("steady") & (~pl.col("first") | (pl.col("steady").sum() == 1))
    since = pl.coalesce(pl.col("end").shift(1).over("process_code"), "start")
    table = table.with_columns(on_gpu=pl.col("until") - pl.col("begin"), on_cpu=pl.col("end") - since)
    on_gpu, on_cpu = (pl.col(name).filter(compared).sum().over("process_code") for name in ("on_gpu", "on_cpu"))
    return table.with_columns(behind=on_gpu > _BEHIND * on_cpu)


def _waits(steps: Steps, forest: Forest, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the waits for data before each step, as in `Steps.with_waits`, without overlaps."""
    every = forest.every_range()
    every = every.filter((forest.labels["phase"] == "data").gather(every["label"])).drop_nulls(["start", "end"])
    process = forest.threads.table["process_code"].gather(every["thread"]).alias("process_code")
    step = steps.with_waits(forest).at(process, every["start"]).alias("step")
    free = pl.col("end").shift(1).over("process_code").alias("free")
    gaps = spans.select("process_code", "step", "behind", "ready", free)
    waits = every.select(process, step, "start", end="end").join(gaps, on=["process_code", "step"])
    waits = waits.with_columns(pl.min_horizontal("end", "ready")).sort("process_code", "start")
    earlier = pl.col("end").cum_max().shift(1).over("process_code")
    waits = waits.with_columns(pl.max_horizontal("start", "free", earlier).alias("start"))
    return waits.select("process_code", "step", "start", "end", "behind").filter(pl.col("start") < pl.col("end"))
