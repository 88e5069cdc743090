"""Rows of a comparison inside each other, and the rows at which changes took place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from annot.attribution.column_ops import NONE

Times: TypeAlias = tuple[float, ...]
"""Times of one row or node in each run (ns); 0: the run lacks it."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Rows of a comparison inside each other: the tree of the layer paths of all runs.

    Args:
        rows: the row of each node; -1: none.
        parents: the parent of each node; -1: none. A parent comes before its children.
    """

    rows: Sequence[int]
    parents: Sequence[int]

    def at_their_place(
        self, rows: Collection[int], own: Sequence[Times], is_place: Callable[[int, Times], bool]
    ) -> dict[int, Times]:
        """Return the rows to which times count, and these times.

        The self times of a layer count to the nearest returned row around it, or to its own. `is_place` decides from
        the times that would count to a row: its self times, and those of layers inside that count to no returned row.

        Args:
            rows: the rows that may be returned.
            own: self times of each node; 0 for a node without a row.
            is_place: whether a row with these times is returned.

        Example:
            >>> nesting = Nesting([0, 1], [-1, 0])  # a net with one layer
            >>> nesting.at_their_place([0, 1], [(70, 70), (30, 60)], lambda row, times: times[1] > 1.05 * times[0])
            {1: (30, 60)}
        """
        nodes_of: defaultdict[int, list[int]] = defaultdict(list)
        for node, row in enumerate(self.rows):
            nodes_of[row].append(node)
        left = list(own)
        kept: dict[int, Times] = {}
        candidates, done = set(rows), {NONE}
        for row in self._innermost_first():
            done.add(row)
            times = _sum(left[node] for node in nodes_of[row])
            if row in candidates and is_place(row, times):
                kept[row] = times
                continue
            for node in nodes_of[row]:
                if any(left[node]) and (above := self._above(node, done)) != NONE:
                    left[above] = _sum((left[above], left[node]))
        return kept

    def nearest(self, rows: Collection[int]) -> list[int]:
        """Return the row of each node among these rows: its own or the nearest around it; -1: none."""
        nearest: list[int] = []
        for row, parent in zip(self.rows, self.parents, strict=True):
            nearest.append(row if row in rows else NONE if parent == NONE else nearest[parent])
        return nearest

    def inside(self, rows: Collection[int]) -> set[int]:
        """Return the rows with a node inside one of these rows."""
        return {row for row, around in self._around(rows) if around}

    def inside_each(self) -> defaultdict[int, set[int]]:
        """Return the rows with a node inside each row, without the row itself."""
        inside: defaultdict[int, set[int]] = defaultdict(set)
        around: list[frozenset[int]] = []
        for row, parent in zip(self.rows, self.parents, strict=True):
            outer = around[parent] if parent != NONE else frozenset()
            around.append(outer if row == NONE or row in outer else outer | {row})
            for container in outer - {row, NONE}:
                inside[container].add(row)
        return inside

    def outermost(self) -> set[int]:
        """Return the rows with a node inside no other row."""
        return {row for row, around in self._around(set(self.rows) - {NONE}) if row != NONE and not around}

    def _around(self, rows: Collection[int]) -> Iterator[tuple[int, bool]]:
        """Yield the row of each node, and whether the node is inside one of these rows."""
        within: list[bool] = []
        for row, parent in zip(self.rows, self.parents, strict=True):
            within.append(parent != NONE and (within[parent] or self.rows[parent] in rows))
            yield row, within[-1]

    def _innermost_first(self) -> list[int]:
        """The rows, each after the rows inside it. Layers inside each other have any order."""
        inside: defaultdict[int, set[int]] = defaultdict(set)
        nearest: list[int] = []
        for row, parent in zip(self.rows, self.parents, strict=True):
            around = NONE if parent == NONE else nearest[parent]
            nearest.append(around if row == NONE else row)
            inside[around].add(nearest[-1])
        order, entered = [], set()
        stack = [(NONE, True)]
        while stack:
            row, enters = stack.pop()
            if not enters:
                order.append(row)
            elif row not in entered:
                entered.add(row)
                stack += [(row, False), *((inner, True) for inner in sorted(inside[row]))]
        return order[:-1]

    def _above(self, node: int, done: Collection[int]) -> int:
        """The nearest node around a node whose row is undecided; -1: none."""
        above = self.parents[node]
        while above != NONE and self.rows[above] in done:
            above = self.parents[above]
        return above


def _sum(times: Iterator[Times] | Sequence[Times]) -> Times:
    return tuple(map(sum, zip(*times, strict=True)))
