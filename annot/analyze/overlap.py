"""Partition of time among overlapping intervals by precedence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import polars as pl

__all__ = ["cut", "exclusive", "merged", "shares", "within", "without"]

_SLICE: Final = 1 << 18
"""Intervals per batch: with millions of intervals the intermediate columns take more memory than the intervals."""

_BEFORE_ALL: Final = pl.DataFrame({"start": [-(1 << 63)], "end": [-(1 << 63)], "before": [0]})


def shares(window: pl.DataFrame, going_on: Mapping[str, pl.DataFrame | Callable[[], pl.DataFrame]]) -> pl.DataFrame:
    """Partition the time in a window (start, end in ns, Int64) exactly among named intervals.

    Intervals may be functions that return them, which keeps one set in memory at a time. Where intervals overlap, the
    first name gets the time. The result has share: the names, then ``idle``; ns: time of each name, which adds up to
    the window; hidden_ns: time in which its intervals are overlapped by an earlier name.
    """
    whole = free = merged(window)
    rows = []
    for name, intervals in going_on.items():
        spans = merged(intervals() if callable(intervals) else intervals)
        exclusive = _shared(spans, free)
        rows.append((name, exclusive, _shared(spans, whole) - exclusive))
        free = without(free, spans)
    rows.append(("idle", int((free["end"] - free["start"]).sum()), 0))
    return pl.DataFrame(rows, schema={"share": pl.String, "ns": pl.Int64, "hidden_ns": pl.Int64}, orient="row")


def merged(intervals: pl.DataFrame) -> pl.DataFrame:
    """Merge overlapping and adjacent intervals (Int64), sorted by start; empty intervals are dropped."""
    rows = intervals.lazy().filter(pl.col("end") > pl.col("start")).select("start", "end").collect()
    if rows.is_empty():  # as are most categories of most steps
        return rows
    rows = rows if rows["start"].is_sorted() else rows.sort("start")
    reached = pl.col("end").cum_max()
    rows = rows.select("start", reached.alias("end"), begins=(pl.col("start") > reached.shift(1)).fill_null(True))
    ends = rows["begins"].shift(-1, fill_value=True)
    return pl.DataFrame({"start": rows["start"].filter(rows["begins"]), "end": rows["end"].filter(ends)})


def within(times: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Return the total length (ns) of the spans, a result of `merged`, before each time (ns, Int64)."""
    if spans.is_empty() or times.is_empty():
        return pl.zeros(times.len(), dtype=pl.Int64, eager=True).alias("within")
    row = spans["start"].search_sorted(times, side="right").alias("row")
    # Row 0 stands for the time before the first span.
    before = (pl.col("end") - pl.col("start")).cum_sum().shift(1, fill_value=0)
    rows = pl.concat([_BEFORE_ALL, spans.select("start", "end", before.alias("before"))])[row]
    inside = pl.min_horizontal("end", pl.lit(times)) - pl.col("start")
    return rows.select((pl.col("before") + inside).alias("within")).to_series()


def exclusive(rows: pl.DataFrame, window: pl.DataFrame) -> pl.DataFrame:
    """Give the time of overlapping intervals (start, end in ns, Int64) to the interval that starts first.

    Args:
        rows: the intervals, with further columns.
        window: a result of `merged`. Only time in the window counts.

    Returns:
        The rows by start; begin, until (ns): the exclusive part of each interval; wall_ns: its length in the window;
        calls: 1 if the interval starts in the window, else 0.
    """
    rows = rows.sort("start", maintain_order=True)
    begin = pl.max_horizontal("start", pl.col("end").cum_max().shift(1))
    rows = rows.with_columns(begin=begin, until=pl.max_horizontal(begin, "end"))
    taken = within(rows["until"], window) - within(rows["begin"], window)
    inside = within(rows["start"] + 1, window) > within(rows["start"], window)
    return rows.with_columns(taken.alias("wall_ns"), inside.cast(pl.Int64).alias("calls"))


def cut(spans: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """Split spans, a result of `merged`, at times (ns, Int64)."""
    start = pl.concat([spans["start"], spans["end"], at]).unique().sort().alias("start")
    segments = pl.DataFrame({"start": start, "end": start.shift(-1)}).drop_nulls()
    return segments.filter(within(segments["end"], spans) > within(segments["start"], spans))


def without(spans: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of spans outside holes; arguments and result are in the form of `merged`."""
    if holes.is_empty():
        return spans
    outside = [spans.clear()]
    for block in spans.iter_slices(_SLICE):
        first = holes["end"].search_sorted(block["start"][0], "right")
        last = holes["start"].search_sorted(block["end"][-1], "left")
        near = holes.slice(first, max(last - first, 0))
        sides = ((block, "start", 1), (block, "end", -1), (near, "start", 2), (near, "end", -2))
        edges = pl.concat([side.select(time=pl.col(name), open=pl.lit(step, pl.Int8)) for side, name, step in sides])
        edges = edges.sort("time").select(pl.col("open").cum_sum(), start="time", end=pl.col("time").shift(-1))
        outside.append(edges.filter((pl.col("open") == 1) & (pl.col("end") > pl.col("start"))).drop("open"))
    return pl.concat(outside, rechunk=True)


def _shared(spans: pl.DataFrame, other: pl.DataFrame) -> int:
    """Length of the overlap of two results of `merged`."""
    fewer, more = sorted((spans, other), key=len)
    if fewer.is_empty():
        return 0
    before = ((within(block["start"], more), within(block["end"], more)) for block in fewer.iter_slices(_SLICE))
    return sum(int((until - since).sum()) for since, until in before)
