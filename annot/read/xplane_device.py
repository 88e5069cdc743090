"""What ran on the devices of an XPlane file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from annot.profile import LATEST
from annot.read.xplane_hlo import Instructions
from annot.read.xplane_plane import LIMIT, Plane, decode, whole
from annot.scopes import Scopes

__all__ = ["What", "Work", "read_device"]

_STREAM: Final = "Stream"
_OPERATIONS: Final = "XLA Ops"
_STEPS: Final = "Steps"
_NUMBER: Final = re.compile(r"(\d{1,9})$")

_COPY, _SET = "memcpy_details", "memset_details"
_OTHER: Final = frozenset({"memalloc_details", "memfree_details", "memoryresidency_details"})
_CORRELATION: Final = "correlation_id"
_TELLING: Final = frozenset({"name", "hlo_op", "hlo_module", "program_id", "tf_op", "annotation", _COPY, _SET, *_OTHER})
_BYTES: Final = re.compile(r"\b(?:size|num_bytes):(\d{1,18})\b")
_KIND: Final = re.compile(r"memcpy\s*(\w+)", re.IGNORECASE)
_DIRECTION: Final = re.compile(r"[HDAP]2[HDAP]")

Step: TypeAlias = tuple[int, int, str]
"""Start, end and name of a step, on the clock of a device."""


class What(NamedTuple):
    """What a piece of device work is.

    Args:
        name: of the kernel or copy.
        kind: of a copy or set, as in `annot.profile.COPIES`; None for a kernel.
        bytes: of a copy or set, if known.
        operation: name in the file of the operation that launched it; None if unknown.
    """

    name: str
    kind: str | None
    bytes: int | None
    operation: str | None


@dataclass(slots=True)
class Work:
    """Device work, as columns of equal length.

    Args:
        device: number of the device.
        stream: number of the stream.
        start: ns.
        end: ns.
        correlation: that of the launch; 0 if unknown.
        what: row in `kinds`.
        kinds: all that occurs.
        steps: of the first device that has any.
        lost: how many events have times that cannot be.
    """

    device: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    correlation: list[int] = field(default_factory=list)
    what: list[int] = field(default_factory=list)
    kinds: dict[What, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    lost: int = 0


def read_device(plane: Plane, work: Work, instructions: Instructions, scopes: Scopes) -> None:
    """Append what ran on a device, and take note of its operations."""
    named = [(decode(line.name), line) for line in plane.message.lines]
    streams = [line for name, line in named if name.startswith(_STREAM)]
    reader = _Reader(plane, work, instructions, scopes)
    for line in streams:
        reader.read(line, _timed(line, work))
    if not streams:
        reader = _Reader(plane, work, instructions, scopes, of_instructions=True)
        for line in (line for name, line in named if name == _OPERATIONS):
            reader.read(line, _leaves(_timed(line, work)))
    if not work.steps:
        timed = (event for name, line in named if name == _STEPS for event in _timed(line, work))
        work.steps = [(start, end, plane.names.get(event.metadata_id, "")) for event, start, end in timed]


class _Reader:
    """Reads the lines of a plane, whose events are kernels or, if `of_instructions`, what XLA compiled."""

    def __init__(
        self, plane: Plane, work: Work, instructions: Instructions, scopes: Scopes, *, of_instructions: bool = False
    ) -> None:
        self._plane, self._work, self._instructions, self._scopes = plane, work, instructions, scopes
        self._of_instructions = of_instructions
        number = _NUMBER.search(plane.name)
        self._device = int(number[1]) if number else plane.message.id
        self._uses = plane.uses(_TELLING | {_CORRELATION})
        self._constants = plane.constants(self._uses)
        self._seen: dict[tuple[int, ...], int | None] = {}

    def read(self, line: Any, events: Iterable[tuple[Any, int, int]]) -> None:
        """Append the events of a line."""
        work, uses = self._work, self._uses
        starts, ends, correlations, whats = work.start, work.end, work.correlation, work.what
        for event, start, end in events:
            correlation, key, telling = 0, [event.metadata_id], []
            for stat in event.stats:
                use = uses.get(stat.metadata_id)
                if use == _CORRELATION:
                    correlation = stat.uint64_value or stat.int64_value
                elif use is not None:
                    key += (stat.metadata_id, stat.ref_value or whole(stat))
                    telling.append((use, stat))
            what = self._what(tuple(key), telling)
            if what is not None:
                starts.append(start)
                ends.append(end)
                correlations.append(correlation if correlation < LIMIT else 0)
                whats.append(what)
        new = len(starts) - len(work.stream)
        work.device += [self._device] * new
        work.stream += [line.id] * new

    def _what(self, key: tuple[int, ...], telling: list[tuple[str, Any]]) -> int | None:
        """Return the row of `Work.kinds` for an event, None if it is no work.

        Args:
            key: numbers of the event, and of its statistics with their values: those of texts that stand elsewhere.
            telling: the statistics.
        """
        if 0 in key:  # a text that stands here
            return self._row(key[0], dict(telling))
        if key not in self._seen:
            self._seen[key] = self._row(key[0], dict(telling))
        return self._seen[key]

    def _row(self, number: int, stats: Mapping[str, Any]) -> int | None:
        stats = {**self._constants.get(number, {}), **stats}
        if not _OTHER.isdisjoint(stats):
            return None
        name = self._plane.names.get(number, "")
        what = What(name, _kind(name, stats), self._bytes(stats), self._operation(name, stats))
        return self._work.kinds.setdefault(what, len(self._work.kinds))

    def _operation(self, name: str, stats: Mapping[str, Any]) -> str | None:
        """Return what launched the work, as far as the file tells: its scopes, or at least XLA's instruction."""
        said = {use: self._plane.text(stats[use]) for use in ("name", "tf_op", "annotation") if use in stats}
        compiled = self._instructions.operation(self._plane, stats) if "hlo_op" in stats else None
        scoped = said.get("name") if "/" in said.get("name", "") else None
        operation = scoped or compiled or said.get("tf_op") or said.get("annotation") or None
        if "/" not in (operation or ""):
            instruction = self._plane.text(stats["hlo_op"]) if "hlo_op" in stats else name * self._of_instructions
            operation = instruction.partition(" = ")[0].removeprefix("%") or operation
        if operation is not None:
            self._scopes.add(operation)
        return operation

    def _bytes(self, stats: Mapping[str, Any]) -> int | None:
        details = (self._plane.text(stats[use]) for use in (_COPY, _SET) if use in stats)
        return next((int(size[1]) for text in details if (size := _BYTES.search(text))), None)


def _kind(name: str, stats: Mapping[str, Any]) -> str | None:
    """Return the kind of a copy or set, None for a kernel.

    Example:
        >>> _kind("MemcpyH2D", {}), _kind("Memset", {}), _kind("gemm", {})
        ('HtoD', 'memset', None)
    """
    copy = _KIND.match(name)
    if copy and _DIRECTION.fullmatch(copy[1]):
        return copy[1].replace("2", "to")
    if copy or _COPY in stats:
        return "unknown"
    return "memset" if _SET in stats or name.lower().startswith("memset") else None


def _timed(line: Any, work: Work) -> Iterator[tuple[Any, int, int]]:
    base = line.timestamp_ns
    for event in line.events:
        offset = event.offset_ps
        start = base + offset // 1000
        end = base + (offset + event.duration_ps) // 1000
        if -LATEST < start <= end < LATEST:
            yield event, start, end
        else:
            work.lost += 1


def _leaves(events: Iterable[tuple[Any, int, int]]) -> Iterator[tuple[Any, int, int]]:
    """Yield the events that contain no other."""
    ordered = sorted(events, key=lambda timed: (timed[1], -timed[2]))
    for here, after in zip(ordered, [*ordered[1:], None], strict=True):
        if after is None or after[1] >= here[2] or after[2] > here[2]:
            yield here
