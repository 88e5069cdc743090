"""What happened on the host, by an XPlane file."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from annot import tag
from annot.profile import LATEST
from annot.read.xplane_hlo import Instructions
from annot.read.xplane_plane import LIMIT, Plane, decode, whole
from annot.read.xplane_ranges import Event, Kind
from annot.scopes import Scopes, is_operation

__all__ = ["Host"]

_CORRELATION: Final = "correlation_id"
_USES: Final = frozenset({_CORRELATION, "step_num", "hlo_op", "hlo_module", "program_id"})

# Frames of Python, memory (many, and no stretches of time), and flows.
_LEFT_OUT: Final = re.compile(r"\$.*|Memory(?:Deal|Al)location|ThreadpoolListener::.*|end: .*", re.DOTALL)
# Threads on which no code of the user runs, and events with names that only the frameworks use.
_RUNTIME_THREAD: Final = re.compile(r"(?:tf_|collective_ops).*", re.DOTALL)
_RUNTIME: Final = re.compile(
    r".*::.*|Pjit.*|TFE_.*|Eager.*|Executor.*|FunctionRun|SessionRun|RunGraph.*|TraceContext|tf\..*|convert_to_tensor|"
    r"Validate.*|ParseArguments|BlockUntilReady|BufferFrom.*|CopyTo.*|Mem[cC]py.*|Wait for .* holds|Handle input.*",
    re.DOTALL,
)
# Those of them that are many, and have no statistics to look at.
_PLAIN: Final = re.compile(r"Executor.*|Eager.*|TFE_.*|tf\..*|convert_to_tensor", re.DOTALL)
_NVTX: Final = "NVTX:"
_MOST_STEPS: Final = 1 << 63


class Host:
    """Events and launches on the host, plane by plane.

    Args:
        launched: which operation each correlation id belongs to, as the devices say.
        instructions: of the compiled programs.
        scopes: take note of the operations.
    """

    def __init__(self, launched: Mapping[int, str], instructions: Instructions, scopes: Scopes) -> None:
        self._launched, self._instructions, self._scopes = launched, instructions, scopes
        self._threads: dict[int, int] = {}
        self._operations: dict[str, Kind] = {}
        self._launching: dict[str, Kind] = {}
        self.events: list[list[Event]] = []
        """Of each thread, in no order."""
        self.launches: dict[str, list[Any]] = {"thread": [], "start": [], "end": [], "correlation": [], "name": []}
        self.steps = 0
        """How many events are steps of training."""
        self.lost = 0
        """How many events have times that cannot be."""

    def read(self, plane: Plane) -> None:
        """Add the events of a plane of the host."""
        uses = plane.uses(_USES)
        user = {number: self._kind(name, runtime=False) for number, name in plane.names.items()}
        runtime = {number: self._kind(name, runtime=True) for number, name in plane.names.items()}
        plain = frozenset(
            number for number, name in plane.names.items() if is_operation(name) or _PLAIN.fullmatch(name)
        )
        for line in plane.message.lines:
            kinds = runtime if _RUNTIME_THREAD.match(decode(line.name)) else user
            self._line(plane, line, kinds, uses, plain if uses else kinds.keys())

    def thread(self) -> int:
        """Return the number of a new thread that has no line."""
        self.events.append([])
        return len(self.events) - 1

    def _line(
        self,
        plane: Plane,
        line: Any,
        kinds: Mapping[int, Kind | None],
        uses: Mapping[int, str],
        plain: Container[int],
    ) -> None:
        if line.id not in self._threads:
            self._threads[line.id] = self.thread()
        events, base = self.events[self._threads[line.id]], line.timestamp_ns
        for event in line.events:
            number = event.metadata_id
            kind = kinds.get(number)
            if kind is None:
                continue
            offset = event.offset_ps
            start = base + offset // 1000
            end = base + (offset + event.duration_ps) // 1000
            if not -LATEST < start <= end < LATEST:
                self.lost += 1
                continue
            if number not in plain:
                stats = [(use, stat) for stat in event.stats if (use := uses.get(stat.metadata_id))]
                if stats:
                    kind = self._detailed(plane, kind, stats, start, end)
                    if kind is None:
                        continue
            events.append((start, -end, len(events), kind))
        launches = self.launches
        launches["thread"] += [self._threads[line.id]] * (len(launches["start"]) - len(launches["thread"]))

    def _kind(self, name: str, *, runtime: bool) -> Kind | None:
        if _LEFT_OUT.fullmatch(name):
            return None
        if name.startswith(_NVTX) or tag.parse(name) is not None:
            return Kind(name.removeprefix(_NVTX), None)
        if is_operation(name):
            return self._operation(name)
        return Kind(name) if runtime or _RUNTIME.fullmatch(name) else Kind(name, "annotation")

    def _operation(self, name: str, *, launch: bool = False) -> Kind:
        kinds = self._launching if launch else self._operations
        if name not in kinds:
            kinds[name] = Kind(self._scopes.add(name).name, operation=name, launch=launch)
        return kinds[name]

    def _detailed(
        self, plane: Plane, kind: Kind, stats: Sequence[tuple[str, Any]], start: int, end: int
    ) -> Kind | None:
        """Return what an event is by its statistics; None if it makes no range."""
        found = dict(stats)
        if _CORRELATION in found:
            return self._launch(kind.text, whole(found[_CORRELATION]), start, end)
        if "hlo_op" in found:
            return self._operation(self._instructions.operation(plane, found) or plane.text(found["hlo_op"]))
        if "step_num" in found and 0 <= (step := whole(found["step_num"])) < _MOST_STEPS:
            self.steps += 1
            return Kind(tag.format(tag.Tag(module=kind.text, phase="step", step=step)), None)
        return kind

    def _launch(self, name: str, correlation: int, start: int, end: int) -> Kind | None:
        if not -LIMIT < correlation < LIMIT:
            return None
        launches = self.launches
        launches["start"].append(start)
        launches["end"].append(end)
        launches["correlation"].append(correlation)
        launches["name"].append(name)
        operation = self._launched.get(correlation)
        return None if operation is None else self._operation(operation, launch=True)
