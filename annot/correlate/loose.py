"""Ranges that stand outside the tree: they own nothing, and show what was launched inside them.

Between two neighbouring starts and ends of such ranges all instants are alike. So a call counts to a *cell*: its
thread, and between which of them it starts and ends. There are few cells, however many calls there are.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.numbers import Numbers

__all__ = ["LooseRanges"]

_FIRST: Final = 2**31
"""By so much the first of two packed numbers is multiplied."""


class LooseRanges:
    """The device time inside ranges that cross others, on top of whoever owns it.

    Args:
        ranges: thread, start, end, foreign, as `annot.correlate.forest.Forest.loose`. Those that ended on
            another thread have no thread whose launches would be theirs.
    """

    def __init__(self, ranges: pl.DataFrame) -> None:
        own = ranges.with_row_index("row").filter(~pl.col("foreign")).sort("thread", "start")
        self._height = ranges.height
        self._threads: dict[int, _Bounds] = {}
        for (thread,), part in own.partition_by("thread", as_dict=True, maintain_order=True).items():
            before = sum(2 * len(bounds.starts) + 1 for bounds in self._threads.values())
            self._threads[thread] = _Bounds(part, before)
        self._cells = Numbers()
        self._sums: sweep.Sums | None = None

    def cells(self, thread: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series:
        """Return the cell (Int32) of each call, -1 if it started in none of the ranges."""
        cells = pl.Series("cell", [sweep.NONE], pl.Int32).new_from_index(0, thread.len())
        for code, bounds in self._threads.items():
            mine = (thread == code).arg_true()
            begun = bounds.begun(start.gather(mine))
            inside = (begun != sweep.NONE).arg_true()
            mine = mine.gather(inside)
            packed = begun.gather(inside) * _FIRST + bounds.ended(end.gather(mine))
            cells = cells.scatter(mine, self._cells.of(packed))
        return cells

    def add(self, cell: pl.Series, gpu_ns: pl.Series) -> None:
        """Add device time to the cells of the calls that started it; -1 and null are none."""
        if self._cells.known.len():
            self._sums = self._sums or sweep.Sums(self._cells.known.len())
            self._sums.add(cell.fill_null(sweep.NONE), gpu_ns)

    def clear(self) -> None:
        """Forget the device time, not the calls."""
        self._sums = None

    def gpu_ns(self) -> pl.Series:
        """Return the device time launched in each range (Int64)."""
        totals = [0] * self._height
        if self._sums is not None:
            cells = pl.DataFrame({"cell": self._cells.known, "gpu_ns": self._sums.result()}).sort("cell")
            for bounds in self._threads.values():
                for row, total in zip(bounds.rows, bounds.totals(cells), strict=True):
                    totals[row] = total
        return pl.Series("gpu_ns", totals, pl.Int64)


class _Bounds:
    """Where the ranges of a thread start and end.

    Args:
        ranges: row, start, end, in order of start.
        before: a number that all numbers of this thread are above.
    """

    def __init__(self, ranges: pl.DataFrame, before: int) -> None:
        self.rows, self.starts = ranges["row"], ranges["start"]
        self._ranges, self._ends, self._before = ranges, ranges["end"].sort(), before

    def begun(self, instants: pl.Series) -> pl.Series:
        """Return a number (Int64) that grows with the instant, at every start and after every end; -1 in no range."""
        starts = self.starts.search_sorted(instants, "right").cast(pl.Int64)
        ends = self.ended(instants)
        inside = starts > ends
        return pl.select(pl.when(inside).then(starts + ends + self._before).otherwise(sweep.NONE)).to_series()

    def ended(self, instants: pl.Series) -> pl.Series:
        """Return how many ranges ended before each instant (Int64)."""
        return self._ends.search_sorted(instants, "left").cast(pl.Int64)

    def totals(self, cells: pl.DataFrame) -> pl.Series:
        """Return the sum over the cells that lie in each range; cells are in order."""
        begun, ended = cells["cell"] // _FIRST, cells["cell"] % _FIRST
        first = begun.search_sorted(self.begun(self.starts), "left").cast(pl.Int64)
        last = begun.search_sorted(self.begun(self._ranges["end"]), "right").cast(pl.Int64)
        until = pl.concat([pl.Series("gpu_ns", [0], pl.Int64), cells["gpu_ns"].cum_sum()])
        totals = until.gather(last) - until.gather(first)
        reached = pl.concat([pl.Series("cell", [-1], pl.Int64), ended.cum_max()]).gather(last)
        table = pl.DataFrame({"first": first, "last": last, "until": self.ended(self._ranges["end"])})
        for row, (begin, stop, most) in enumerate(table.iter_rows()):
            if reached[row] > most:
                sticks_out = ended.slice(begin, stop - begin) > most
                totals[row] = totals[row] - int(cells["gpu_ns"].slice(begin, stop - begin).filter(sticks_out).sum())
        return totals
