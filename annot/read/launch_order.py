"""Kernels that are known one by one, in the order of their launch, but not by the time of it.

Nsight Compute replays every kernel until all counters are read, so it keeps no times on the host. It keeps,
for each kernel, which NVTX ranges were open on the launching thread. From that come ranges on an artificial
clock: launch number i happens at instant i, and a range reaches from the first launch that it was seen around
to the last one in a row. What that loses stands in the notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.profile import KERNELS, LAUNCHES, METRICS, RANGES, Profile

__all__ = ["DEFAULT_DOMAIN", "DURATIONS", "Launch", "OpenRange", "profile_of"]

DEFAULT_DOMAIN: Final = "<default domain>"
"""What Nsight Compute calls the domain without a name."""

DURATIONS: Final = ("gpu__time_duration.sum", "gpu__time_duration_measured_user", "gpu__time_duration.avg", "Duration")
"""The metrics that say how long a kernel ran, the best first."""


@dataclass(frozen=True, slots=True)
class OpenRange:
    """A range that was open when a kernel was launched.

    Args:
        domain: its NVTX domain; "" is the default one.
        text: its message.
        number: tells started ranges of the same text apart, where the file does.
        payload: the number that it carries, as text.
        color: 0xAARRGGBB.
    """

    domain: str
    text: str
    number: int | None = None
    payload: str | None = None
    color: int | None = None


@dataclass(slots=True)
class Launch:
    """One kernel.

    Args:
        process, thread: from where it was launched.
        name: of the kernel.
        device, stream: where it ran.
        duration: ns; None if it was not measured.
        started: the open ranges that were started, in no order.
        pushed: the open ranges that were pushed, by domain, outer ones first.
        metrics: name and unit of each metric, and its value.
    """

    process: int
    thread: int
    name: str
    device: int | None = None
    stream: int | None = None
    duration: int | None = None
    started: Sequence[OpenRange] = ()
    pushed: Mapping[str, Sequence[OpenRange]] = field(default_factory=dict)
    metrics: dict[tuple[str, str], float] = field(default_factory=dict)


def profile_of(path: Path, name: str, producer: str, launches: Sequence[Launch], notes: Iterable[str]) -> Profile:
    """Return the profile that holds the given launches.

    Args:
        path, name, producer: for `Profile.meta`.
        launches: in order.
        notes: what the reader has to say.
    """
    ranges = _ranges(launches)
    notes = [*notes, *_notes(launches, ranges)]
    meta = {"source": str(path), "format": name, "producer": producer, "notes": notes, "host_times": False}
    return Profile.build(
        meta,
        ranges=pl.DataFrame(ranges, schema=dict(RANGES), orient="row"),
        launches=_calls(launches),
        kernels=_kernels(launches),
        metrics=_metrics(launches),
    )


def _notes(launches: Sequence[Launch], ranges: Sequence[Any]) -> list[str]:
    notes = []
    if ranges:
        notes.append("times on the host are not known, and calls of one layer without another between count as one")
    else:
        notes.append("the profile holds no NVTX ranges, so nothing can be attributed: run ncu with --nvtx")
    if any(len(launch.pushed) > 1 for launch in launches):
        notes.append(
            "the file does not say how ranges of different NVTX domains nest: those around more kernels count as outer"
        )
    if unmeasured := sum(launch.duration is None for launch in launches):
        notes.append(
            f"how long {unmeasured:,} kernels ran is not in the file (gpu__time_duration.sum): they count as 0 ns"
        )
    return notes


def _calls(launches: Sequence[Launch]) -> pl.DataFrame:
    count = len(launches)
    instants = pl.Series(range(count), dtype=pl.Int64)
    columns = {
        "process": [launch.process for launch in launches],
        "thread": [launch.thread for launch in launches],
        "start": instants,
        "end": instants,
        "correlation": instants + 1,
        "name": [None] * count,
    }
    return pl.DataFrame(columns, schema=dict(LAUNCHES))


def _kernels(launches: Sequence[Launch]) -> pl.DataFrame:
    """Put the kernels of each process one after the other."""
    clocks: dict[int, int] = {}
    rows = []
    for index, launch in enumerate(launches):
        start = clocks.get(launch.process, 0)
        clocks[launch.process] = end = min(start + max(launch.duration or 0, 0), 1 << 62)
        place = {"process": launch.process, "device": launch.device, "stream": launch.stream, "name": launch.name}
        rows.append(place | {"start": start, "end": end, "correlation": index + 1})
    return pl.DataFrame(rows, schema=dict(KERNELS), orient="row")


def _metrics(launches: Sequence[Launch]) -> pl.DataFrame:
    kernels: list[int] = []
    names: list[str] = []
    units: list[str] = []
    values: list[float] = []
    for index, launch in enumerate(launches):
        kernels += [index] * len(launch.metrics)
        names += [name for name, _ in launch.metrics]
        units += [unit for _, unit in launch.metrics]
        values += launch.metrics.values()
    return pl.DataFrame({"kernel": kernels, "name": names, "value": values, "unit": units}, schema=dict(METRICS))


class _Process:
    """Follows the ranges of one process from launch to launch.

    Started ranges belong to the process; they lie on the thread of its first launch. Pushed ones are taken as
    still open if the next launch of their thread shows them again, unless in between other threads launched
    and a started range came or went: then an iteration is over, and what looks the same is the next call.
    """

    def __init__(self, process: int, home: int) -> None:
        self._process, self._home = process, home
        self._count = self._changed = 0
        self._started: dict[tuple[OpenRange, int], int] = {}
        self._pushed: dict[int, tuple[int, dict[str, list[tuple[int, OpenRange]]]]] = {}

    def see(self, instant: int, launch: Launch, rows: list[dict[str, Any]]) -> None:
        """Stretch the ranges that are still open to this instant, and add rows for those that are new."""
        self._count += 1
        self._see_started(instant, launch.started, rows)
        last, before = self._pushed.get(launch.thread, (0, {}))
        if last < self._count - 1 and last < self._changed:
            before = {}
        now: dict[str, list[tuple[int, OpenRange]]] = {}
        for domain, stack in launch.pushed.items():
            kept = before.get(domain, [])
            kept = kept[: _common(kept, stack)]
            new = stack[len(kept) :]
            now[domain] = kept + [(self._add(instant, launch.thread, opened, "push", rows), opened) for opened in new]
            for row, _ in now[domain]:
                rows[row]["end"] = instant
        self._pushed[launch.thread] = (self._count, now)

    def _see_started(self, instant: int, started: Sequence[OpenRange], rows: list[dict[str, Any]]) -> None:
        now: dict[tuple[OpenRange, int], int] = {}
        seen: Counter[OpenRange] = Counter()
        for opened in started:
            key = (opened, seen[opened])
            seen[opened] += 1
            row = self._started.get(key)
            now[key] = self._add(instant, self._home, opened, "start", rows) if row is None else row
            rows[now[key]]["end"] = instant
        if now.keys() != self._started.keys():
            self._changed = self._count
        self._started = now

    def _add(self, instant: int, thread: int, opened: OpenRange, kind: str, rows: list[dict[str, Any]]) -> int:
        place = {"id": len(rows), "process": self._process, "thread": thread, "start": instant}
        says = {"domain": opened.domain, "text": opened.text, "payload": opened.payload, "color": opened.color}
        rows.append(place | says | {"kind": kind})
        return len(rows) - 1


def _common(before: Sequence[tuple[int, OpenRange]], now: Sequence[OpenRange]) -> int:
    """Count the ranges that both stacks begin with."""
    for index, ((_, old), new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            return index
    return min(len(before), len(now))


def _ranges(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Give rows of `RANGES`; of two around the same launches the one with the smaller id is the outer one."""
    rows: list[dict[str, Any]] = []
    processes: dict[int, _Process] = {}
    for instant, launch in enumerate(launches):
        if launch.process not in processes:
            processes[launch.process] = _Process(launch.process, launch.thread)
        processes[launch.process].see(instant, launch, rows)
    return rows
