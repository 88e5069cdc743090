"""Nesting of the ranges of a thread: the definition of parents and owners for all of annot.

The ranges of a thread are ordered by (start, longest first, id).

    parent of a range    the last range before it in that order that ends no earlier
    owner of a launch    the last range in that order that contains the launch; start and end are inclusive

Pushed ranges of one domain nest by construction. Started ranges, and pushed ranges of different domains, may cross: one
starts inside the other and ends after it. One of the two is then a *crossing range*: it stays outside the tree, owns
nothing, and only its duration and the GPU time launched inside it count. Pushed ranges take precedence over started
ranges, then annot's ranges over those of other domains, then earlier ranges over later ones. A range that crosses only
crossing ranges stays in the tree. A range that ended on another thread is a crossing range, unless it belongs to its
process (see `annot.attribution.process_ranges`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from annot.attribution import column_ops

__all__ = ["in_order", "innermost_around", "nest", "spans_of"]


def nest(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tree of the ranges of threads, and the ranges that cross others or end on another thread.

    The column parent of the tree is a row of this table, -1 at the top (Int32). A parent comes before its children.
    The ranges have thread (Int32), start, end (ns, Int64), foreign (ended on another thread), started (not pushed) and
    ours (in annot's domain). Those of a thread with the same start and end are ordered by id. No end is null or before
    the start. Further columns are kept.
    """
    given = [ranges]
    del ranges  # may have tens of millions of rows; the caller keeps no reference either
    rows = in_order(given.pop())
    weight = rows.select((2 * (~pl.col("started")).cast(pl.Int32) + pl.col("ours").cast(pl.Int32)).alias("weight"))
    columns = (rows["thread"], rows["start"], rows["end"], weight.to_series(), rows["foreign"])
    is_crossing = column_ops.crossing(*columns)
    del columns, weight
    crossing = rows.filter(is_crossing).drop("started", "ours")
    tree = rows.drop("started", "ours", "foreign")
    del rows
    if crossing.height:
        nested = ~is_crossing
        tree = pl.DataFrame([tree.drop_in_place(name).filter(nested) for name in tree.columns])
    parent, _ = column_ops.parents(tree["thread"], tree["end"])
    return tree.with_columns(parent.alias("parent")), crossing


def in_order(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges by thread, start, longest first and row, in one piece of memory per column.

    Each column is dropped once it is copied.
    """
    order = column_ops.order(ranges["thread"], ranges["start"], ranges["end"])
    if order.is_sorted() and max(ranges.n_chunks("all"), default=1) == 1:
        return ranges
    rows = ranges.clone()
    del ranges
    return pl.DataFrame([rows.drop_in_place(name).gather(order) for name in rows.columns])


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
    """Return the row (Int32) of the innermost range of some threads around each call, -1 outside any range.

    The innermost range is the last one to start, then the first one to end. The calls have start and end (ns), in order
    of start; `ranges` has start and end of each row of the tree; `spans` is the result of `spans_of`.
    """
    starts, ends = ranges["start"], ranges["end"]
    best = pl.Series("range", [column_ops.NONE], pl.Int32).new_from_index(0, calls.height)
    for thread in threads:
        first, last = spans[thread]
        begin = int(calls["start"].search_sorted(first, "left"))
        covered_calls = calls[begin : int(calls["start"].search_sorted(last, "right"))]
        there = pl.Series([thread], dtype=pl.Int32).new_from_index(0, covered_calls.height)
        owners = tree.owners(there, covered_calls["start"], covered_calls["end"])
        hit = (owners != column_ops.NONE).arg_true()
        new, old = owners.gather(hit), best.gather(hit + begin)
        current = column_ops.known(old)
        later, same = starts.gather(new) > starts.gather(current), starts.gather(new) == starts.gather(current)
        takes = (later | (same & (ends.gather(new) < ends.gather(current)))).fill_null(True)
        best = best.scatter((hit + begin).filter(takes), new.filter(takes))
    return best
