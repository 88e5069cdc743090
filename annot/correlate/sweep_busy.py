"""How long devices were busy with what lies in a layer: in C where it was built, else here.

As `annot.correlate.sweep`, whose conventions hold: this file is the reference of `annot/native/sweep_busy.c`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from annot.correlate.nodes import Nodes
from annot.correlate.sweep import NONE
from annot.native import tables

__all__ = ["Busy"]

_RESULT: Final = {
    "key": pl.Int32, "device": pl.Int32, "busy_ns": pl.Int64, "first_ns": pl.Int64, "last_ns": pl.Int64,
}  # fmt: skip


class Busy:
    """How long each device was busy with what belongs to a key, however many streams worked at once.

    Args:
        node_parent, node_key: Int32, of each node, as `annot.correlate.sweep.paths` returns them.
    """

    def __init__(self, node_parent: pl.Series, node_key: pl.Series) -> None:
        native = tables()
        keys = max(node_key.to_list(), default=NONE) + 1
        self._native: Any = native and native.Busy(node_parent, node_key, keys)
        self._nodes = None if self._native is not None else Nodes.of(node_parent, node_key)
        self._blocks: list[pl.DataFrame] = []
        self._last: int | None = None

    def add(self, node: pl.Series, device: pl.Series, start: pl.Series, end: pl.Series) -> bool:
        """Add work (Int32, Int32, Int64, Int64; node -1 is left out) to every key on the way up from its node.

        Returns:
            Whether the starts ascend over all that was ever added; if not, the result is worth nothing.
        """
        if self._native is not None:
            return bool(self._native.add(node, device, start, end))
        block = pl.DataFrame({"node": node, "device": device, "start": start, "end": end})
        block = block.filter(pl.col("node") != NONE)
        if block.is_empty():
            return True
        starts = block["start"]
        sorted_ = starts.is_sorted() and (self._last is None or starts[0] >= self._last)
        self._last = starts[-1]
        self._blocks.append(block)
        return sorted_

    def result(self) -> pl.DataFrame:
        """Return key, device (Int32), busy_ns, first_ns and last_ns (Int64): a row per pair that had work."""
        if self._native is not None:
            return pl.DataFrame(self._native.result())
        rows: list[tuple[int, ...]] = []
        if self._nodes is not None and self._blocks:
            topmost = self._nodes.outermost(self._nodes.keys)
            for (device,), work in pl.concat(self._blocks).partition_by("device", as_dict=True).items():
                rows += [(key, device, *times) for key, *times in _of_device(self._nodes, topmost, work)]
        return pl.DataFrame(rows, schema=_RESULT, orient="row").sort("key", "device")


class _Union:
    """Instants that are covered by intervals: their number, the first and the last."""

    def __init__(self) -> None:
        # The latest come first, and times are below 0: what lies above in a tree mostly began earlier, and is appended.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.ns = 0
        self.first, self.last = 1 << 63, -1 << 63

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, start: int, end: int) -> None:
        self.first, self.last = min(self.first, start), max(self.last, end)
        if end > start:
            self._cover(-end, -start)

    def _cover(self, begin: int, end: int) -> None:
        low, high = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if low < high:  # those that it touches become one with it
            begin, end = min(begin, self._begins[low]), max(end, self._ends[high - 1])
        self.ns += end - begin - sum(self._ends[low:high]) + sum(self._begins[low:high])
        self._begins[low:high], self._ends[low:high] = [begin], [end]

    def take(self, other: _Union) -> None:
        """Cover what another one does, too."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        for begin, end in zip(other._begins, other._ends, strict=True):
            self._cover(begin, end)


def _of_device(nodes: Nodes, topmost: list[bool], work: pl.DataFrame) -> Iterator[tuple[int, int, int, int]]:
    """Yield key, busy_ns, first_ns and last_ns of what one device did.

    From the last node up each gives what it has to its parent, the shorter list to the longer one, so that each
    interval is moved few times however deep the nodes lie. Keys with one topmost node have what that has; those with
    several, what they have together.
    """
    lone = Counter(key for key, top in zip(nodes.keys, topmost, strict=True) if top)
    unions: dict[int, _Union] = {}
    several: dict[int, _Union] = {}
    for node, start, end in work.select("node", "start", "end").iter_rows():
        unions.setdefault(node, _Union()).add(start, end)
    for node in range(len(nodes) - 1, NONE, -1):
        union = unions.pop(node, None)
        if union is None:
            continue
        key, parent = nodes.keys[node], nodes.parents[node]
        if topmost[node] and lone[key] == 1:
            yield key, union.ns, union.first, union.last
        elif topmost[node]:
            several.setdefault(key, _Union()).take(union)
        if parent != NONE:
            shorter, longer = sorted((union, unions.get(parent, _Union())), key=len)
            longer.take(shorter)
            unions[parent] = longer
    for key, union in several.items():
        yield key, union.ns, union.first, union.last
