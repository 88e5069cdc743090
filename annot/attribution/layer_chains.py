"""Layer paths, from the outermost layer to the innermost, as a growing trie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import polars as pl

from annot.attribution.column_ops import NONE

__all__ = ["KEY", "Key", "Keys", "Nodes"]

KEY: Final = ("layer", "module", "phase")
"""Key columns of `annot.attribution.by_layer`."""

Key: TypeAlias = tuple[str, str, str]
"""Layer, module class and phase: the key of a row of the layer table."""


class Keys:
    """Dense ids of layers."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self.names: list[Key] = []
        """Layer, module and phase of each id."""

    def number(self, key: Key) -> int:
        """Return the id of a layer. A new layer gets the next id."""
        if key not in self._numbers:
            self._numbers[key] = len(self.names)
            self.names.append(key)
        return self._numbers[key]


class Nodes:
    """Nodes of the trie of layer paths. A node has a larger number than its parent."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.parents: list[int] = []
        """Parent of each node, -1 at the top."""
        self.keys: list[int] = []
        """Key that each node adds to the path of its parent."""

    @classmethod
    def of(cls, parents: pl.Series, keys: pl.Series) -> Nodes:
        """Return the nodes from the parents and keys of `annot.attribution.column_ops.paths`."""
        nodes = cls()
        nodes.parents, nodes.keys = parents.to_list(), keys.to_list()
        nodes._numbers = {pair: node for node, pair in enumerate(zip(nodes.parents, nodes.keys, strict=True))}
        return nodes

    def __len__(self) -> int:
        return len(self.parents)

    def extend(self, node: int, keys: Iterable[int]) -> int:
        """Return the node of the path of `node` (-1 for the empty path) followed by `keys`."""
        for key in keys:
            if (node, key) not in self._numbers:
                self._numbers[node, key] = len(self.parents)
                self.parents.append(node)
                self.keys.append(key)
            node = self._numbers[node, key]
        return node

    def chain(self, node: int) -> list[int]:
        """Return the keys of the path of a node, outermost first."""
        return [self.keys[above] for above in reversed(self.up(node, NONE))]

    def up(self, node: int, outer: int) -> list[int]:
        """Return a node and the nodes around it, up to `outer`, which is left out; -1: all nodes around it."""
        chain = []
        while node not in (outer, NONE):
            chain.append(node)
            node = self.parents[node]
        return chain

    def columns(self) -> tuple[pl.Series, pl.Series]:
        """Return parents and keys as Int32."""
        return pl.Series("parent", self.parents, pl.Int32), pl.Series("key", self.keys, pl.Int32)

    def outermost(self, groups: Sequence[int]) -> list[bool]:
        """Return which nodes are outside other nodes of their group, so that recursive layers count once.

        Group -1 means ungrouped, which is never outermost.
        """
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent].append(node)
        result = [False] * len(self)
        within = [0] * (max(groups, default=NONE) + 2)
        stack = [(node, True) for node in children[NONE]]
        while stack:
            node, enters = stack.pop()
            group = groups[node]
            if not enters:
                within[group] -= 1
                continue
            result[node] = group != NONE and not within[group]
            within[group] += 1
            stack.append((node, False))
            stack += [(child, True) for child in children[node]]
        return result
