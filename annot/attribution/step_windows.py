"""Time of ranges outside the selected steps."""

from __future__ import annotations

import polars as pl

from annot.attribution import column_ops
from annot.attribution.range_trees import Forest
from annot.attribution.steps import Steps

__all__ = ["time_in", "time_outside_steps"]


def time_outside_steps(forest: Forest, steps: Steps) -> pl.DataFrame:
    """Return row (in the tree) and outside_ns of the ranges that last longer than the selected steps.

    The ranges start in selected steps. A range around several steps, such as one named after an epoch, also contains
    the time between them.
    """
    none = pl.DataFrame(schema={"row": pl.Int32, "outside_ns": pl.Int64})
    if steps.choice is None or steps.table.is_empty():
        return none
    spans = steps.table if steps.spans is None else steps.spans
    spans = spans.filter(steps.selected(spans["step"])).sort("start")
    length = pl.col("end") - pl.col("start")
    spans = spans.select("process", "start", length=length, until=length.cum_sum().over("process"))
    rows = pl.int_range(forest.tree.height, dtype=pl.Int32, eager=True)
    top = _time_outside(forest, rows.filter(forest.tree["parent"] == column_ops.NONE), spans)
    # What lies inside a range that a step contains lies in the step.
    return none if top.is_empty() else _time_outside(forest, rows, spans)


def _time_outside(forest: Forest, rows: pl.Series, spans: pl.DataFrame) -> pl.DataFrame:
    ranges = forest.tree.select("thread", "start", "end")[rows]
    process = forest.threads.table["process_code"].gather(ranges["thread"]).alias("process")
    inside = time_in(spans, process, ranges["end"]) - time_in(spans, process, ranges["start"])
    outside = pl.DataFrame({"row": rows, "outside_ns": ranges["end"] - ranges["start"] - inside})
    return outside.filter(pl.col("outside_ns") > 0)


def time_in(spans: pl.DataFrame, process: pl.Series, instants: pl.Series) -> pl.Series:
    """Return the time (ns) in spans of the process before each instant.

    Args:
        spans: process (code), start, length and until (running sum of the lengths of the process), by start.
        process: code of the process of each instant.
        instants: times (ns).
    """
    begins = spans.select("process", "length", "until", at="start", begin="start")
    calls = pl.DataFrame({"process": process, "at": instants}).with_row_index().sort("at")
    last = calls.join_asof(begins, on="at", by="process", check_sortedness=False).sort("index")
    time = pl.col("until") - pl.col("length") + pl.min_horizontal(pl.col("at") - pl.col("begin"), "length")
    return last.select(time.fill_null(0).alias("ns")).to_series()
