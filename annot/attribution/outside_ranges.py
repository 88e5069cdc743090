"""Host time outside any range: with it, the rows of a profile without GPU activity add up to 100 %."""

from __future__ import annotations

import polars as pl

from annot.attribution.column_ops import NONE
from annot.attribution.data_workers import worker_processes
from annot.attribution.range_trees import Forest
from annot.attribution.step_windows import time_in
from annot.attribution.steps import Steps

__all__ = ["outside_ranges_ns", "process_spans"]


def process_spans(forest: Forest) -> pl.DataFrame:
    """Return process (code), start and end (ns), first and last instant in ranges; without processes that load data."""
    rows = forest.every_range()
    spans = rows.group_by("thread").agg(pl.col("start").min(), pl.col("end").max())
    process = forest.threads.table["process_code"].gather(spans["thread"]).alias("process")
    spans = spans.select(process, "start", "end").filter(~process.is_in(worker_processes(forest).implode()))
    return spans.group_by("process").agg(pl.col("start").min(), pl.col("end").max())


def outside_ranges_ns(whole: Forest, forest: Forest, steps: Steps) -> int:
    """Return the time (ns) in which no thread of a process is in a range, added up over processes.

    Args:
        whole: the ranges of all steps.
        forest: the ranges of the selected steps.
        steps: the steps. The time of the selected steps counts, or of the whole run.
    """
    spans = process_spans(whole)
    if steps.choice is not None:
        spans = steps.table if steps.spans is None else steps.spans
        spans = spans.filter(steps.selected(spans["step"]))
    covered = _merged(forest)
    until, since = (time_in(covered, spans["process"], spans[name]) for name in ("end", "start"))
    return int((spans["end"] - spans["start"] - until + since).sum())


def _merged(forest: Forest) -> pl.DataFrame:
    """Return process, start, length and until (running sum of the lengths) of the times in ranges, by start."""
    top = forest.tree.lazy().filter(pl.col("parent") == NONE).select("thread", "start", "end").collect()
    process = forest.threads.table["process_code"].gather(top["thread"]).alias("process")
    rows = top.select(process, "start", "end").sort("start")
    earlier = pl.col("end").cum_max().shift(1).over("process")
    rows = rows.with_columns(pl.max_horizontal("start", earlier)).filter(pl.col("end") > pl.col("start"))
    length = pl.col("end") - pl.col("start")
    return rows.select("process", "start", length=length, until=length.cum_sum().over("process"))
