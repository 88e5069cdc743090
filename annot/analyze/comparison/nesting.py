"""Rows of a comparison inside each other, and the rows at which changes took place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from annot.attribution.column_ops import NONE

Times: TypeAlias = tuple[float, float]
"""Times in two profiles (ns); 0: the profile lacks the row."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Layer paths of one profile with their times.

    Args:
        rows: the row of each node; -1: none, and the node has no self time.
        parents: the parent of each node; -1: none. A parent comes before its children.
        own: self time of each node (ns).
    """

    rows: Sequence[int]
    parents: Sequence[int]
    own: Sequence[float]


@dataclass(frozen=True, slots=True)
class Nesting:
    """Rows of a comparison inside each other.

    Args:
        trees: the layer paths of both profiles.
    """

    trees: tuple[Tree, Tree]

    def at_their_place(self, rows: Collection[int], is_place: Callable[[int, Times], bool]) -> dict[int, Times]:
        """Return the rows to which times count, and these times.

        The self times of a layer count to the nearest returned row around it, or to its own. `is_place` decides from
        the times that would count to a row: its self times, and those of layers inside that count to no returned row.

        Args:
            rows: the rows that may be returned.
            is_place: whether a row with these times is returned.

        Example:
            >>> nodes = ([0, 1], [-1, 0])  # a net with one layer
            >>> nesting = Nesting((Tree(*nodes, own=[70, 30]), Tree(*nodes, own=[70, 60])))
            >>> nesting.at_their_place([0, 1], lambda row, times: times[1] > 1.05 * times[0])
            {1: (30, 60)}
        """
        of_row = [_nodes_by_row(tree) for tree in self.trees]
        left = [list(tree.own) for tree in self.trees]
        kept: dict[int, Times] = {}
        candidates, done = set(rows), {NONE}
        for row in self._innermost_first():
            done.add(row)
            before, after = (sum(own[node] for node in nodes[row]) for own, nodes in zip(left, of_row, strict=True))
            if row in candidates and is_place(row, (before, after)):
                kept[row] = before, after
                continue
            for tree, own, nodes in zip(self.trees, left, of_row, strict=True):
                for node in nodes[row]:
                    if (above := _above(tree, node, done)) != NONE:
                        own[above] += own[node]
        return kept

    def inside(self, rows: Collection[int]) -> set[int]:
        """Return the rows with a node inside one of these rows."""
        return {row for row, around in self._around(rows) if around}

    def outermost(self) -> set[int]:
        """Return the rows with a node inside no other row."""
        every = {row for tree in self.trees for row in tree.rows} - {NONE}
        return {row for row, around in self._around(every) if row != NONE and not around}

    def _around(self, rows: Collection[int]) -> Iterator[tuple[int, bool]]:
        """Yield the row of each node, and whether the node is inside one of these rows."""
        for tree in self.trees:
            within: list[bool] = []
            for row, parent in zip(tree.rows, tree.parents, strict=True):
                within.append(parent != NONE and (within[parent] or tree.rows[parent] in rows))
                yield row, within[-1]

    def _innermost_first(self) -> list[int]:
        """The rows, each after the rows inside it. Layers inside each other have any order."""
        inside: defaultdict[int, set[int]] = defaultdict(set)
        for tree in self.trees:
            nearest: list[int] = []
            for row, parent in zip(tree.rows, tree.parents, strict=True):
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


def _nodes_by_row(tree: Tree) -> defaultdict[int, list[int]]:
    nodes: defaultdict[int, list[int]] = defaultdict(list)
    for node, row in enumerate(tree.rows):
        nodes[row].append(node)
    return nodes


def _above(tree: Tree, node: int, done: Collection[int]) -> int:
    """The nearest node around a node whose row is undecided; -1: none."""
    above = tree.parents[node]
    while above != NONE and tree.rows[above] in done:
        above = tree.parents[above]
    return above
