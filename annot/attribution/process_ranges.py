"""Ranges of processes: ranges that belong to a whole process, such as those of a TensorFlow graph.

TensorFlow's executor may start such a range on one thread, end it on another and launch its kernels on a third.

Candidates are the started ranges of a layer or phase in annot's domain or in a domain named after a phase. The
candidates of a process and domain become ranges of the process if one of them ends on another thread or two of them
cross. They stay outside the trees of the threads:

    parent   the shortest range of the process that contains the range, has the same domain and phase, and whose layer
             is an outer layer of its layer (or the whole model). Of equally short ranges, the last in order.
             Otherwise, the innermost range of a thread that contains it and stands for an epoch, a batch or plain
             code.
    order    (start, longest first, shortest path, id)

Concurrent calls of one layer are siblings, because a layer is not an outer layer of itself.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution import column_ops, process_column_ops
from annot.attribution.dense_ids import Threads
from annot.attribution.nesting import innermost_around, spans_of
from annot.attribution.parsed_labels import TENSORFLOW
from annot.labels import layer_path
from annot.labels.foreign import DOMAINS

__all__ = ["LAYER_PHASES", "are_shared", "overlap", "placed"]

LAYER_PHASES: Final = ("forward", "backward", "recompute", "optimizer", "data")


def are_shared(ranges: pl.DataFrame, labels: pl.DataFrame, threads: Threads) -> pl.Series | None:
    """Return which ranges (by id) belong to a process (Boolean), or None if all belong to threads."""
    if not ranges["started"].any():
        return None
    row = ranges["started"].arg_true()
    candidates = ranges.select("thread", "start", "end", "label", "foreign", "ours")[row]
    parsed = labels.select("domain", "phase")[candidates["label"]]
    fits = parsed["phase"].is_in(LAYER_PHASES) & (candidates["ours"] | parsed["domain"].is_in(list(DOMAINS)))
    process = threads.table["process_code"].gather(candidates["thread"])
    candidates = candidates.with_columns(process.alias("process"), parsed["domain"], row.alias("row")).filter(fits)
    if candidates.is_empty():
        return None
    group = ["process", "domain"]
    crossed = candidates.select(*group, (pl.col("foreign") | _crossing(candidates)).alias("crossed"))
    rows = candidates.join(crossed.filter("crossed").unique(), on=group, how="semi")["row"]
    if rows.is_empty():
        return None
    return pl.Series("shared", [False], pl.Boolean).new_from_index(0, ranges.height).scatter(rows, True)


def _crossing(candidates: pl.DataFrame) -> pl.Series:
    """Return whether each range crosses another range that started on its thread (Boolean)."""
    order = column_ops.order(candidates["thread"], candidates["start"], candidates["end"])
    rows = candidates[order]
    same, none = pl.zeros(rows.height, pl.Int32, eager=True), pl.repeat(False, rows.height, eager=True)
    crossing = column_ops.crossing(rows["thread"], rows["start"], rows["end"], same, none)
    return none.scatter(order.filter(crossing), True)


def placed(shared: pl.DataFrame, thread_ranges: pl.DataFrame, labels: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    """Return the ranges of processes in order, with their parents.

    The column parent (Int32) is a row of the ranges of threads, which are in the order of
    `annot.attribution.column_ops.order`, followed by this table, or -1.
    """
    depth = pl.Series("depth", [len(layer_path.within(layer)) for layer in labels["layer"]], pl.Int64)
    shared = shared.with_columns(depth.gather(shared["label"]))
    # In this order, a parent comes before its children.
    shared = shared.sort("start", "end", "depth", "id", descending=[False, True, False, False]).drop("depth")
    process = threads.table["process_code"].gather(shared["thread"])
    rows = shared.select(process, "start", "end", "label")
    parent = _parents(rows, labels)
    outer = _thread_parents(shared, thread_ranges, labels, threads)
    among = pl.when(parent != column_ops.NONE).then(parent + thread_ranges.height).otherwise(outer)
    return shared.select(pl.exclude("foreign", "started", "ours"), among.cast(pl.Int32).alias("parent"))


class _Keys:
    """Numbers of the layers of processes, by domain and phase, with the next outer layer of each."""

    def __init__(self, labels: pl.DataFrame) -> None:
        self._rows = labels.select("domain", "phase", "layer").rows()
        self._numbers: dict[tuple[int, str, str, str], int] = {}
        self.above: list[int] = []

    def number(self, process: int, label: int) -> int:
        """Return the number of a label (row of `labels`) in a process (code)."""
        domain, phase, layer = self._rows[label]
        number = column_ops.NONE
        for path in [*reversed([*layer_path.above(layer)]), layer]:
            key = (process, domain, phase, path)
            if key not in self._numbers:
                self._numbers[key] = len(self.above)
                self.above.append(number)
            number = self._numbers[key]
        return number


def _parents(rows: pl.DataFrame, labels: pl.DataFrame) -> pl.Series:
    """Return the row of the parent of each range among these ranges (Int32), -1 without a parent."""
    keys = _Keys(labels)
    distinct = rows.select("process_code", "label").unique(maintain_order=True)
    numbers = [keys.number(process, label) for process, label in distinct.iter_rows()]
    distinct = distinct.with_columns(pl.Series("key", numbers, pl.Int32))
    key = rows.join(distinct, on=["process_code", "label"], how="left", maintain_order="left")["key"]
    return process_column_ops.enclosing(rows["start"], rows["end"], key, pl.Series(keys.above, dtype=pl.Int32))


def _thread_parents(
    shared: pl.DataFrame, thread_ranges: pl.DataFrame, labels: pl.DataFrame, threads: Threads
) -> pl.Series:
    """Return the row (Int32) in `thread_ranges` of the innermost loop or plain range around each range, or -1."""
    plain = (labels["phase"] == "other") & ~labels["layered"] & (labels["role"] == "annotation")
    plain &= labels["domain"] != TENSORFLOW
    rows = (plain | labels["loop"]).gather(thread_ranges["label"]).arg_true()
    eligible = thread_ranges.select("thread", "start", "end")[rows]
    parent, _ = column_ops.parents(eligible["thread"], eligible["end"])
    tree = column_ops.Tree(eligible["thread"], eligible["start"], eligible["end"], parent)
    spans = spans_of(eligible)
    processes = threads.table["process_code"].gather(shared["thread"])
    calls = shared.select("start", "end", process=processes).with_row_index("row").sort("start")
    parents = pl.Series("parent", [column_ops.NONE], pl.Int32).new_from_index(0, shared.height)
    for (code,), process_calls in calls.partition_by("process", as_dict=True, maintain_order=True).items():
        inside = [thread for thread in threads.of_process(code) if thread in spans]
        hit = innermost_around(process_calls, tree, eligible, spans, inside)
        has_range = hit != column_ops.NONE
        parents = parents.scatter(
            process_calls["row"].filter(has_range), rows.cast(pl.Int32).gather(hit.filter(has_range))
        )
    return parents


def overlap(tree: pl.DataFrame, thread_range_count: int) -> pl.DataFrame:
    """Return row (Int32) and overlap_ns of the ranges whose children overlap each other in time.

    The ranges of processes come last, after `thread_range_count` rows. Siblings of one thread never overlap.
    """
    if thread_range_count == tree.height:
        return pl.DataFrame(schema={"row": pl.Int32, "overlap_ns": pl.Int64})
    around = tree["parent"].slice(thread_range_count).unique()
    rows = tree.select("start", "end", row="parent").filter(pl.col("row").is_in(around.implode()))
    rows = rows.filter(pl.col("row") != column_ops.NONE)
    reached = pl.col("end").cum_max().shift(1).over("row")
    again = (pl.min_horizontal("end", pl.coalesce(reached, "start")) - pl.col("start")).clip(lower_bound=0)
    rows = rows.sort("row", "start").with_columns(again.alias("overlap_ns"))
    return rows.group_by("row").agg(pl.col("overlap_ns").sum()).filter(pl.col("overlap_ns") > 0).sort("row")
