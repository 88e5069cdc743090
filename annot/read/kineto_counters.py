"""Hardware counters in a trace of Kineto, which counts events of the hardware in place of taking times.

An event "cuda_profiler_range" then stands for one kernel, as kernels run one after the other; its time is made up:
Kineto spreads the ranges evenly over the trace. So the n-th range is the n-th kernel of the trace or, where that
has none, the n-th launch of one. Such a kernel takes no time in the tables.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.profile import METRICS

__all__ = ["with_counters"]

_LAUNCH: Final = r"^(cuda|cu|hip)\w*Launch\w*Kernel"


def with_counters(
    kernels: pl.DataFrame, counted: pl.DataFrame, counters: pl.DataFrame, launches: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Return the kernels, those that only the counters know included, their metrics, and notes.

    Args:
        kernels: those that have times, in the order of their start.
        counted: start, text, device and row of each range, in the order of their start.
        counters: row, name and value: what was counted in each row.
        launches: process, correlation and text, in the order of their start.
    """
    if counted.is_empty():
        return kernels, pl.DataFrame(schema=dict(METRICS)), []
    if kernels.is_empty():
        kernels, notes = _untimed(counted, launches)
    elif kernels.height == counted.height:
        notes = []
    else:
        note = f"the trace counts hardware events of {counted.height:,} kernels, but has {kernels.height:,}"
        return kernels, pl.DataFrame(schema=dict(METRICS)), [f"{note}: which is which is not known"]
    return kernels, _metrics(counted["row"], counters), notes


def _untimed(counted: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    notes = [f"the trace counts hardware events: it has no times of its {counted.height:,} kernels, which count as 0"]
    kernels = counted.select("device", "start", "text", end="start")
    calls = launches.filter(pl.col("text").str.contains(_LAUNCH))
    if calls.height == counted.height:
        return kernels.hstack(calls.select("process", "correlation")), notes
    notes.append(f"the trace has {calls.height:,} launches of kernels: which belongs to which kernel is not known")
    return kernels, notes


def _metrics(rows: pl.Series, counters: pl.DataFrame) -> pl.DataFrame:
    kernels = rows.to_frame("row").with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("kernel"))
    metrics = kernels.join(counters, on="row", how="inner", maintain_order="left_right")
    return metrics.select("kernel", "name", "value")
