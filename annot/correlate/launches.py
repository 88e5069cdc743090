"""API calls and the ranges that they were made in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.around import innermost_around, spans_of
from annot.correlate.forest import Forest
from annot.correlate.loose import LooseRanges
from annot.correlate.numbers import Numbers
from annot.correlate.shared_launches import SharedOwners
from annot.correlate.steps import Steps

__all__ = ["BY_TIME", "LEFT_OUT", "Launches", "read_launches"]

BY_TIME: Final = 2**30
"""Added to the row of a range that was found by time on another thread than the call's."""

LEFT_OUT: Final = -2
"""In the place of a range: the call belongs to a step that was not asked for."""

_FIRST: Final = 2**32
"""By so much a step is multiplied when it is packed with a cell."""


class Launches:
    """Which range each launch belongs to.

    Args:
        forest: the ranges.
        steps: the steps of the run; where some were asked for, launches in others are left out.
    """

    def __init__(self, forest: Forest, steps: Steps) -> None:
        self._forest, self.steps = forest, steps
        self.tree = forest.of_threads()
        self._shared = SharedOwners(forest) if forest.trunk < forest.tree.height else None
        self._table = sweep.LaunchTable()
        self._processes = Numbers()
        self._processes.of(forest.threads.table.sort("process_code")["process"])
        self._moments = Numbers()
        self._reached: int | None = None
        self.in_order = True
        """Whether of calls with the same id the earliest was put first."""
        self.loose = LooseRanges(forest.loose)
        """What was launched inside ranges outside the tree."""

    def put(self, calls: pl.DataFrame) -> None:
        """Find the ranges of API calls, as `annot.profile.LAUNCHES`."""
        calls = calls.filter(pl.col("correlation").is_not_null() & pl.col("start").is_not_null())
        if calls.is_empty():
            return
        if not calls["start"].is_sorted():
            calls = calls.sort("start", maintain_order=True)
        process = self.process_codes(calls["process"])
        thread = self._forest.threads.codes(calls["thread"])
        start, end = calls["start"], calls.select(pl.max_horizontal("start", "end")).to_series()
        value = self.tree.owners(thread, start, end)
        if self._shared is not None:
            value = self._shared.owners(value, process, thread, start)
        value = self._by_time(value, process, thread, start, end)
        step = self.steps.at(process, start)
        if self.steps.choice is not None:
            inside = self.steps.wanted(step)
            value = pl.select(pl.when(inside).then(value).otherwise(LEFT_OUT).cast(pl.Int32)).to_series()
        moment = self._moments.of(step.cast(pl.Int64) * _FIRST + self.loose.cells(thread, start, end))
        again = self._table.put(process, calls["correlation"], value, moment)
        self.in_order &= not again or self._reached is None or start[0] >= self._reached
        self._reached = max(start[-1], start[-1] if self._reached is None else self._reached)

    def get(self, process: pl.Series, correlation: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
        """Return of each id (code of the process, Int32, and correlation id) where its launch was.

        Returns:
            Row of the range (Int32; -1: none, null: no such call; see `BY_TIME`, `LEFT_OUT` and
            `annot.correlate.shared_launches.GUESSED`), step (-1: in none) and cell of `loose` (Int32, null: no such
            call).
        """
        value, moment = self._table.get(process, correlation)
        cell = (self._moments.known + 1) % _FIRST - 1
        step = (self._moments.known - cell) // _FIRST
        return value, step.cast(pl.Int32).gather(moment), cell.cast(pl.Int32).gather(moment)

    def process_codes(self, processes: pl.Series) -> pl.Series:
        """Return a small number (Int32) for each process; -1 for null."""
        return self._processes.of(processes)

    def _by_time(
        self, value: pl.Series, process: pl.Series, thread: pl.Series, start: pl.Series, end: pl.Series
    ) -> pl.Series:
        """Give calls in no range of their own thread the range of another that began last before them."""
        lost = (value == sweep.NONE).arg_true()
        calls = pl.DataFrame({"row": lost, "process": process.gather(lost), "thread": thread.gather(lost)})
        calls = calls.with_columns(start.gather(lost).alias("start"), end.gather(lost).alias("end"))
        for (code,), part in calls.partition_by("process", as_dict=True).items():
            threads = [thread for thread in self._forest.threads.of_process(code) if thread in self._spans]
            found = innermost_around(part, self.tree, self._forest.tree, self._spans, threads)
            hit = found != sweep.NONE
            value = value.scatter(part["row"].filter(hit), (found + BY_TIME).filter(hit))
        return value

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """From when to when each thread has ranges in the tree."""
        return spans_of(self._forest.tree.head(self._forest.trunk))


def read_launches(blocks: Iterator[pl.DataFrame], forest: Forest, steps: Steps) -> Launches:
    """Return where the launches of a whole run belong."""
    launches = Launches(forest, steps)
    for block in blocks:
        launches.put(block)
    return launches
