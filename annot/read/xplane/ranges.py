"""Build ranges from the events of each thread: recorded events, and name scopes around operations.

XPlane files do not record name scopes as events. Each level of a name scope becomes a range around its operations.
Consecutive operations inside the same recorded event share the ranges of their common levels. The range of a layer
therefore lasts from the start of its first operation to the end of its last one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import polars as pl

__all__ = ["Event", "Kind", "Ranges"]

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
