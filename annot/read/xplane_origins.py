"""Ranges for device work whose launch does not lead to its operation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from annot import tag
from annot.read.xplane_device import What, Work
from annot.read.xplane_host import Host
from annot.read.xplane_ranges import Kind, Ranges
from annot.scopes import Scopes

__all__ = ["Origins", "launched", "place"]

Origins = tuple[list[int | None], list[int | None]]
"""Thread and start of the instant that each piece of work belongs to; None where its launch decides."""


def launched(work: Work) -> dict[int, str]:
    """Return the operation that each correlation id belongs to: of several, as in a CUDA graph, the first."""
    known = [what.operation for what in work.kinds]
    operations: dict[int, str] = {}
    for correlation, what in zip(work.correlation, work.what, strict=True):
        operation = known[what]
        if correlation and operation is not None and correlation not in operations:
            operations[correlation] = operation
    return operations


def place(work: Work, host: Host, operations: Mapping[int, str], scopes: Scopes, ranges: Ranges) -> Origins:
    """Put ranges around the work that its launch leaves without its operation, and return where they are.

    Every stream gets a thread of its own, on which the work itself takes the place of the launches, cut where the next
    piece begins. Such a thread knows no steps; they come from the devices if the host has none.

    Args:
        work: what ran.
        host: what happened on the host; gets the new threads.
        operations: what `launched` returned.
        scopes: all operations of the file.
        ranges: gets the new ranges.
    """
    streams = _unplaced(work, frozenset(host.launches["correlation"]), operations, scopes)
    threads: list[int | None] = [None] * len(work.start)
    starts: list[int | None] = [None] * len(work.start)
    kinds = [_kind(what, scopes) for what in work.kinds]
    for rows in streams:
        thread = host.thread()
        rows.sort(key=work.start.__getitem__)
        ends = [min(work.end[row], work.start[after]) for row, after in pairwise(rows)] + [work.end[rows[-1]]]
        events = [(work.start[row], -end, row, kinds[work.what[row]]) for row, end in zip(rows, ends, strict=True)]
        ranges.add(thread, sorted(events), shares=True)
        for row in rows:
            threads[row], starts[row] = thread, work.start[row]
    if streams and not host.steps:
        steps = [(start, -end, row, _step(name)) for row, (start, end, name) in enumerate(work.steps)]
        ranges.add(host.thread(), sorted(steps))
    return threads, starts


def _unplaced(work: Work, launches: frozenset[int], operations: Mapping[int, str], scopes: Scopes) -> list[list[int]]:
    """Return the rows of work with an operation that its launch does not lead to, per stream."""
    streams: dict[tuple[int, int], list[int]] = {}
    levels = [None if what.operation is None else scopes.levels(what.operation) for what in work.kinds]
    for row, (correlation, what) in enumerate(zip(work.correlation, work.what, strict=True)):
        if levels[what] is None:
            continue
        if correlation not in launches or scopes.levels(operations[correlation]) != levels[what]:
            streams.setdefault((work.device[row], work.stream[row]), []).append(row)
    return list(streams.values())


def _kind(what: What, scopes: Scopes) -> Kind:
    operation = what.operation or what.name
    return Kind(scopes.add(operation).name, operation=operation)


def _step(name: str) -> Kind:
    if name.isdecimal() and len(name) < 19:
        return Kind(tag.format(tag.Tag(phase="step", step=int(name))), None)
    return Kind(name, "annotation")
