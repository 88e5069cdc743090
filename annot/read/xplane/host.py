"""Events and launches on the host in an XPlane file."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any, Final

from annot.labels import tag
from annot.labels.name_scopes import Scopes, is_operation
from annot.read.xplane.plane import LIMIT, Instructions, Plane, decode, integer
from annot.read.xplane.ranges import Event, Kind

__all__ = ["Host"]

_CORRELATION: Final = "correlation_id"
_STATS: Final = frozenset({_CORRELATION, "step_num", "hlo_op", "hlo_module", "program_id"})

# Python frames, memory events (frequent, without a duration) and flows.
_IGNORED: Final = re.compile(r"\$.*|Memory(?:Deal|Al)location|ThreadpoolListener::.*|end: .*", re.DOTALL)
# Threads of the runtime, which do not run user code, and event names of the frameworks.
_RUNTIME_THREAD: Final = re.compile(r"(?:tf_|collective_ops).*", re.DOTALL)
_RUNTIME: Final = re.compile(
    r".*::.*|Pjit.*|TFE_.*|Eager.*|Executor.*|FunctionRun|SessionRun|RunGraph.*|TraceContext|tf\..*|convert_to_tensor|"
    r"Validate.*|ParseArguments|BlockUntilReady|BufferFrom.*|CopyTo.*|Mem[cC]py.*|Wait for .* holds|Handle input.*",
    re.DOTALL,
)
# Frequent events of the frameworks without relevant statistics.
_PLAIN: Final = re.compile(r"Executor.*|Eager.*|TFE_.*|tf\..*|convert_to_tensor", re.DOTALL)
_NVTX: Final = "NVTX:"
_MOST_STEPS: Final = 1 << 63


class Host:
    """Events and launches on the host.

    `launched` has the operation of each correlation id in the planes of the devices. `scopes` receives the operations.
    """

    def __init__(self, launched: Mapping[int, str], instructions: Instructions, scopes: Scopes) -> None:
        self._launched, self._instructions, self._scopes = launched, instructions, scopes
        self._threads: dict[int, int] = {}
        self._operations: dict[tuple[str, bool], Kind] = {}  # by name, and whether the events launch the operation
        self.events: list[list[Event]] = []  # of each thread, unordered
        self.launches: dict[str, list[Any]] = {"thread": [], "start": [], "end": [], "correlation": [], "name": []}
        self.steps = 0  # number of training steps

    def read(self, plane: Plane) -> None:
        """Add the events of a host plane."""
        stat_names = plane.stat_names(_STATS)
        names = {number: name for number, name in plane.names.items() if not _IGNORED.fullmatch(name)}
        user = {number: self._kind(name, runtime=False) for number, name in names.items()}
        runtime = {number: self._kind(name, runtime=True) for number, name in names.items()}
        plain = frozenset(
            number for number, name in plane.names.items() if is_operation(name) or _PLAIN.fullmatch(name)
        )
        for line in plane.message.lines:
            kinds = runtime if _RUNTIME_THREAD.match(decode(line.name)) else user
            self._line(plane, line, kinds, stat_names, plain if stat_names else kinds.keys())

    def thread(self) -> int:
        """Add a thread without a line and return its index."""
        self.events.append([])
        return len(self.events) - 1

    def _line(
        self,
        plane: Plane,
        line: Any,
        kinds: Mapping[int, Kind],
        stat_names: Mapping[int, str],
        plain: Container[int],
    ) -> None:
        if line.id not in self._threads:
            self._threads[line.id] = self.thread()
        events = self.events[self._threads[line.id]]
        for event, start, end in plane.timed(line, kinds):
            number = event.metadata_id
            kind: Kind | None = kinds[number]
            if number not in plain:
                stats = {name: stat for stat in event.stats if (name := stat_names.get(stat.metadata_id))}
                kind = self._detailed(plane, kinds[number], stats, start, end) if stats else kind
            if kind is not None:
                events.append((start, -end, len(events), kind))
        launches = self.launches
        launches["thread"] += [self._threads[line.id]] * (len(launches["start"]) - len(launches["thread"]))

    def _kind(self, name: str, *, runtime: bool) -> Kind:
        if name.startswith(_NVTX) or tag.parse(name) is not None:
            return Kind(name.removeprefix(_NVTX), None)
        if is_operation(name):
            return self._operation(name)
        return Kind(name) if runtime or _RUNTIME.fullmatch(name) else Kind(name, "annotation")

    def _operation(self, name: str, *, launch: bool = False) -> Kind:
        key = name, launch
        if key not in self._operations:
            self._operations[key] = Kind(self._scopes.add(name).name, operation=name, launch=launch)
        return self._operations[key]

    def _detailed(self, plane: Plane, kind: Kind, values: Mapping[str, Any], start: int, end: int) -> Kind | None:
        """Return the kind of an event from its statistics, or None if the event does not become a range."""
        if _CORRELATION in values:
            return self._launch(kind.text, integer(values[_CORRELATION]), start, end)
        if "hlo_op" in values:
            return self._operation(self._instructions.operation(plane, values) or plane.text(values["hlo_op"]))
        if "step_num" in values and 0 <= (step := integer(values["step_num"])) < _MOST_STEPS:
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
