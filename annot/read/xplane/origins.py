"""Add ranges for activities of devices whose launch does not lead to their operation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from annot.labels import tag
from annot.labels.name_scopes import Scopes
from annot.read.xplane.device import Activities
from annot.read.xplane.host import Host
from annot.read.xplane.ranges import Kind, Ranges

__all__ = ["Origins", "add_origins", "launched_operations"]

Origins = tuple[list[int | None], list[int | None]]
"""Thread and time (ns) of the range of each activity. None if the launch determines the range."""


def launched_operations(activities: Activities) -> dict[int, str]:
    """Return the operation of each correlation id. A CUDA graph launch has several operations; the first one counts."""
    known = [kind.operation for kind in activities.kinds]
    operations: dict[int, str] = {}
    for correlation, kind in zip(activities.correlation, activities.kind, strict=True):
        if correlation and (operation := known[kind]) is not None:
            operations.setdefault(correlation, operation)
    return operations


def add_origins(
    activities: Activities, host: Host, operations: Mapping[int, str], scopes: Scopes, ranges: Ranges
) -> Origins:
    """Add ranges around activities whose launch does not lead to their operation, and return their thread and time.

    Each stream gets a new thread. On this thread, the activities replace the launches. Overlapping activities end where
    the next one begins. If the host has no training steps, the steps of the devices are added too.
    """
    streams = _without_origin(activities, frozenset(host.launches["correlation"]), operations, scopes)
    threads: list[int | None] = [None] * len(activities.start)
    starts: list[int | None] = [None] * len(activities.start)
    named = [kind.operation or kind.name for kind in activities.kinds]
    kinds = [Kind(scopes.add(operation).name, operation=operation) for operation in named]
    for rows in streams:
        thread = host.thread()
        rows.sort(key=activities.start.__getitem__)
        events = []
        for row, after in pairwise([*rows, rows[-1]]):
            start, end = activities.start[row], activities.end[row]
            end = end if after == row else min(end, activities.start[after])
            events.append((start, -end, row, kinds[activities.kind[row]]))
            threads[row], starts[row] = thread, start
        ranges.add(thread, sorted(events), shares=True)
    if streams and not host.steps:
        steps = [(start, -end, row, _step(name)) for row, (start, end, name) in enumerate(activities.steps)]
        ranges.add(host.thread(), sorted(steps))
    return threads, starts


def _without_origin(
    activities: Activities, launches: frozenset[int], operations: Mapping[int, str], scopes: Scopes
) -> list[list[int]]:
    """Return the rows of activities whose launch does not lead to their operation, for each stream."""
    streams: dict[tuple[int, int], list[int]] = {}
    levels = [None if kind.operation is None else scopes.levels(kind.operation) for kind in activities.kinds]
    for row, (correlation, kind) in enumerate(zip(activities.correlation, activities.kind, strict=True)):
        if levels[kind] is None:
            continue
        if correlation not in launches or scopes.levels(operations[correlation]) != levels[kind]:
            streams.setdefault((activities.device[row], activities.stream[row]), []).append(row)
    return list(streams.values())


def _step(name: str) -> Kind:
    if name.isdecimal() and len(name) < 19:
        return Kind(tag.format(tag.Tag(phase="step", step=int(name))), None)
    return Kind(name, "annotation")
