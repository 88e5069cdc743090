"""Ranges that stand outside the tree: they own nothing, and show what was launched inside them."""

from __future__ import annotations

import polars as pl

from annot.correlate import sweep

__all__ = ["LooseRanges"]


class LooseRanges:
    """The device time inside ranges that cross others, on top of whoever owns it.

    Args:
        ranges: thread, start, end, foreign, as `annot.correlate.forest.Forest.loose`. Those that ended on
            another thread have no thread whose launches would be theirs.
    """

    def __init__(self, ranges: pl.DataFrame) -> None:
        self._ranges = ranges.with_row_index("row").filter(~pl.col("foreign"))
        self._height = ranges.height
        self._covered = _covered(self._ranges)
        self._calls: list[pl.DataFrame] = []
        self._table = sweep.LaunchTable()
        self._count = 0
        self._sums: sweep.Sums | None = None

    def put(self, calls: pl.DataFrame) -> None:
        """Note calls: process and thread (Int32), start, end, correlation."""
        if self._ranges.is_empty():
            return
        inside = self._covered.owners(calls["thread"], calls["start"], calls["start"]) != sweep.NONE
        number = self._count - 1 + inside.cum_sum().cast(pl.Int32)
        # Calls elsewhere are put too, because of calls with one id the first counts, wherever it is.
        number = pl.select(pl.when(inside).then(number).otherwise(sweep.NONE).cast(pl.Int32)).to_series()
        self._table.put(calls["process"], calls["correlation"], number, number)
        self._calls.append(calls.filter(inside).select("thread", "start", "end"))
        self._count += self._calls[-1].height

    def add(self, process: pl.Series, correlation: pl.Series, gpu_ns: pl.Series) -> None:
        """Add device time to the calls that started it."""
        if self._count:
            self._sums = self._sums or sweep.Sums(self._count)
            number, _ = self._table.get(process, correlation)
            self._sums.add(number.fill_null(sweep.NONE), gpu_ns)

    def clear(self) -> None:
        """Forget the device time, not the calls."""
        self._sums = None

    def gpu_ns(self) -> pl.Series:
        """Return the device time launched in each range (Int64)."""
        totals = [0] * self._height
        if self._sums is not None:
            calls = pl.concat(self._calls).with_columns(gpu_ns=self._sums.result()).sort("start")
            launched = calls.partition_by("thread", as_dict=True)
            for thread, ranges in self._ranges.partition_by("thread", as_dict=True).items():
                if thread in launched:
                    for row, total in zip(ranges["row"], _contained(ranges, launched[thread]), strict=True):
                        totals[row] = total
        return pl.Series("gpu_ns", totals, pl.Int64)


def _covered(ranges: pl.DataFrame) -> sweep.Tree:
    """The stretches that some of the ranges cover, which do not overlap."""
    ordered = ranges.sort("thread", "start")
    reached = pl.col("end").cum_max().shift(1).over("thread")
    begins = (pl.col("start") > reached).fill_null(True)
    merged = ordered.with_columns(begins.cum_sum().over("thread").alias("stretch"))
    merged = merged.group_by("thread", "stretch", maintain_order=True).agg(pl.col("start").min(), pl.col("end").max())
    top = pl.Series([sweep.NONE], dtype=pl.Int32).new_from_index(0, merged.height)
    return sweep.Tree(merged["thread"], merged["start"], merged["end"], top)


def _contained(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """The device time of the calls that lie in each range; calls are in order of start."""
    starts, ends, gpu = (calls[name] for name in ("start", "end", "gpu_ns"))
    until = pl.concat([pl.Series("gpu_ns", [0], pl.Int64), gpu.cum_sum()])
    first = starts.search_sorted(ranges["start"], "left")
    last = starts.search_sorted(ranges["end"], "right")
    totals = until.gather(last) - until.gather(first)
    reached = pl.concat([pl.Series("end", [-(2**63)], pl.Int64), ends.cum_max()]).gather(last)
    table = pl.DataFrame({"first": first, "last": last, "end": ranges["end"], "row": range(ranges.height)})
    for begin, stop, end, row in table.filter(reached > ranges["end"]).iter_rows():
        sticks_out = ends.slice(begin, max(stop - begin, 0)) > end
        totals[row] = totals[row] - int(gpu.slice(begin, max(stop - begin, 0)).filter(sticks_out).sum())
    return totals
