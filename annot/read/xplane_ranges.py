"""From the events of each thread to ranges: recorded ones, and those of the name scopes around operations.

A name scope has no event of its own. It becomes a range around the operations in it, one per level; operations that
follow each other inside the same recorded event share the levels that they have in common, so that a layer's range
lasts from the first of its operations to the end of the last, with what the framework did between them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import polars as pl

__all__ = ["Event", "Kind", "Ranges"]

_SCOPE: Final = "module"
_OPERATOR: Final = "operator"
_END_OF_TIME: Final = 1 << 62


@dataclass(slots=True, eq=False)
class Kind:
    """What one sort of event becomes.

    Args:
        text: of its range.
        role: of its range: operator, annotation, or None if it is certain that a user made it. Frameworks trace what
            they do in the same way as users annotate, so an annotation inside an operator is taken for an operator.
        operation: name in the file of the operation that it is, or that it launches; its scopes become ranges.
        launch: whether it only launches the operation; then it has ranges only where it lies in no event of an
            operation with the same scopes or, if it has none, of the same name.
    """

    text: str
    role: str | None = _OPERATOR
    operation: str | None = None
    launch: bool = False


Event: TypeAlias = tuple[int, int, int, Kind]
"""Start, end negated, a number that no other event of the thread has, and kind: in order of nesting when sorted."""


class _Frame:
    """A recorded event while the events inside it pass by."""

    __slots__ = ("around", "end", "label", "open", "reach", "rows", "runtime", "shares")

    def __init__(
        self, end: int, around: tuple[int, ...], runtime: bool, shares: bool = True, label: int | None = None
    ) -> None:
        self.end = end
        self.label = label
        self.around = around  # the scopes that it lies in, as numbers of labels
        self.runtime = runtime  # whether no code of the user runs in it
        self.shares = shares
        self.open: tuple[int, ...] = ()  # the scopes of the operation that was last in it, inside `around`
        self.rows: list[int] = []  # their ranges
        self.reach = 0  # where those end


class Ranges:
    """The ranges of a file, collected thread by thread.

    Args:
        levels: gives the texts of an operation's scopes from the outermost on.
        limit: more ranges than this are refused.
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
        """Add the events of one thread.

        Args:
            thread: number of the thread.
            events: in order of nesting.
            shares: whether operations that lie in no event may share the ranges of their scopes.

        Raises:
            OverflowError: there are more ranges than the limit allows.
        """
        stack = [_Frame(_END_OF_TIME, (), False, shares)]
        inside = stack[0]
        for place, (start, negative_end, _, kind) in enumerate(events, 1):
            end = -negative_end
            while inside.end < end:
                self._close(inside, 0)
                stack.pop()
                inside = stack[-1]
            label, scopes = self._known.get(kind) or self._learn(kind)
            if kind.launch and scopes == inside.around:
                if (
                    kind.text and not scopes and label != inside.label
                ):  # what the runtime does around it is no better a name
                    self._append(start, end, self._label(kind.text, "annotation") if inside.runtime else label)
                continue
            runtime = inside.runtime or kind.role == _OPERATOR
            if kind.operation is not None:
                self._open(start, end, scopes, inside)
            elif kind.role is None or not runtime:
                self._close(inside, 0)
            elif kind.role != _OPERATOR:
                label = self._label(kind.text, _OPERATOR)
            self._append(start, end, label)
            if place < len(events) and events[place][1] >= negative_end:  # the next may lie in it
                inside = _Frame(end, inside.around if kind.operation is None else scopes, runtime, label=label)
                stack.append(inside)
        for frame in stack:
            self._close(frame, 0)
        self._threads.extend([thread] * (len(self._starts) - len(self._threads)))
        if len(self) > self._limit:
            raise OverflowError(f"it would take {len(self):,} ranges")

    def table(self) -> pl.DataFrame:
        """Return the ranges as id, thread, start, end, text, role, where a lower id is further out."""
        labels = pl.DataFrame(list(self._labels), schema={"text": pl.String, "role": pl.String}, orient="row")
        columns = {"thread": self._threads, "start": self._starts, "end": self._ends}
        return pl.DataFrame(
            {name: pl.Series(column, dtype=pl.Int64) for name, column in columns.items()},
        ).with_columns(
            labels[pl.Series(self._texts, dtype=pl.Int64)].get_columns(),
            id=pl.int_range(len(self), dtype=pl.Int64),
        )  # fmt: skip

    def _learn(self, kind: Kind) -> tuple[int, tuple[int, ...]]:
        levels = () if kind.operation is None else self._levels(kind.operation)
        scopes = tuple(self._label(level, _SCOPE) for level in levels)
        known = self._known[kind] = (self._label(kind.text, kind.role), scopes)
        return known

    def _label(self, text: str, role: str | None) -> int:
        return self._labels.setdefault((text, role), len(self._labels))

    def _open(self, start: int, end: int, scopes: tuple[int, ...], inside: _Frame) -> None:
        """Open the ranges of an operation's scopes, but for those that are open around or before it."""
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
        """End the open ranges of scopes inside an event, but for the outermost ones."""
        for row in frame.rows[kept:]:
            self._ends[row] = frame.reach
        del frame.rows[kept:]
        frame.open = frame.open[:kept]

    def _append(self, start: int, end: int, label: int) -> None:
        self._starts.append(start)
        self._ends.append(end)
        self._texts.append(label)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many items two sequences have in common from the first on."""
    if one == other:
        return len(one)
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
