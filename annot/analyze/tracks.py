"""Tracks of a timeline, with their names: steps, threads and layers of processes, streams of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

import polars as pl

from annot.attribution.range_trees import Forest

__all__ = ["Group", "Lanes", "Track", "Tracks", "nested_lanes"]

_Key: TypeAlias = tuple[int | None, ...]
_WHERE: Final = {
    "steps": ("process",),
    "thread": ("process", "thread"),
    "layers": ("process",),
    "crossing": ("process", "thread"),
    "launch": ("process", "thread"),
    "stream": ("process", "device", "stream"),
}
"""Kinds of tracks, with the columns that identify a track together with its lane."""
_THREADS: Final = {"thread": "", "crossing": ", crossing", "launch": ": launches"}
"""Kinds of tracks of a thread, with the end of their names."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process, or a device of a process."""

    number: int
    process: str
    device: str

    @property
    def name(self) -> str:
        """Name for display."""
        return f"{self.device} of {self.process}" if self.device else self.process


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the timeline."""

    number: int
    group: Group
    name: str
    kind: str
    order: tuple[Any, ...]
    """Sorts tracks by process, kind and the columns that identify them."""


class Tracks:
    """Groups and tracks, numbered from 1 in order of appearance; groups and tracks share the numbers.

    Args:
        meta: metadata of the profile, which names processes and devices.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._processes = {process["process"]: process for process in meta.get("processes", ())}
        self._unnamed: dict[int | None, int] = {}
        self._groups: dict[_Key, Group] = {}
        self._tracks: dict[tuple[str, _Key], Track] = {}
        self._threads: dict[int, dict[int | None, int]] = defaultdict(dict)
        self._lanes: dict[tuple[str, _Key], Lanes] = defaultdict(Lanes)

    def groups(self) -> list[Group]:
        """Return the groups of the tracks so far."""
        return list(self._groups.values())

    def all(self) -> list[Track]:
        """Return the tracks so far."""
        return list(self._tracks.values())

    def of(self, kind: str, rows: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each row.

        Args:
            kind: steps, thread, layers, crossing (ranges of a thread that cross), launch or stream.
            rows: process; thread of threads and launches; device and stream of streams (Int64); and lane, if rows
                that overlap are on tracks of their own.
        """
        where = rows.select(*_WHERE[kind], *(["lane"] if "lane" in rows.columns else []))
        distinct = where.unique(maintain_order=True)
        numbers = [self._track(kind, key).number for key in distinct.iter_rows()]
        tracks = distinct.with_columns(pl.Series("track", numbers, pl.Int32))
        return where.join(tracks, on=where.columns, how="left", nulls_equal=True, maintain_order="left")["track"]

    def of_overlapping(self, kind: str, rows: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each row, with tracks of their own for rows that overlap, also across calls.

        The rows have the columns of the kind (see `of`), start and length (Int64), sorted by start.
        """
        rows = rows.select(*_WHERE[kind], "start", end=pl.col("start") + pl.col("length")).with_row_index("place")
        lanes = [
            group.select("place", *_WHERE[kind], self._lanes[kind, key].of(group["start"], group["end"]))
            for key, group in rows.partition_by(*_WHERE[kind], as_dict=True, maintain_order=True).items()
        ]
        return self.of(kind, pl.concat(lanes).sort("place") if lanes else rows)

    def _track(self, kind: str, key: _Key) -> Track:
        if (kind, key) not in self._tracks:
            process, *where = key
            group = self._group(process, where[0] if kind == "stream" else None, is_device=kind == "stream")
            order = ((process is None, process), [*_WHERE].index(kind), *((number is None, number) for number in where))
            self._tracks[kind, key] = Track(self._next(), group, self._name(kind, where, group), kind, order)
        return self._tracks[kind, key]

    def _name(self, kind: str, where: list[int | None], group: Group) -> str:
        if kind in _THREADS:
            threads = self._threads[group.number]
            return f"thread {threads.setdefault(where[0], len(threads) + 1)}{_THREADS[kind]}"
        lane = where[len(_WHERE[kind]) - 1 :]
        name = kind if kind != "stream" else "unknown stream" if where[1] is None else f"stream {where[1]}"
        return f"{name}, overlapping" if any(lane) else name

    def _group(self, process: int | None, device: int | None, *, is_device: bool) -> Group:
        key = (process, device, int(is_device))
        if key not in self._groups:
            facts = self._processes.get(process, {})
            count = self._unnamed.setdefault(process, len(self._unnamed) + 1)
            host = f"{facts.get('name') or 'process'} {facts.get('pid', count)}"
            named = f"GPU {'unknown' if device is None else device}" if is_device else ""
            self._groups[key] = Group(self._next(), host, named)
        return self._groups[key]

    def _next(self) -> int:
        return len(self._groups) + len(self._tracks) + 1


class Lanes:
    """Lanes for events that overlap: an event gets the first lane that is free at its start.

    Example:
        >>> lanes = Lanes()
        >>> lanes.of(pl.Series([0, 1, 2]), pl.Series([9, 2, 3])).to_list(), lanes.of(pl.Series([8]), pl.Series([9]))[0]
        ([0, 1, 1], 1)
    """

    def __init__(self) -> None:
        self._running: list[tuple[int, int]] = []  # heap of the ends of running events, with their lanes
        self._free: list[int] = []  # heap

    def of(self, starts: pl.Series, ends: pl.Series) -> pl.Series:
        """Return the lane (Int32) of each event, from 0; call it in order of start."""
        if not (starts < ends.cum_max().shift(1)).any():
            self._release(starts[0])
            if not self._running or self._free[:1] == [0]:
                self.place(starts[0], ends.cum_max()[-1])  # one event in place of many: no loop
                return pl.Series("lane", [0], pl.Int32).new_from_index(0, len(starts))
        return pl.Series("lane", [self.place(*times) for times in zip(starts, ends, strict=True)], pl.Int32)

    def place(self, start: int, end: int) -> int:
        """Return the lane of an event."""
        self._release(start)
        lane = heappop(self._free) if self._free else len(self._running)
        heappush(self._running, (end, lane))
        return lane

    def _release(self, at: int) -> None:
        while self._running and self._running[0][0] <= at:
            heappush(self._free, heappop(self._running)[1])


def nested_lanes(forest: Forest) -> pl.DataFrame:
    """Return lanes for the ranges of processes, in the order of the tree.

    Two ranges in the same lane either do not overlap, or are nested in the tree as well. The columns are process, lane
    (the first free one, from 0 in each process) and row (place among all rows of the process, where the lanes are below
    each other and inner ranges below outer ones).
    """
    first = forest.thread_range_count
    shared = forest.tree.slice(first)
    lanes: dict[int, Lanes] = defaultdict(Lanes)
    placed: list[tuple[int, int, int]] = []
    until: list[int] = []  # a range leaves its lane free for inner ranges from then on
    process = forest.threads.table["process"].gather(shared["thread"])
    for code, start, end, parent in zip(process, shared["start"], shared["end"], shared["parent"], strict=True):
        above = parent - first
        if above >= 0 and until[above] <= start:
            until[above] = end
            _, lane, depth = placed[above]
            placed.append((code, lane, depth + 1))
        else:
            placed.append((code, lanes[code].place(start, end), 0))
        until.append(start)
    rows = pl.DataFrame(placed, schema={"process": pl.Int64, "lane": pl.Int32, "row": pl.Int32}, orient="row")
    heights = rows.group_by("process", "lane").agg(height=pl.col("row").max() + 1).sort("process", "lane")
    tops = heights.select("process", "lane", top=(pl.col("height").cum_sum() - pl.col("height")).over("process"))
    rows = rows.join(tops, on=["process", "lane"], how="left", maintain_order="left")
    return rows.select("process", "lane", row=(pl.col("row") + pl.col("top")).cast(pl.Int32))
