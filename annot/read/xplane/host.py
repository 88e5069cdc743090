"""Events, launches and ranges on the host in an XPlane file: recorded events, and name scopes around operations.

XPlane files do not record name scopes as events. Each level of a name scope becomes a range around its operations.
Consecutive operations inside the same recorded event share the ranges of their common levels. The range of a layer
therefore lasts from the start of its first operation to the end of its last one.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import polars as pl

from annot.labels import tag
from annot.labels.name_scopes import Scopes, is_operation
from annot.read.xplane.plane import LIMIT, Instructions, Plane, decode, integer

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
_SCOPE: Final = "module"
_OPERATOR: Final = "operator"
_END_OF_TIME: Final = 1 << 62


@dataclass(slots=True, eq=False)
class Kind:
    """Text and role of the ranges of one kind of events."""

    text: str
    role: str | None = _OPERATOR
    """Operator, annotation, or None for a range of the user. Frameworks record their own events as annotations too, so
    that an annotation inside an operator becomes an operator."""
    operation: str | None = None
    """Name of the operation that the event runs or launches. Its name scopes become ranges."""
    launch: bool = False
    """Whether the event only launches the operation. It then gets ranges only outside events of operations with the
    same name scopes or, without name scopes, with the same name."""


Event: TypeAlias = tuple[int, int, int, Kind]
"""Start, negative end, a unique index in the thread, and kind. Sorted events are in the order of nesting."""


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


@dataclass(slots=True, eq=False)
class _Frame:
    """A recorded event while the events inside it are processed."""

    end: int
    around: tuple[int, ...]  # scopes around the event, as label indices
    runtime: bool  # whether the event belongs to the runtime
    shares: bool = True
    label: int | None = None
    open: tuple[int, ...] = ()  # scopes of its last operation inside `around`
    rows: list[int] = field(default_factory=list)  # rows of their ranges
    reach: int = 0  # end of these ranges


class Ranges:
    """The ranges of a file, collected thread by thread.

    `levels` returns the texts of an operation's scopes, outermost first. `limit` is the maximum number of ranges.
    """

    def __init__(self, levels: Callable[[str], Sequence[str]], limit: int) -> None:
        self._levels = levels
        self._limit = limit
        self._labels: dict[tuple[str, str | None], int] = {}
        self._known: dict[Kind, tuple[int, tuple[int, ...]]] = {}
        self._threads, self._starts, self._ends, self._texts = array("q"), array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, thread: int, events: Sequence[Event], *, shares: bool = False) -> None:
        """Add the events of one thread, in the order of nesting, or raise OverflowError above the limit.

        If `shares`, operations outside any event can share the ranges of their scopes.
        """
        stack = [_Frame(_END_OF_TIME, (), False, shares)]
        inside = stack[0]
        for following, (start, negative_end, _, kind) in enumerate(events, 1):
            end = -negative_end
            while inside.end < end:
                self._close(inside, 0)
                stack.pop()
                inside = stack[-1]
            label, scopes = self._known.get(kind) or self._learn(kind)
            if kind.launch and scopes == inside.around:
                # The operation is a better name than an event of the runtime around it.
                if kind.text and not scopes and label != inside.label:
                    self._append(start, end, self._label(kind.text, _SCOPE) if inside.runtime else label)
                continue
            runtime = inside.runtime or kind.role == _OPERATOR
            if kind.operation is not None:
                self._open(start, end, scopes, inside)
            elif kind.role is None or not runtime:
                self._close(inside, 0)
            elif kind.role != _OPERATOR:
                label = self._label(kind.text, _OPERATOR)
            self._append(start, end, label)
            if following < len(events) and events[following][1] >= negative_end:  # it can contain the next event
                inside = _Frame(end, inside.around if kind.operation is None else scopes, runtime, label=label)
                stack.append(inside)
        for frame in stack:
            self._close(frame, 0)
        self._threads.extend([thread] * (len(self._starts) - len(self._threads)))
        if len(self) > self._limit:
            raise OverflowError(f"it has {len(self):,} ranges, the limit is {self._limit:,}")

    def table(self) -> pl.DataFrame:
        """Return the ranges: id, thread, start (ns), end (ns), text, role. Outer ranges have smaller ids."""
        labels = pl.DataFrame(list(self._labels), schema={"text": pl.String, "role": pl.String}, orient="row")
        columns = {"thread": self._threads, "start": self._starts, "end": self._ends, "id": range(len(self))}
        table = pl.DataFrame({name: pl.Series(column, dtype=pl.Int64) for name, column in columns.items()})
        return table.hstack(labels[pl.Series(self._texts, dtype=pl.Int64)])

    def _learn(self, kind: Kind) -> tuple[int, tuple[int, ...]]:
        levels = () if kind.operation is None else self._levels(kind.operation)
        scopes = tuple(self._label(level, _SCOPE) for level in levels)
        labels = self._known[kind] = (self._label(kind.text, kind.role), scopes)
        return labels

    def _label(self, text: str, role: str | None) -> int:
        return self._labels.setdefault((text, role), len(self._labels))

    def _open(self, start: int, end: int, scopes: tuple[int, ...], inside: _Frame) -> None:
        """Open the ranges of an operation's scopes, except for those that are already open."""
        within = scopes[_common(scopes, inside.around) :]
        shared = _common(within, inside.open) if inside.shares else 0
        if shared < len(inside.open):
            self._close(inside, shared)
        for label in within[shared:]:
            inside.rows.append(len(self._starts))
            self._append(start, end, label)
        inside.open = within
        inside.reach = end

    def _close(self, frame: _Frame, kept: int) -> None:
        """End the open scope ranges inside an event, except for the `kept` outermost ones."""
        for row in frame.rows[kept:]:
            self._ends[row] = frame.reach
        del frame.rows[kept:]
        frame.open = frame.open[:kept]

    def _append(self, start: int, end: int, label: int) -> None:
        self._starts.append(start)
        self._ends.append(end)
        self._texts.append(label)


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return the length of the common prefix of two sequences."""
    different = (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return len(left) if left == right else next(different, min(len(left), len(right)))
