"""Places for the ranges of processes, which go on at the same time."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.correlate.forest import Forest

__all__ = ["process_lanes"]

_SCHEMA: Final = {"process": pl.Int64, "lane": pl.Int32, "row": pl.Int32}


def process_lanes(forest: Forest) -> pl.DataFrame:
    """Return where each range of a process may be drawn so that it lies in its parent and beside all others.

    Two ranges in one lane of a process are apart, or one is around the other in the tree too.

    Args:
        forest: the ranges; those of processes are the last rows of its tree.

    Returns:
        process, lane (from 0 in each process, the first that is free) and row (how many ranges are around it in its
        lane); in the order of the tree.
    """
    shared = forest.tree.slice(forest.trunk)
    process = forest.threads.table["process"].gather(shared["thread"])
    lanes: dict[int, _Lanes] = {}
    found = [
        (code, *lanes.setdefault(code, _Lanes()).place(forest.trunk + number, *times))
        for number, (code, *times) in enumerate(
            zip(process, shared["start"], shared["end"], shared["parent"], strict=True)
        )
    ]
    return pl.DataFrame(found, schema=_SCHEMA, orient="row")


class _Lanes:
    """What is open in each lane of a process: ranges, each with its end, from the outermost on."""

    def __init__(self) -> None:
        self._open: list[list[tuple[int, int]]] = []
        self._lane: dict[int, int] = {}

    def place(self, row: int, start: int, end: int, parent: int) -> tuple[int, int]:
        """Return lane and row of a range that begins after those that were placed before."""
        lane = self._lane.get(parent)
        if lane is None or self._innermost(lane, start) != parent:
            free = (number for number in range(len(self._open)) if self._innermost(number, start) is None)
            lane = next(free, len(self._open))
        self._open[lane:] = self._open[lane:] or [[]]
        self._open[lane].append((row, end))
        self._lane[row] = lane
        return lane, len(self._open[lane]) - 1

    def _innermost(self, lane: int, start: int) -> int | None:
        """Return the innermost range of a lane that goes on after an instant."""
        stack = self._open[lane]
        while stack and stack[-1][1] <= start:
            del self._lane[stack.pop()[0]]
        return stack[-1][0] if stack else None
