"""Add ranges for activities of devices whose launch does not lead to their operation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from annot.labels import tag
from annot.labels.name_scopes import Scopes
from annot.read.xplane.device import Activities, ActivityKind
from annot.read.xplane.host import Host
from annot.read.xplane.ranges import Kind, Ranges

__all__ = ["Origins", "add_origins", "launched_operations"]

Origins = tuple[list[int | None], list[int | None]]
"""Thread and time (ns) of the range of each activity. None if the launch determines the range."""


def launched_operations(activities: Activities) -> dict[int, str]:
    """Return the operation of each correlation id. A CUDA graph launch has several operations; the first one counts.

    Args:
        activities: activities of the devices.
    """
    known = [kind.operation for kind in activities.kinds]
    operations: dict[int, str] = {}
    for correlation, kind in zip(activities.correlation, activities.kind, strict=True):
        operation = known[kind]
        if correlation and operation is not None and correlation not in operations:
            operations[correlation] = operation
    return operations


def add_origins(
    activities: Activities, host: Host, operations: Mapping[int, str], scopes: Scopes, ranges: Ranges
) -> Origins:
    """Add ranges around activities whose launch does not lead to their operation.

    Each stream gets a new thread. On this thread, the activities replace the launches. Overlapping activities end where
    the next one begins. If the host has no training steps, the steps of the devices are added too.

    Args:
        activities: activities of the devices.
        host: events of the host. Receives the new threads.
        operations: from `launched_operations`.
        scopes: all operations of the file.
        ranges: receives the new ranges.

    Returns:
        The thread and time of the new range of each activity.
    """
    streams = _without_origin(activities, frozenset(host.launches["correlation"]), operations, scopes)
    threads: list[int | None] = [None] * len(activities.start)
    starts: list[int | None] = [None] * len(activities.start)
    kinds = [_kind(kind, scopes) for kind in activities.kinds]
    for rows in streams:
        thread = host.thread()
        rows.sort(key=activities.start.__getitem__)
        ends = [min(activities.end[row], activities.start[after]) for row, after in pairwise(rows)] + [
            activities.end[rows[-1]]
        ]
        events = [
            (activities.start[row], -end, row, kinds[activities.kind[row]]) for row, end in zip(rows, ends, strict=True)
        ]
        ranges.add(thread, sorted(events), shares=True)
        for row in rows:
            threads[row], starts[row] = thread, activities.start[row]
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


def _kind(activity: ActivityKind, scopes: Scopes) -> Kind:
    operation = activity.operation or activity.name
    return Kind(scopes.add(operation).name, operation=operation)


def _step(name: str) -> Kind:
    if name.isdecimal() and len(name) < 19:
        return Kind(tag.format(tag.Tag(phase="step", step=int(name))), None)
    return Kind(name, "annotation")
