"""Tracks of a timeline: steps and threads of processes, streams of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

__all__ = ["Group", "Track", "Tracks"]

_Key: TypeAlias = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A process, or a device of a process."""

    number: int
    name: str
    is_device: bool


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the timeline, in the group with the number `group`."""

    number: int
    group: int
    name: str


class Tracks:
    """Groups and tracks, numbered from 1 in order of appearance; groups and tracks share the numbers.

    Args:
        meta: metadata of the profile, which names processes and devices.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._processes = {one["process"]: one for one in meta.get("processes", ())}
        self._unnamed: dict[str | int | None, int] = {}
        self._groups: dict[_Key, Group] = {}
        self._tracks: dict[_Key, Track] = {}
        self._threads: dict[int, list[str | int | None]] = {}
        self._lanes: dict[_Key, list[int]] = {}

    def groups(self) -> list[Group]:
        """Return the groups of the tracks so far."""
        return list(self._groups.values())

    def all(self) -> list[Track]:
        """Return the tracks so far."""
        return list(self._tracks.values())

    def of_steps(self, processes: pl.Series) -> pl.Series:
        """Return the track (Int32) of the steps of each process (Int64)."""
        return self._numbers([("step", process) for process in processes])

    def of_threads(self, where: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each row of process, thread (Int64)."""
        return self._each(where, "thread")

    def of_layers(self, lanes: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each row of `annot.analyze.lanes.process_lanes`."""
        return self._each(lanes.select("process", "lane"), "layers")

    def of_launches(self, calls: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each launch: process, thread, start, length; sorted by start."""
        return self._each(self._with_lanes(calls, ["process", "thread"]), "launch")

    def of_work(self, work: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each GPU activity: process, device, stream, start, length; sorted by start."""
        return self._each(self._with_lanes(work, ["process", "device", "stream"]), "stream")

    def _each(self, where: pl.DataFrame, kind: str) -> pl.Series:
        distinct = where.unique(maintain_order=True)
        tracks = self._numbers([(kind, *row) for row in distinct.iter_rows()])
        found = where.join(
            distinct.with_columns(tracks), on=where.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return found["track"]

    def _numbers(self, keys: list[_Key]) -> pl.Series:
        return pl.Series("track", [self._track(key).number for key in keys], pl.Int32)

    def _track(self, key: _Key) -> Track:
        if key not in self._tracks:
            kind, process, *rest = key
            device = rest[0] if kind == "stream" else None
            group = self._group(process, device, is_device=kind == "stream")
            name = self._name(str(kind), rest, group.number)
            self._tracks[key] = Track(self._next(), group.number, name)
        return self._tracks[key]

    def _name(self, kind: str, rest: list[str | int | None], group: int) -> str:
        if kind == "step":
            return "steps"
        if kind == "layers":
            return "layers" if rest[0] == 0 else "layers, overlapping"
        if kind == "stream":
            stream = "unknown stream" if rest[1] is None else f"stream {rest[1]}"
            return stream if rest[2] in (None, 0) else f"{stream}, overlapping"
        threads = self._threads.setdefault(group, [])
        if rest[0] not in threads:
            threads.append(rest[0])
        name = f"thread {threads.index(rest[0]) + 1}"
        return name if kind == "thread" else f"{name}: launches"

    def _group(self, process: str | int | None, device: str | int | None, *, is_device: bool) -> Group:
        key = (process, device, is_device)
        if key not in self._groups:
            host = self._process(process)
            name = f"GPU {'unknown' if device is None else device} of {host}" if is_device else host
            self._groups[key] = Group(self._next(), name, is_device)
        return self._groups[key]

    def _process(self, process: str | int | None) -> str:
        known = self._processes.get(process, {})
        count = self._unnamed.setdefault(process, len(self._unnamed) + 1)
        return f"{known.get('name') or 'process'} {known.get('pid', count)}"

    def _next(self) -> int:
        return len(self._groups) + len(self._tracks) + 1

    def _with_lanes(self, rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Return `by` and lane (Int32): overlapping rows get different lanes, from 0."""
        rows = rows.with_row_index("row")
        end = pl.col("start") + pl.col("length")
        parts = []
        for key, part in rows.partition_by(by, as_dict=True, maintain_order=True).items():
            lanes = self._lanes.setdefault((len(by), *key), [])
            free = pl.max_horizontal(end.cum_max().shift(1), pl.lit(lanes[0] if lanes else None, pl.Int64))
            if part.select((pl.col("start") >= free).fill_null(True).all()).item():
                lanes[:1] = [part.select(end.max()).item()]
                lane = [0] * part.height
            else:
                lane = _lanes(part.select("start", end.alias("end")), lanes)
            parts.append(part.select("row", *by, pl.Series("lane", lane, pl.Int32)))
        if not parts:
            return rows.select(*by, pl.lit(0, pl.Int32).alias("lane"))
        return pl.concat(parts).sort("row").drop("row")


def _lanes(intervals: pl.DataFrame, ends: list[int]) -> list[int]:
    """Return the first free lane of each interval.

    Args:
        intervals: start, end; sorted by start.
        ends: end of the last interval in each lane; updated in place.
    """
    found = []
    for start, end in intervals.iter_rows():
        lane = next((lane for lane, free in enumerate(ends) if free <= start), len(ends))
        ends[lane : lane + 1] = [end]
        found.append(lane)
    return found
