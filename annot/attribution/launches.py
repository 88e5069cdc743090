"""Lookup of the range that owns each launch.

Several ranges of a process can be open at once. The set of open ranges is constant between two consecutive starts or
ends. Such an interval is a *moment*, and each moment is evaluated once. An open range is *innermost* if no range inside
it is open. A launch belongs to the innermost range that started last on its own thread, otherwise to the one that
started last on any thread. If several ranges are innermost, the result is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import (
    LEFT_OUT,
    Numbers,
    by_time,
    guessed,
    high_of,
    innermost_around,
    low_of,
    pair,
    spans_of,
)
from annot.attribution.ingest import LAYER_PHASES
from annot.attribution.nesting import CrossingRanges
from annot.attribution.range_trees import Forest
from annot.attribution.steps import Steps
from annot.labels.tag import DOMAIN


class SharedOwners:
    """Owners of launches among the ranges of their process."""

    def __init__(self, forest: Forest) -> None:
        self._tree = forest.tree
        self._layers = _lie_in_layers(forest)
        self._groups = [(code, rows, Innermost(ranges)) for code, rows, ranges in _groups(forest)]

    def owners(self, own: pl.Series, process: pl.Series, thread: pl.Series, start: pl.Series) -> pl.Series:
        """Return the owner code of each call (Int32, see `annot.attribution.column_ops`).

        A call stays in `own`, the innermost range of its own thread (row, Int32, -1 outside any), if that range lies in
        a layer, or started after the innermost range of the process. annot's own ranges take precedence over ranges of
        other domains. Process and thread are codes (Int32).
        """
        path = self._tree["path"].gather(column_ops.known(own))
        undecided = ~self._layers.gather(column_ops.known(path)).fill_null(False)
        for code, rows, innermost in self._groups:
            pending = (undecided & (process == code)).arg_true()
            owner, several = innermost.at(thread.gather(pending), start.gather(pending))
            owner = rows.gather(column_ops.known(owner))
            starts = self._tree["start"]
            inside = starts.gather(column_ops.known(own.gather(pending))) > starts.gather(owner)
            takes = (owner.is_not_null() & ~inside.fill_null(False)).arg_true()
            decided = pending.gather(takes)
            own = own.scatter(decided, guessed(owner, several).gather(takes))
            undecided = undecided.scatter(decided, False)
        return own


def _lie_in_layers(forest: Forest) -> pl.Series:
    """Return which nodes are a layer or a phase, or lie inside one (Boolean)."""
    labels = forest.labels
    keys = set(labels["key"].filter(labels["layered"] | labels["phase"].is_in(LAYER_PHASES)))
    inside: list[bool] = []
    for parent, key in zip(forest.nodes.parents, forest.nodes.keys, strict=True):
        inside.append(key in keys or (parent != column_ops.NONE and inside[parent]))
    return pl.Series("inside", inside, pl.Boolean)


def _groups(forest: Forest) -> Iterator[tuple[int, pl.Series, pl.DataFrame]]:
    """Yield code of the process, rows in the tree and ranges, for annot's ranges and then for other domains."""
    shared = forest.tree.select("thread", "start", "end", "parent", "label").with_row_index("row")
    shared = shared.slice(forest.thread_range_count)
    ours = (forest.labels["domain"] == DOMAIN).gather(shared["label"]).alias("ours")
    process = forest.threads.table["process_code"].gather(shared["thread"]).alias("process")
    ranges = shared.with_columns(process, ours).sort("process", ~pl.col("ours"), maintain_order=True)
    for (code, _), group in ranges.partition_by("process", "ours", as_dict=True, maintain_order=True).items():
        rows = group["row"].cast(pl.Int32)
        parent = column_ops.codes(group["parent"].cast(pl.Int64), rows.cast(pl.Int64))
        yield code, rows, group.select("thread", "start", "end", parent.alias("parent"))


class Innermost:
    """The innermost ranges of one process at every moment.

    The ranges have thread (Int32), start, end (Int64, inclusive) and parent (row in this table, -1 at the top) in order
    of start. A parent comes before its children.
    """

    def __init__(self, ranges: pl.DataFrame) -> None:
        self._starts, self._ends = ranges["start"], ranges["end"].sort()
        self._threads = ranges["thread"].unique(maintain_order=True).cast(pl.Int64)
        thread = column_ops.codes(ranges["thread"].cast(pl.Int64), self._threads)
        parent = ranges["parent"].cast(pl.Int32)
        self._count, changes = column_ops.innermost(ranges["start"], ranges["end"], thread, parent)
        self._changes = changes.sort("moment", maintain_order=True)

    def at(self, thread: pl.Series, instant: pl.Series) -> tuple[pl.Series, pl.Series]:
        """Return the range (row, Int32, or -1) of each call, and whether several ranges were innermost (Boolean)."""
        moment = self._starts.search_sorted(instant, "right").cast(pl.Int64)
        moment += self._ends.search_sorted(instant, "left").cast(pl.Int64)
        calls = pl.DataFrame({"thread": column_ops.codes(thread.cast(pl.Int64), self._threads), "moment": moment})
        calls = calls.with_row_index("call").sort("moment")
        own = self._joined(calls)
        last = self._joined(calls.with_columns(thread=pl.lit(column_ops.ANY, pl.Int32)))
        row = pl.select(pl.when(own != column_ops.NONE).then(own).otherwise(last)).to_series()
        return row.gather(calls["call"].arg_sort()).alias("range"), (self._count.gather(moment) > 1).alias("several")

    def _joined(self, calls: pl.DataFrame) -> pl.Series:
        joined = calls.join_asof(self._changes, on="moment", by="thread", strategy="backward", check_sortedness=False)
        return joined["range"].fill_null(column_ops.NONE)


class Launches:
    """Owner, step and cell of each launch of a run. If steps are selected, launches in other steps are left out."""

    def __init__(self, forest: Forest, steps: Steps, blocks: Iterable[pl.DataFrame]) -> None:
        self._forest, self.steps = forest, steps
        self.tree = forest.of_threads()
        self._shared = SharedOwners(forest) if forest.thread_range_count < forest.tree.height else None
        self._table = column_ops.LaunchTable()
        self._processes = Numbers()
        self._processes.of(forest.threads.table.sort("process_code")["process"])
        self._step_cells = Numbers()
        self._reached = -math.inf
        self.in_order = True
        """Whether the earliest of the calls with one correlation id was added first."""
        self.crossing = CrossingRanges(forest.crossing)
        """GPU time launched inside the crossing ranges."""
        for block in blocks:
            self._put(block)

    def _put(self, calls: pl.DataFrame) -> None:
        """Add API calls (rows of `annot.profile.LAUNCHES`) and find their ranges."""
        calls = calls.filter(pl.col("correlation").is_not_null() & pl.col("start").is_not_null())
        if calls.is_empty():
            return
        if not calls["start"].is_sorted():
            calls = calls.sort("start", maintain_order=True)
        process = self.process_codes(calls["process"])
        thread = self._forest.threads.codes(calls["thread"])
        start, end = calls["start"], calls.select(pl.max_horizontal("start", "end")).to_series()
        owner = self.tree.owners(thread, start, end)
        if self._shared is not None:
            owner = self._shared.owners(owner, process, thread, start)
        owner = self._attribute_by_time(owner, process, thread, start, end)
        step = self.steps.at(process, start)
        if self.steps.choice is not None:
            inside = self.steps.selected(step)
            owner = pl.select(pl.when(inside).then(owner).otherwise(LEFT_OUT).cast(pl.Int32)).to_series()
        cell = self.crossing.cells(thread, start, end)
        again = self._table.put(process, calls["correlation"], owner, self._step_cells.of(pair(step, cell + 1)))
        self.in_order &= not again or start[0] >= self._reached
        self._reached = max(start[-1], self._reached)

    def get(self, process: pl.Series, correlation: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
        """Return the owner, the step and the cell of the launch of each id in a process (code). All are Int32.

        The owner code is that of `annot.attribution.column_ops`. The step is -1 outside any step, the cell of
        `crossing` is -1 outside any crossing range. All are null for an unknown launch.
        """
        owner, number = self._table.get(process, correlation)
        step, cell = high_of(self._step_cells.known), low_of(self._step_cells.known) - 1
        return owner, step.cast(pl.Int32).gather(number), cell.cast(pl.Int32).gather(number)

    def process_codes(self, processes: pl.Series) -> pl.Series:
        """Return the code of each process (Int32), -1 for null."""
        return self._processes.of(processes)

    def processes(self, codes: pl.Series) -> pl.Series:
        """Return the process of each code, null for -1."""
        return self._processes.known.gather(column_ops.known(codes))

    def _attribute_by_time(
        self, owner: pl.Series, process: pl.Series, thread: pl.Series, start: pl.Series, end: pl.Series
    ) -> pl.Series:
        """Attribute calls outside any range of their own thread to the innermost range of another thread."""
        lost = (owner == column_ops.NONE).arg_true()
        calls = pl.DataFrame({"row": lost, "process": process.gather(lost), "thread": thread.gather(lost)})
        calls = calls.with_columns(start.gather(lost).alias("start"), end.gather(lost).alias("end"))
        for (code,), process_calls in calls.partition_by("process", as_dict=True).items():
            threads = [thread for thread in self._forest.threads.of_process(code) if thread in self._spans]
            innermost = innermost_around(process_calls, self.tree, self._forest.tree, self._spans, threads)
            hit = innermost != column_ops.NONE
            owner = owner.scatter(process_calls["row"].filter(hit), by_time(innermost).filter(hit))
        return owner

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """First start and last end of the ranges of each thread in the tree."""
        return spans_of(self._forest.tree.head(self._forest.thread_range_count))
