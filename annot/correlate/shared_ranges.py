"""Ranges that belong to a process and not to a thread of it, as those of a TensorFlow graph.

Any thread of an executor may begin such a range, another one may end it, and its kernels may be launched by a third.
They are the started ranges about a layer or a phase (annot's own, or of a domain that is named after a phase) of a
process in which one of them ended on another thread or two of them cross. They stay out of the trees of the threads:

    the parent of one      is the shortest range of the process (of equally short ones the last in order) that contains
                           it, is of the same domain and phase, and whose layer is above its own: the beginning of its
                           path, or the whole model; else the innermost range of a thread that contains it and is
                           about no layer, as an epoch or a batch
    the order              (start, longest first, shortest path, id)

Calls of one layer at a time stay apart, since none of them has a path above the other's.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot import layer_path
from annot.correlate import sweep, sweep_shared
from annot.correlate.around import innermost_around, spans_of
from annot.correlate.dialects import DOMAINS
from annot.correlate.keys import TENSORFLOW
from annot.correlate.threads import Threads

__all__ = ["LAYER_PHASES", "are_shared", "overlap", "placed"]

LAYER_PHASES: Final = ("forward", "backward", "recompute", "optimizer", "data")


def are_shared(ranges: pl.DataFrame, says: pl.DataFrame, threads: Threads) -> pl.Series | None:
    """Return which ranges are of a process (Boolean); None: none are.

    Args:
        ranges: thread (code), start, end, says, foreign, started, ours, in the order of their ids.
        says: domain and phase of each text.
        threads: the process of each thread.
    """
    if not ranges["started"].any():
        return None
    row = ranges["started"].arg_true()
    candidates = ranges.select("thread", "start", "end", "says", "foreign", "ours")[row]
    said = says.select("domain", "phase")[candidates["says"]]
    fits = said["phase"].is_in(LAYER_PHASES) & (candidates["ours"] | said["domain"].is_in(list(DOMAINS)))
    process = threads.table["process_code"].gather(candidates["thread"])
    candidates = candidates.with_columns(process.alias("process"), said["domain"], row.alias("row")).filter(fits)
    if candidates.is_empty():
        return None
    group = ["process", "domain"]
    crossed = candidates.select(*group, (pl.col("foreign") | _crossing(candidates)).alias("crossed"))
    chosen = candidates.join(crossed.filter("crossed").unique(), on=group, how="semi")["row"]
    if chosen.is_empty():
        return None
    return pl.Series("shared", [False], pl.Boolean).new_from_index(0, ranges.height).scatter(chosen, True)


def _crossing(candidates: pl.DataFrame) -> pl.Series:
    """Whether each range crosses another one that was begun on its thread."""
    order = sweep.order(candidates["thread"], candidates["start"], candidates["end"])
    rows = candidates[order]
    same, none = pl.zeros(rows.height, pl.Int32, eager=True), pl.repeat(False, rows.height, eager=True)
    loose = sweep.crossing(rows["thread"], rows["start"], rows["end"], same, none)
    return none.scatter(order.filter(loose), True)


def placed(shared: pl.DataFrame, trunk: pl.DataFrame, says: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    """Return the ranges of processes in order, with `parent`: a row in `trunk` and, after it, these; Int32, -1: none.

    Args:
        shared: id, thread, start, end, says.
        trunk: the ranges of threads as a tree, in the order of `sweep.order`.
        says: what each text says.
        threads: the process of each thread.
    """
    shared = _in_order(shared, says)
    process = threads.table["process_code"].gather(shared["thread"])
    rows = shared.select(process, "start", "end", "says")
    parent = _parents(rows, says)
    outer = _thread_parents(shared, trunk, says, threads)
    among = pl.when(parent != sweep.NONE).then(parent + trunk.height).otherwise(outer)
    return shared.select(pl.exclude("foreign", "started", "ours"), among.cast(pl.Int32).alias("parent"))


def _in_order(shared: pl.DataFrame, says: pl.DataFrame) -> pl.DataFrame:
    """The ranges in the order in which a parent comes before its children."""
    depth = pl.Series([len(layer_path.within(layer)) for layer in says["layer"]], dtype=pl.Int64)
    ordered = shared.with_columns(depth.gather(shared["says"]).alias("depth"))
    return ordered.sort("start", "end", "depth", "id", descending=[False, True, False, False]).drop("depth")


class _Keys:
    """Numbers what a range says and whose it is, each with the layers above it.

    Args:
        says: domain, layer, phase of each text.
    """

    def __init__(self, says: pl.DataFrame) -> None:
        self._rows = says.select("domain", "phase", "layer").rows()
        self._numbers: dict[tuple[int, str, str, str], int] = {}
        self.above: list[int] = []

    def number(self, process: int, text: int) -> int:
        """Return the number of a text of a process."""
        domain, phase, layer = self._rows[text]
        number = sweep.NONE
        for path in [*reversed([*layer_path.above(layer)]), layer]:
            key = (process, domain, phase, path)
            if key not in self._numbers:
                self._numbers[key] = len(self.above)
                self.above.append(number)
            number = self._numbers[key]
        return number


def _parents(rows: pl.DataFrame, says: pl.DataFrame) -> pl.Series:
    """Return the row of the parent of each range among the others (Int32), -1 where there is none; see above.

    Args:
        rows: process_code, start, end, says of each range, in order.
        says: what the texts say.
    """
    keys = _Keys(says)
    distinct = rows.select("process_code", "says").unique(maintain_order=True)
    numbers = [keys.number(process, text) for process, text in distinct.iter_rows()]
    distinct = distinct.with_columns(pl.Series("key", numbers, pl.Int32))
    key = rows.join(distinct, on=["process_code", "says"], how="left", maintain_order="left")["key"]
    return sweep_shared.enclosing(rows["start"], rows["end"], key, pl.Series(keys.above, dtype=pl.Int32))


def _thread_parents(shared: pl.DataFrame, trunk: pl.DataFrame, says: pl.DataFrame, threads: Threads) -> pl.Series:
    """Return the row in `trunk` (Int32) of the innermost range about no layer around each range; -1: none.

    Args:
        shared: thread, start, end.
        trunk: thread, start, end, says of the ranges of the threads, in the order of `sweep.order`.
        says: layered, phase, role, domain of each text.
        threads: the process of each thread.
    """
    plain = (says["phase"] == "other") & ~says["layered"] & (says["role"] == "annotation")
    plain &= says["domain"] != TENSORFLOW
    rows = (plain | says["loop"]).gather(trunk["says"]).arg_true()
    eligible = trunk.select("thread", "start", "end")[rows]
    parent, _ = sweep.parents(eligible["thread"], eligible["end"])
    tree = sweep.Tree(eligible["thread"], eligible["start"], eligible["end"], parent)
    spans = spans_of(eligible)
    processes = threads.table["process_code"].gather(shared["thread"])
    calls = shared.select("start", "end", process=processes).with_row_index("row").sort("start")
    found = pl.Series("parent", [sweep.NONE], pl.Int32).new_from_index(0, shared.height)
    for (code,), part in calls.partition_by("process", as_dict=True, maintain_order=True).items():
        inside = [thread for thread in threads.of_process(code) if thread in spans]
        hit = innermost_around(part, tree, eligible, spans, inside)
        known = hit != sweep.NONE
        found = found.scatter(part["row"].filter(known), rows.cast(pl.Int32).gather(hit.filter(known)))
    return found


def overlap(tree: pl.DataFrame, trunk: int) -> pl.DataFrame:
    """Return by how much the ranges inside each range overlap: row (Int32) and overlap_ns, where that is not 0.

    Args:
        tree: start, end, parent; the ranges of processes come last.
        trunk: how many come before them.
    """
    around = tree["parent"].slice(trunk).unique()
    rows = tree.select("start", "end", row="parent").filter(pl.col("row").is_in(around.implode()))
    rows = rows.filter(pl.col("row") != sweep.NONE)
    reached = pl.col("end").cum_max().shift(1).over("row")
    again = (pl.min_horizontal("end", pl.coalesce(reached, "start")) - pl.col("start")).clip(lower_bound=0)
    rows = rows.sort("row", "start").with_columns(again.alias("overlap_ns"))
    return rows.group_by("row").agg(pl.col("overlap_ns").sum()).filter(pl.col("overlap_ns") > 0).sort("row")
