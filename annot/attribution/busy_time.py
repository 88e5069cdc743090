"""Busy time of devices per layer, with a Python fallback.

This file is the reference implementation of `annot/native/tables/busy_time.c`. The conventions are those of
`annot.attribution.column_ops`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from annot.attribution.column_ops import NONE, one_chunk
from annot.attribution.layer_chains import Nodes
from annot.native import tables

__all__ = ["Busy"]

_RESULT: Final = {
    "key": pl.Int32, "device": pl.Int32, "busy_ns": pl.Int64, "first_ns": pl.Int64, "last_ns": pl.Int64,
}  # fmt: skip


class Busy:
    """Busy time of each device per key, from the parent and key (Int32) of each node. Concurrent streams count once."""

    def __init__(self, node_parent: pl.Series, node_key: pl.Series) -> None:
        native = tables()
        keys = max(node_key.to_list(), default=NONE) + 1
        self._native: Any = native and native.Busy(*one_chunk(node_parent, node_key), keys)
        self._nodes = None if self._native is not None else Nodes.of(node_parent, node_key)
        self._blocks: list[pl.DataFrame] = []
        self._last: int | None = None

    def add(self, node: pl.Series, device: pl.Series, start: pl.Series, end: pl.Series) -> bool:
        """Add GPU activities to every key on the path of their node (Int32; -1 is ignored), by device code (Int32).

        Returns whether the starts ascend over all calls. If not, the result is invalid.
        """
        if self._native is not None:
            return bool(self._native.add(*one_chunk(node, device, start, end)))
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
        """Return key, device (Int32), busy_ns, first_ns and last_ns (Int64): a row per key and device with activity."""
        if self._native is not None:
            columns = map(pl.Series, self._native.result())
            return pl.DataFrame(dict(zip(_RESULT, columns, strict=True))).sort("key", "device")
        rows: list[tuple[int, ...]] = []
        if self._nodes is not None and self._blocks:
            topmost = self._nodes.outermost(self._nodes.keys)
            for (device,), activities in pl.concat(self._blocks).partition_by("device", as_dict=True).items():
                rows += [(key, device, *times) for key, *times in _device_times(self._nodes, topmost, activities)]
        return pl.DataFrame(rows, schema=_RESULT, orient="row").sort("key", "device")


class _Union:
    """Union of intervals: its length, its first and its last instant."""

    def __init__(self) -> None:
        # Intervals are in descending order of time, stored with negative times. Nodes are merged into their parents,
        # whose intervals mostly started earlier, so that new intervals are appended at the end of the list.
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
        if low < high:  # merge with the intervals that it touches
            begin, end = min(begin, self._begins[low]), max(end, self._ends[high - 1])
        self.ns += end - begin - sum(self._ends[low:high]) + sum(self._begins[low:high])
        self._begins[low:high], self._ends[low:high] = [begin], [end]

    def merge(self, other: _Union) -> None:
        """Add the intervals of another union."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        for begin, end in zip(other._begins, other._ends, strict=True):
            self._cover(begin, end)


def _device_times(nodes: Nodes, topmost: list[bool], activities: pl.DataFrame) -> Iterator[tuple[int, int, int, int]]:
    """Yield key, busy_ns, first_ns and last_ns of one device.

    Each node is merged into its parent, from the last node to the first. The shorter list is merged into the longer
    one, so that each interval moves at most O(log n) times in a tree of any depth. The union of a key is the union of
    its topmost nodes.
    """
    topmost_count = Counter(key for key, top in zip(nodes.keys, topmost, strict=True) if top)
    unions: dict[int, _Union] = {}
    several: dict[int, _Union] = {}
    for node, start, end in activities.select("node", "start", "end").iter_rows():
        unions.setdefault(node, _Union()).add(start, end)
    for node in range(len(nodes) - 1, NONE, -1):
        union = unions.pop(node, None)
        if union is None:
            continue
        key, parent = nodes.keys[node], nodes.parents[node]
        if topmost[node] and topmost_count[key] == 1:
            yield key, union.ns, union.first, union.last
        elif topmost[node]:
            several.setdefault(key, _Union()).merge(union)
        if parent != NONE:
            shorter, longer = sorted((union, unions.get(parent, _Union())), key=len)
            longer.merge(shorter)
            unions[parent] = longer
    for key, union in several.items():
        yield key, union.ns, union.first, union.last
