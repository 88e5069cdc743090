"""The innermost range around a call, on whichever thread it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from annot.correlate import sweep

__all__ = ["innermost_around", "spans_of"]


def spans_of(ranges: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return from when to when each thread (code) has ranges."""
    spans = ranges.group_by("thread").agg(pl.col("start").min(), pl.col("end").max())
    return {thread: (start, end) for thread, start, end in spans.iter_rows()}


def innermost_around(
    calls: pl.DataFrame,
    tree: sweep.Tree,
    ranges: pl.DataFrame,
    spans: Mapping[int, tuple[int, int]],
    threads: Iterable[int],
) -> pl.Series:
    """Return of the ranges of some threads around each call the one that is innermost: began last, ends first.

    Args:
        calls: start, end; in order of start.
        tree: knows which of the ranges are around a call.
        ranges: start and end of each row of the tree.
        spans: what `spans_of` returned.
        threads: codes of the threads, which have ranges.

    Returns:
        The row of the range (Int32), -1: none.
    """
    starts, ends = ranges["start"], ranges["end"]
    best = pl.Series("range", [sweep.NONE], pl.Int32).new_from_index(0, calls.height)
    for thread in threads:
        first, last = spans[thread]
        begin = int(calls["start"].search_sorted(first, "left"))
        part = calls[begin : int(calls["start"].search_sorted(last, "right"))]
        there = pl.Series([thread], dtype=pl.Int32).new_from_index(0, part.height)
        found = tree.owners(there, part["start"], part["end"])
        hit = (found != sweep.NONE).arg_true()
        new, old = found.gather(hit), best.gather(hit + begin)
        known = pl.select(pl.when(old != sweep.NONE).then(old)).to_series()
        later, same = starts.gather(new) > starts.gather(known), starts.gather(new) == starts.gather(known)
        takes = (later | (same & (ends.gather(new) < ends.gather(known)))).fill_null(True)
        best = best.scatter((hit + begin).filter(takes), new.filter(takes))
    return best
