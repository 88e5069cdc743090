"""What happened in each step, and how much steps differ."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.attribution import Attribution
from annot.correlate.forest import Forest
from annot.correlate.host_times import without_unknown
from annot.correlate.keys import BATCH
from annot.correlate.steps import Steps

__all__ = ["by_step", "step_statistics"]

_PHASES: Final = ("forward", "backward", "optimizer")


def by_step(attribution: Attribution) -> pl.DataFrame:
    """Return a row per step, in order of time; only those that were asked for, if any were.

    What other threads of the process do while the step lasts counts to it: a backward range or a launch
    belongs to the step in which it began.

    Returns:
        process, step (from 0, per process), batch (its number in the epoch; null if unknown), warmup (longer
        than the later ones, at the beginning), start_ns, host_ns, data_ns (the wait for data since the step
        before), forward_ns, backward_ns, optimizer_ns (on the host, with what lies in them), gpu_ns (all
        device work launched in it) and kernels.
    """
    steps = attribution.steps
    table = steps.table.filter(steps.wanted(steps.table["step"]))
    processes = attribution.forest.threads.table.select("process", "process_code").unique()
    rows = table.rename({"process": "process_code"}).join(processes, on="process_code", how="left")
    rows = rows.with_columns(start_ns=pl.col("start"), host_ns=pl.col("end") - pl.col("start")).sort("start")
    ranges = _phase_ranges(attribution.whole)
    for part in (_phase_times(attribution, ranges), _data_times(ranges, steps), attribution.step_work):
        rows = rows.join(part, on=["process_code", "step"], how="left", maintain_order="left")
    counted = ["data_ns", *(f"{phase}_ns" for phase in _PHASES), "gpu_ns", "kernels"]
    columns = ["process", pl.col("step").cast(pl.Int64), "batch", "warmup", "start_ns", "host_ns", *counted]
    rows = rows.with_columns(pl.col(counted).fill_null(0)).select(columns).sort("start_ns", "process")
    return without_unknown(rows, attribution.meta)


def step_statistics(steps: pl.DataFrame) -> dict[str, Any] | None:
    """Return median, shortest, longest and spread of the steps' lengths (ns), warm-up left out unless it is all.

    Args:
        steps: what `by_step` returned.

    Returns:
        median, min, max, iqr (from the first to the third quartile), all in ns, and warmup: how many steps were
        left out; None without steps.
    """
    if steps.is_empty():
        return None
    steady = steps.filter(~pl.col("warmup"))["host_ns"]
    lengths = (steady if steady.len() else steps["host_ns"]).sort().to_list()
    first, third = lengths[len(lengths) // 4], lengths[3 * len(lengths) // 4]
    return {
        "median": lengths[len(lengths) // 2], "min": lengths[0], "max": lengths[-1], "iqr": third - first,
        "warmup": steps.height - steady.len() if steady.len() else 0,
    }  # fmt: skip


def _phase_ranges(forest: Forest) -> pl.DataFrame:
    """Ranges of a phase that lie in no other range of one: process_code, phase, start, end, host_ns."""
    phases = pl.Series("phase", [forest.keys.names[key][2] for key in forest.nodes.keys], pl.String)
    batch = pl.Series("batch", [forest.keys.names[key][0] == BATCH for key in forest.nodes.keys], pl.Boolean)
    path = _there(forest.tree["path"])
    tree = forest.tree.select("thread", "start", "end").with_columns(phases.gather(path), batch.gather(path))
    of_layers = (tree["phase"].is_in(_PHASES) & ~tree["batch"]).fill_null(False)
    waits = (tree["phase"] == "data").fill_null(False)
    outermost = (of_layers & ~_inside(of_layers, forest.tree["parent"])) | (
        waits & ~_inside(waits, forest.tree["parent"])
    )
    loose = forest.loose.select("thread", "start", "end").with_columns(
        forest.says["phase"].gather(forest.loose["says"])
    )
    every = pl.concat([tree.filter(outermost).drop("batch"), loose])
    every = every.filter(pl.col("phase").is_in([*_PHASES, "data"]))
    process = forest.threads.table["process_code"].gather(every["thread"])
    return every.select(process, "phase", "start", "end", host_ns=pl.col("end") - pl.col("start"))


def _inside(marked: pl.Series, parent: pl.Series) -> pl.Series:
    """Whether a marked row stands above each row, however far; each round looks twice as far as the one before."""
    if not marked.any():
        return marked
    above = _there(parent)
    inside = marked.gather(above).fill_null(False)
    while above.null_count() < above.len():
        inside |= inside.gather(above).fill_null(False)
        above = above.gather(above)
    return inside


def _there(rows: pl.Series) -> pl.Series:
    """Numbers of rows with null in the place of `sweep.NONE`."""
    return pl.select(pl.when(rows != sweep.NONE).then(rows)).to_series()


def _phase_times(attribution: Attribution, ranges: pl.DataFrame) -> pl.DataFrame:
    step = attribution.steps.at(ranges["process_code"], ranges["start"])
    times = {f"{phase}_ns": pl.col("host_ns").filter(pl.col("phase") == phase).sum() for phase in _PHASES}
    return ranges.with_columns(step).filter(pl.col("step") != sweep.NONE).group_by("process_code", "step").agg(**times)


def _data_times(ranges: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """A wait for data counts to the step that it began in; one between steps to that which comes next."""
    waits = ranges.filter(pl.col("phase") == "data")
    waits = waits.with_columns(steps.at(waits["process_code"], waits["start"]).alias("inside")).sort("end")
    spans = steps.table.select("step", process_code="process", end="start").sort("end")
    found = waits.join_asof(spans, on="end", by="process_code", strategy="forward", check_sortedness=False)
    found = found.with_columns(pl.when(pl.col("inside") != sweep.NONE).then("inside").otherwise("step").alias("step"))
    return found.drop_nulls("step").group_by("process_code", "step").agg(pl.col("host_ns").sum().alias("data_ns"))
