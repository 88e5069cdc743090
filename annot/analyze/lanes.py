"""Assignment of overlapping process ranges to lanes."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution.range_trees import Forest

__all__ = ["process_lanes"]

_SCHEMA: Final = {"process": pl.Int64, "lane": pl.Int32, "row": pl.Int32}


def process_lanes(forest: Forest) -> pl.DataFrame:
    """Return a lane and a row for each range of a process, for drawing.

    Two ranges in the same lane either do not overlap, or are nested in the tree as well.

    Args:
        forest: the ranges; process ranges are the last rows of its tree.

    Returns:
        process, lane (the first free one, from 0 in each process) and row (number of enclosing ranges in the lane); in
        the order of the tree.
    """
    shared = forest.tree.slice(forest.thread_range_count)
    process = forest.threads.table["process"].gather(shared["thread"])
    lanes: dict[int, _Lanes] = {}
    found = [
        (code, *lanes.setdefault(code, _Lanes()).place(forest.thread_range_count + number, *times))
        for number, (code, *times) in enumerate(
            zip(process, shared["start"], shared["end"], shared["parent"], strict=True)
        )
    ]
    return pl.DataFrame(found, schema=_SCHEMA, orient="row")


class _Lanes:
    """Open ranges of each lane of a process with their ends, outermost first."""

    def __init__(self) -> None:
        self._open: list[list[tuple[int, int]]] = []
        self._lane: dict[int, int] = {}

    def place(self, row: int, start: int, end: int, parent: int) -> tuple[int, int]:
        """Return lane and row of a range; call it in order of start."""
        lane = self._lane.get(parent)
        if lane is None or self._innermost(lane, start) != parent:
            free = (number for number in range(len(self._open)) if self._innermost(number, start) is None)
            lane = next(free, len(self._open))
        self._open[lane:] = self._open[lane:] or [[]]
        self._open[lane].append((row, end))
        self._lane[row] = lane
        return lane, len(self._open[lane]) - 1

    def _innermost(self, lane: int, start: int) -> int | None:
        """Return the innermost range of a lane that is open at a time."""
        stack = self._open[lane]
        while stack and stack[-1][1] <= start:
            del self._lane[stack.pop()[0]]
        return stack[-1][0] if stack else None
