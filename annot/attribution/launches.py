"""Lookup of the range that owns each launch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import polars as pl

from annot.attribution import column_ops
from annot.attribution.bit_layout import LEFT_OUT, by_time, high_of, low_of, pair
from annot.attribution.crossing_ranges import CrossingRanges
from annot.attribution.dense_ids import Numbers
from annot.attribution.nesting import innermost_around, spans_of
from annot.attribution.process_launches import SharedOwners
from annot.attribution.range_trees import Forest
from annot.attribution.steps import Steps

__all__ = ["Launches"]


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
        self._reached: int | None = None
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
        self.in_order &= not again or self._reached is None or start[0] >= self._reached
        self._reached = max(start[-1], start[-1] if self._reached is None else self._reached)

    def get(self, process: pl.Series, correlation: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
        """Return the owner, the step and the cell of the launch of each id in a process (code). All are Int32.

        The owner code is that of `annot.attribution.bit_layout`. The step is -1 outside any step, the cell of
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
