"""Search for the innermost range around a call on several threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from annot.attribution import column_ops

__all__ = ["innermost_around", "spans_of"]


def spans_of(ranges: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return the first start and the last end (ns) of the ranges of each thread (code)."""
    spans = ranges.group_by("thread").agg(pl.col("start").min(), pl.col("end").max())
    return {thread: (start, end) for thread, start, end in spans.iter_rows()}


def innermost_around(
    calls: pl.DataFrame,
    tree: column_ops.Tree,
    ranges: pl.DataFrame,
    spans: Mapping[int, tuple[int, int]],
    threads: Iterable[int],
) -> pl.Series:
    """Return the innermost range of some threads around each call: the last to start, then the first to end.

    Args:
        calls: start, end (ns), in order of start.
        tree: lookup of the ranges around a call.
        ranges: start and end of each row of the tree.
        spans: the result of `spans_of`.
        threads: codes of threads with ranges.

    Returns:
        The row of the range (Int32), -1 outside any range.
    """
    starts, ends = ranges["start"], ranges["end"]
    best = pl.Series("range", [column_ops.NONE], pl.Int32).new_from_index(0, calls.height)
    for thread in threads:
        first, last = spans[thread]
        begin = int(calls["start"].search_sorted(first, "left"))
        part = calls[begin : int(calls["start"].search_sorted(last, "right"))]
        there = pl.Series([thread], dtype=pl.Int32).new_from_index(0, part.height)
        found = tree.owners(there, part["start"], part["end"])
        hit = (found != column_ops.NONE).arg_true()
        new, old = found.gather(hit), best.gather(hit + begin)
        known = pl.select(pl.when(old != column_ops.NONE).then(old)).to_series()
        later, same = starts.gather(new) > starts.gather(known), starts.gather(new) == starts.gather(known)
        takes = (later | (same & (ends.gather(new) < ends.gather(known)))).fill_null(True)
        best = best.scatter((hit + begin).filter(takes), new.filter(takes))
    return best
