"""Loops over ranges of processes, with a Python fallback.

This file is the reference implementation of `annot/native/tables/process_ranges.c`. The conventions are those of
`annot.attribution.column_ops`.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import Final

import polars as pl

from annot.attribution.column_ops import NONE
from annot.native import tables

__all__ = ["ANY", "enclosing", "innermost"]

ANY: Final = -1
"""Thread code that stands for any thread."""


def enclosing(start: pl.Series, end: pl.Series, key: pl.Series, above: pl.Series) -> pl.Series:
    """Return the row of the shortest range around each range whose key is above its own (Int32), -1 without one.

    Of equally short ranges, the last one is returned. A range comes after the ranges around it. `key` is a row of
    `above` (Int32), which has the next key above each key, smaller than the key itself, -1 at the top.
    """
    native = tables()
    if native is not None:
        return pl.Series(native.enclosing(start, end, key, above)).alias("parent")
    starts, ends, higher = start.to_list(), end.to_list(), above.to_list()
    running: defaultdict[int, list[int]] = defaultdict(list)
    found = []
    for row, of_key in enumerate(key.to_list()):
        best, around = NONE, higher[of_key]
        while around != NONE:
            others = running[around]
            others[:] = [other for other in others if ends[other] >= starts[row]]
            for other in others:
                # Of equally short ranges, the last one is innermost.
                if ends[other] >= ends[row] and (
                    best == NONE or (ends[other] - starts[other], -other) < (ends[best] - starts[best], -best)
                ):
                    best = other
            around = higher[around]
        found.append(best)
        running[of_key].append(row)
    return pl.Series("parent", found, pl.Int32)


def innermost(start: pl.Series, end: pl.Series, thread: pl.Series, parent: pl.Series) -> tuple[pl.Series, pl.DataFrame]:
    """Return the innermost ranges at each moment. An open range is innermost if no range inside it is open.

    A moment is the time between two consecutive starts or ends. Moment 0 is before the first start. Start and end of a
    range are inclusive. `start` ascends, thread codes start at 0, and the parent of a row is smaller than the row, -1
    at the top.

    The result is the number of innermost ranges at each moment (Int32), and a table of changes: from moment (Int64) on,
    range (Int32) is the innermost range of thread (Int32, or `ANY`) that started last, -1 without one. Moments ascend.
    """
    by_end = pl.DataFrame({"end": end, "row": pl.int_range(len(end), dtype=pl.Int32, eager=True)})
    by_end = by_end.sort("end", "row", descending=[False, True])
    native = tables()
    if native is not None:
        counts, *changes = map(pl.Series, native.innermost(start, end, thread, parent, by_end["row"]))
        return counts.alias("count"), pl.DataFrame(dict(zip(("thread", "moment", "range"), changes, strict=True)))
    moments = _Moments(thread.to_list(), parent.to_list())
    moments.run(start.to_list(), end.to_list(), by_end["row"].to_list())
    schema = {"thread": pl.Int32, "moment": pl.Int64, "range": pl.Int32}
    changes_ = pl.DataFrame(moments.changes, schema=schema, orient="row")
    return pl.Series("count", moments.counts, pl.Int32), changes_


class _Moments:
    """Scan of all starts and ends that records changes of the innermost ranges."""

    def __init__(self, thread: list[int], parent: list[int]) -> None:
        self._thread, self._parent = thread, parent
        self._innermost = [False] * len(thread)
        self._inside = [0] * len(thread)
        self._candidates: defaultdict[int, list[int]] = defaultdict(list)
        self._best: dict[int, int] = {}
        self.counts = [0]
        self.changes: list[tuple[int, int, int]] = []

    def run(self, starts: list[int], ends: list[int], by_end: list[int]) -> None:
        """Process all starts and ends in order of time."""
        begun = 0
        for row in by_end:
            while begun < len(starts) and starts[begun] <= ends[row]:
                self._begin(begun)
                begun += 1
            self._end(row)

    def _begin(self, row: int) -> None:
        above = self._parent[row]
        count = self.counts[-1] + 1
        if above != NONE:
            count -= self._innermost[above]
            self._innermost[above] = False
            self._inside[above] += 1
        self._now_innermost(row)
        self._note(count, row, above)

    def _end(self, row: int) -> None:
        above = self._parent[row]
        count = self.counts[-1] - self._innermost[row]
        self._innermost[row] = False
        if above != NONE:
            self._inside[above] -= 1
            if not self._inside[above]:
                self._now_innermost(above)
                count += 1
        self._note(count, row, above)

    def _now_innermost(self, row: int) -> None:
        self._innermost[row] = True
        heappush(self._candidates[self._thread[row]], -row)
        heappush(self._candidates[ANY], -row)

    def _note(self, count: int, row: int, above: int) -> None:
        """Record the number of innermost ranges, and changes of the one that started last."""
        moment = len(self.counts)
        self.counts.append(count)
        self._change(moment, ANY)
        thread = self._thread[row]
        self._change(moment, thread)
        if above != NONE and self._thread[above] != thread:
            self._change(moment, self._thread[above])

    def _change(self, moment: int, thread: int) -> None:
        candidates, innermost = self._candidates[thread], self._innermost
        while candidates and not innermost[-candidates[0]]:
            heappop(candidates)
        best = -candidates[0] if candidates else NONE
        if self._best.get(thread, NONE) != best:
            self._best[thread] = best
            self.changes.append((thread, moment, best))
