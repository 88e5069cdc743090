"""Build a profile from kernels in launch order, without host times (Nsight Compute).

Nsight Compute replays each kernel until it has collected all counters. Its reports therefore contain no host times. For
each kernel, they contain the NVTX ranges that were open on the launching thread. This module uses the launch number as
the clock: launch i happens at time i. A range lasts from the first to the last of consecutive launches inside it. The
notes tell the user what this loses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from annot.profile import Profile
from annot.read.text import counted, nanoseconds

DEFAULT_DOMAIN: Final = "<default domain>"
"""Name of the default NVTX domain in Nsight Compute."""

DURATIONS: Final = ("gpu__time_duration.sum", "gpu__time_duration_measured_user", "gpu__time_duration.avg", "Duration")
"""Metrics of the duration of a kernel, most precise first."""


@dataclass(frozen=True, slots=True)
class OpenRange:
    """A range that was open when a kernel was launched."""

    domain: str  # "" for the default domain
    text: str
    number: int | None = None  # id of a start/end range, if the file contains it
    payload: str | None = None  # the number as text
    color: int | None = None  # 0xAARRGGBB


@dataclass(slots=True)
class Launch:
    """A kernel launch."""

    process: int
    thread: int
    name: str
    device: int | None = None
    stream: int | None = None
    duration: int | None = None  # ns; None if it was not measured
    started: Sequence[OpenRange] = ()  # open start/end ranges, unordered
    pushed: Mapping[str, Sequence[OpenRange]] = field(default_factory=dict)  # by domain, outermost first
    metrics: dict[tuple[str, str], float] = field(default_factory=dict)  # by name and unit


def profile_of(path: Path, name: str, producer: str, launches: Sequence[Launch], notes: Iterable[str]) -> Profile:
    """Return the profile of launches in order; `name` is the format and `notes` are those of the reader."""
    for launch in launches:
        _use_metrics(launch)
    ranges = _ranges(launches)
    notes = [*notes, *_notes(launches, ranges)]
    meta = {"source": str(path), "format": name, "producer": producer, "notes": notes, "host_times": False}
    return Profile.build(
        meta, ranges=ranges, launches=_calls(launches), kernels=_kernels(launches), metrics=_metrics(launches)
    )


def _use_metrics(launch: Launch) -> None:
    """Set the duration, and device and stream if the file has them only as metrics."""
    by_name = {name: (value, unit) for (name, unit), value in launch.metrics.items()}
    if launch.device is None:
        launch.device = _whole(by_name.get("launch__device_id"))
    if launch.stream is None:
        launch.stream = _whole(by_name.get("launch__stream_id"))
    durations = (nanoseconds(repr(by_name[name][0]), by_name[name][1]) for name in DURATIONS if name in by_name)
    launch.duration = next((duration for duration in durations if duration is not None), None)


def _whole(metric: tuple[float, str] | None) -> int | None:
    return None if metric is None or not 0 <= metric[0] < 2**53 else int(metric[0])


def _notes(launches: Sequence[Launch], ranges: Sequence[Any]) -> list[str]:
    notes = [
        "Nsight Compute does not record host times. Consecutive calls of the same layer count as one call."
        if ranges
        else "The profile has no NVTX ranges, so annot cannot attribute GPU time to layers. Run ncu with --nvtx."
    ]
    if any(len(launch.pushed) > 1 for launch in launches):
        notes.append(
            "The nesting of ranges in different NVTX domains is unknown. The range around more kernels counts as outer."
        )
    if unmeasured := sum(launch.duration is None for launch in launches):
        notes.append(
            f"The duration of {counted(unmeasured, 'kernel')} is unknown and counts as 0 ns. "
            "Collect the metric gpu__time_duration.sum."
        )
    return notes


def _calls(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    return [
        {"process": launch.process, "thread": launch.thread, "start": at, "end": at, "correlation": at + 1}
        for at, launch in enumerate(launches)
    ]


def _kernels(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return rows of `KERNELS`, with the kernels of each process one after the other."""
    clocks: dict[int, int] = {}
    rows = []
    for index, launch in enumerate(launches):
        start = clocks.get(launch.process, 0)
        clocks[launch.process] = end = min(start + max(launch.duration or 0, 0), 1 << 62)
        kernel = {"process": launch.process, "device": launch.device, "stream": launch.stream, "name": launch.name}
        rows.append(kernel | {"start": start, "end": end, "correlation": index + 1})
    return rows


def _metrics(launches: Sequence[Launch]) -> list[tuple[Any, ...]]:
    metrics = enumerate(launch.metrics.items() for launch in launches)
    return [(index, name, value, unit) for index, items in metrics for (name, unit), value in items]


class _Process:
    """Open ranges of a process, from launch to launch.

    Start/end ranges belong to the process and are put on the thread of its first launch. A push/pop range stays open if
    the next launch of its thread is also inside it. It is a new call if meanwhile another thread launched a kernel and
    a start/end range began or ended, because then a new iteration began.
    """

    def __init__(self, process: int, first_thread: int) -> None:
        self._process, self._first_thread = process, first_thread
        self._count = self._changed = 0
        self._started: dict[tuple[OpenRange, int], int] = {}
        self._pushed: dict[int, tuple[int, dict[str, list[tuple[int, OpenRange]]]]] = {}

    def see(self, instant: int, launch: Launch, rows: list[dict[str, Any]]) -> None:
        """Extend the ranges that are still open to this time, and add rows for new ranges."""
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
            now[key] = self._add(instant, self._first_thread, opened, "start", rows) if row is None else row
            rows[now[key]]["end"] = instant
        if now.keys() != self._started.keys():
            self._changed = self._count
        self._started = now

    def _add(self, instant: int, thread: int, opened: OpenRange, kind: str, rows: list[dict[str, Any]]) -> int:
        row = {"id": len(rows), "process": self._process, "thread": thread, "start": instant}
        label = {"domain": opened.domain, "text": opened.text, "payload": opened.payload, "color": opened.color}
        rows.append(row | label | {"kind": kind})
        return len(rows) - 1


def _common(before: Sequence[tuple[int, OpenRange]], now: Sequence[OpenRange]) -> int:
    """Return the length of the common prefix of two stacks."""
    pairs = enumerate(zip(before, now, strict=False))
    return next((index for index, ((_, old), new) in pairs if old != new), min(len(before), len(now)))


def _ranges(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return rows of `RANGES`. Of two ranges around the same launches, the one with the smaller id is outside."""
    rows: list[dict[str, Any]] = []
    processes: dict[int, _Process] = {}
    for instant, launch in enumerate(launches):
        if launch.process not in processes:
            processes[launch.process] = _Process(launch.process, launch.thread)
        processes[launch.process].see(instant, launch, rows)
    return rows
