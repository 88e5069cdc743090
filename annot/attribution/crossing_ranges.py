"""GPU time launched inside crossing ranges, which are outside the tree and own nothing.

The set of open crossing ranges is constant between two consecutive starts or ends. A call therefore belongs to a
*cell*: its thread, the interval in which it starts and the interval in which it ends. The number of cells depends on
the crossing ranges only, not on the number of calls.
"""

from __future__ import annotations

import polars as pl

from annot.attribution import column_ops
from annot.attribution.bit_layout import high_of, low_of, pair
from annot.attribution.dense_ids import Numbers

__all__ = ["CrossingRanges"]


class CrossingRanges:
    """GPU time launched inside each crossing range, in addition to the range that owns it.

    `ranges` has thread, start, end and foreign of `annot.attribution.range_trees.Forest.crossing`. Ranges that ended on
    another thread count no launches.
    """

    def __init__(self, ranges: pl.DataFrame) -> None:
        own = ranges.with_row_index("row").filter(~pl.col("foreign")).sort("thread", "start")
        self._height = ranges.height
        self._threads: dict[int, _Bounds] = {}
        for (thread,), thread_ranges in own.partition_by("thread", as_dict=True, maintain_order=True).items():
            before = sum(2 * len(bounds.starts) + 1 for bounds in self._threads.values())
            self._threads[thread] = _Bounds(thread_ranges, before)
        self._cells = Numbers()
        self._sums: column_ops.Sums | None = None

    def cells(self, thread: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series:
        """Return the cell (Int32) of each call, -1 if it starts outside the crossing ranges."""
        cells = pl.Series("cell", [column_ops.NONE], pl.Int32).new_from_index(0, thread.len())
        for code, bounds in self._threads.items():
            mine = (thread == code).arg_true()
            interval = bounds.interval(start.gather(mine))
            inside = (interval != column_ops.NONE).arg_true()
            mine = mine.gather(inside)
            key = pair(interval.gather(inside), bounds.ended(end.gather(mine)))
            cells = cells.scatter(mine, self._cells.of(key))
        return cells

    def add(self, cell: pl.Series, gpu_ns: pl.Series) -> None:
        """Add GPU time (ns) to cells. Cell -1 and null are ignored."""
        if self._cells.known.len():
            self._sums = self._sums or column_ops.Sums(self._cells.known.len())
            self._sums.add(cell.fill_null(column_ops.NONE), gpu_ns)

    def clear(self) -> None:
        """Reset the GPU time. The cells of the calls remain."""
        self._sums = None

    def gpu_ns(self) -> pl.Series:
        """Return the GPU time launched in each range (ns, Int64)."""
        totals = [0] * self._height
        if self._sums is not None:
            cells = pl.DataFrame({"cell": self._cells.known, "gpu_ns": self._sums.result()}).sort("cell")
            for bounds in self._threads.values():
                for row, total in zip(bounds.rows, bounds.totals(cells), strict=True):
                    totals[row] = total
        return pl.Series("gpu_ns", totals, pl.Int64)


class _Bounds:
    """Starts and ends of the crossing ranges (row, start, end, in order of start) of a thread.

    `before` is an offset of the numbers of this thread, so that threads do not share numbers.
    """

    def __init__(self, ranges: pl.DataFrame, before: int) -> None:
        self.rows, self.starts = ranges["row"], ranges["start"]
        self._ranges, self._ends, self._before = ranges, ranges["end"].sort(), before

    def interval(self, instants: pl.Series) -> pl.Series:
        """Return the interval of each instant (Int64), -1 outside the ranges. The number increases with time."""
        starts = self.starts.search_sorted(instants, "right").cast(pl.Int64)
        ends = self.ended(instants)
        inside = starts > ends
        return pl.select(pl.when(inside).then(starts + ends + self._before).otherwise(column_ops.NONE)).to_series()

    def ended(self, instants: pl.Series) -> pl.Series:
        """Return the number of ranges that ended before each instant (Int64)."""
        return self._ends.search_sorted(instants, "left").cast(pl.Int64)

    def totals(self, cells: pl.DataFrame) -> pl.Series:
        """Return the GPU time of the cells inside each range. `cells` is in order of cell."""
        started, ended = high_of(cells["cell"]), low_of(cells["cell"])
        first = started.search_sorted(self.interval(self.starts), "left").cast(pl.Int64)
        last = started.search_sorted(self.interval(self._ranges["end"]), "right").cast(pl.Int64)
        until = pl.concat([pl.Series("gpu_ns", [0], pl.Int64), cells["gpu_ns"].cum_sum()])
        totals = until.gather(last) - until.gather(first)
        reached = pl.concat([pl.Series("cell", [-1], pl.Int64), ended.cum_max()]).gather(last)
        table = pl.DataFrame({"first": first, "last": last, "until": self.ended(self._ranges["end"])})
        for row, (begin, stop, most) in enumerate(table.iter_rows()):
            if reached[row] > most:
                sticks_out = ended.slice(begin, stop - begin) > most
                totals[row] = totals[row] - int(cells["gpu_ns"].slice(begin, stop - begin).filter(sticks_out).sum())
        return totals
