"""Activities on the devices of an XPlane file: kernels, copies and memsets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from annot.labels.name_scopes import Scopes
from annot.read.xplane.plane import LIMIT, Instructions, Plane, decode, integer

_STREAM: Final = "Stream"
_OPERATIONS: Final = "XLA Ops"
_STEPS: Final = "Steps"
_NUMBER: Final = re.compile(r"(\d{1,9})$")

_COPY, _MEMSET = "memcpy_details", "memset_details"
_OTHER: Final = frozenset({"memalloc_details", "memfree_details", "memoryresidency_details"})
_CORRELATION: Final = "correlation_id"
_STATS: Final = frozenset(
    {"name", "hlo_op", "hlo_module", "program_id", "tf_op", "annotation", _COPY, _MEMSET, *_OTHER}
)
_BYTES: Final = re.compile(r"\b(?:size|num_bytes):(\d{1,18})\b")
_MEMORY: Final = re.compile(r"\bkind_(?:src|dst):(\w+)")
_KIND: Final = re.compile(r"memcpy\s*(\w+)", re.IGNORECASE)
_DIRECTION: Final = re.compile(r"[HDAP]2[HDAP]")

Step: TypeAlias = tuple[int, int, str]
"""Start (ns), end (ns) and name of a step on a device."""


class ActivityKind(NamedTuple):
    """Properties that many activities share."""

    name: str
    kind: str | None  # of a copy or memset, as in `annot.profile.COPIES`; None for a kernel
    bytes: int | None  # of a copy or memset, if known
    pinned: bool | None  # as in `annot.profile.COPIES`
    operation: str | None  # name of the operation that launched it, if known


@dataclass(slots=True)
class Activities:
    """Activities of the devices, as columns of equal length. Times are in ns."""

    device: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    correlation: list[int] = field(default_factory=list)  # 0 if the launch is unknown
    kind: list[int] = field(default_factory=list)  # index of `kinds`
    kinds: dict[ActivityKind, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)  # of the first device with steps


def read_device(plane: Plane, activities: Activities, instructions: Instructions, scopes: Scopes) -> None:
    """Append the activities of a device."""
    named = [(decode(line.name), line) for line in plane.message.lines]
    streams = [line for name, line in named if name.startswith(_STREAM)]
    reader = _Reader(plane, activities, instructions, scopes, of_instructions=not streams)
    for line in streams or [line for name, line in named if name == _OPERATIONS]:
        reader.read(line, plane.timed(line) if streams else _leaves(plane.timed(line)))
    if not activities.steps:
        steps = (event for name, line in named if name == _STEPS for event in plane.timed(line))
        activities.steps = [(start, end, plane.names.get(event.metadata_id, "")) for event, start, end in steps]


class _Reader:
    """Read the lines of a plane. The events are kernels or, with `of_instructions`, XLA instructions."""

    def __init__(
        self, plane: Plane, activities: Activities, instructions: Instructions, scopes: Scopes, of_instructions: bool
    ) -> None:
        self._plane, self._activities, self._instructions, self._scopes = plane, activities, instructions, scopes
        self._of_instructions = of_instructions
        number = _NUMBER.search(plane.name)
        self._device = int(number[1]) if number else plane.message.id
        self._stat_names = plane.stat_names(_STATS | {_CORRELATION})
        self._constants = plane.constants(self._stat_names)
        self._seen: dict[tuple[int, ...], int | None] = {}

    def read(self, line: Any, events: Iterable[tuple[Any, int, int]]) -> None:
        """Append the events of a line."""
        activities, stat_names = self._activities, self._stat_names
        starts, ends, correlations, kinds = activities.start, activities.end, activities.correlation, activities.kind
        for event, start, end in events:
            correlation, key, stats = 0, [event.metadata_id], []
            for stat in event.stats:
                name = stat_names.get(stat.metadata_id)
                if name == _CORRELATION:
                    correlation = stat.uint64_value or stat.int64_value
                elif name is not None:
                    key += (stat.metadata_id, stat.ref_value or integer(stat))
                    stats.append((name, stat))
            kind = self._kind(tuple(key), stats)
            if kind is not None:
                starts.append(start)
                ends.append(end)
                correlations.append(correlation if correlation < LIMIT else 0)
                kinds.append(kind)
        new = len(starts) - len(activities.stream)
        activities.device += [self._device] * new
        activities.stream += [line.id] * new

    def _kind(self, key: tuple[int, ...], stats: list[tuple[str, Any]]) -> int | None:
        """Return the index of an event's kind, or None if the event is not an activity.

        The key has the metadata ids of the event and its statistics, and their values. Texts are references.
        """
        if 0 in key:  # an inline text, which has no reference
            return self._new_kind(key[0], dict(stats))
        if key not in self._seen:
            self._seen[key] = self._new_kind(key[0], dict(stats))
        return self._seen[key]

    def _new_kind(self, number: int, stats: Mapping[str, Any]) -> int | None:
        stats = {**self._constants.get(number, {}), **stats}
        if not _OTHER.isdisjoint(stats):
            return None
        name = self._plane.names.get(number, "")
        details = " ".join(self._plane.text(stats[stat]) for stat in (_COPY, _MEMSET) if stat in stats)
        size = _BYTES.search(details)
        properties = (_copy_kind(name, stats), int(size[1]) if size else None, _pinned(details))
        kind = ActivityKind(name, *properties, self._operation(name, stats))
        return self._activities.kinds.setdefault(kind, len(self._activities.kinds))

    def _operation(self, name: str, stats: Mapping[str, Any]) -> str | None:
        """Return the operation that launched an activity, preferably with its name scopes, else the XLA instruction."""
        texts = {stat: self._plane.text(stats[stat]) for stat in ("name", "tf_op", "annotation") if stat in stats}
        compiled = self._instructions.operation(self._plane, stats) if "hlo_op" in stats else None
        scoped = texts.get("name") if "/" in texts.get("name", "") else None
        operation = scoped or compiled or texts.get("tf_op") or texts.get("annotation") or None
        if "/" not in (operation or ""):
            instruction = self._plane.text(stats["hlo_op"]) if "hlo_op" in stats else name * self._of_instructions
            operation = instruction.partition(" = ")[0].removeprefix("%") or operation
        if operation is not None:
            self._scopes.add(operation)
        return operation


def _copy_kind(name: str, stats: Mapping[str, Any]) -> str | None:
    """Return the kind of a copy or memset, None for a kernel: HtoD for ``MemcpyH2D``, memset for ``Memset``."""
    copy = _KIND.match(name)
    if copy and _DIRECTION.fullmatch(copy[1]):
        return copy[1].replace("2", "to")
    if copy or _COPY in stats:
        return "unknown"
    return "memset" if _MEMSET in stats or name.lower().startswith("memset") else None


def _pinned(details: str) -> bool | None:
    """Return whether the host memory of a copy is pinned, from ``kind_src:pageable kind_dst:device size:4 …``."""
    memory = set(_MEMORY.findall(details.lower()))
    return False if "pageable" in memory else "pinned" in memory or None


def _leaves(events: Iterable[tuple[Any, int, int]]) -> Iterator[tuple[Any, int, int]]:
    """Yield the events that do not contain other events."""
    ordered = sorted(events, key=lambda timed: (timed[1], -timed[2]))
    for here, after in zip(ordered, [*ordered[1:], None], strict=True):
        if after is None or after[1] >= here[2] or after[2] > here[2]:
            yield here
