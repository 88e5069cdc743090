"""Chains of layers: the paths from the whole run down to a layer, as a trie that can grow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import polars as pl

from annot.correlate.sweep import NONE

__all__ = ["Key", "Keys", "Nodes"]

Key: TypeAlias = tuple[str, str, str]
"""Layer, module class and phase: what a row of the layer table stands for."""


class Keys:
    """Small numbers for layers."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self.names: list[Key] = []
        """Layer, module and phase of each number."""

    def number(self, key: Key) -> int:
        """Return the number of a layer; the first time, that is a new one."""
        if key not in self._numbers:
            self._numbers[key] = len(self.names)
            self.names.append(key)
        return self._numbers[key]


class Nodes:
    """Numbered chains of keys; a chain's node comes after those of the chains it begins with."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.parents: list[int] = []
        """The node above each, -1 at the top."""
        self.keys: list[int] = []
        """The key that each node adds."""

    @classmethod
    def of(cls, parents: pl.Series, keys: pl.Series) -> Nodes:
        """Return the nodes that `annot.correlate.sweep.paths` found."""
        nodes = cls()
        nodes.parents, nodes.keys = parents.to_list(), keys.to_list()
        nodes._numbers = {pair: node for node, pair in enumerate(zip(nodes.parents, nodes.keys, strict=True))}
        return nodes

    def __len__(self) -> int:
        return len(self.parents)

    def extend(self, node: int, keys: Iterable[int]) -> int:
        """Return the node of the chain that goes on from another node (-1: the empty chain) with some keys."""
        for key in keys:
            if (node, key) not in self._numbers:
                self._numbers[node, key] = len(self.parents)
                self.parents.append(node)
                self.keys.append(key)
            node = self._numbers[node, key]
        return node

    def chain(self, node: int) -> list[int]:
        """Return the keys from the top down to a node.

        Example:
            >>> nodes = Nodes()
            >>> nodes.chain(nodes.extend(-1, [4, 7]))
            [4, 7]
        """
        keys = []
        while node != NONE:
            keys.append(self.keys[node])
            node = self.parents[node]
        return keys[::-1]

    def columns(self) -> tuple[pl.Series, pl.Series]:
        """Return parents and keys as Int32."""
        return pl.Series("parent", self.parents, pl.Int32), pl.Series("key", self.keys, pl.Int32)

    def outermost(self, groups: Sequence[int]) -> list[bool]:
        """Tell which nodes lie in no node of the same group, so that recursion counts once.

        Args:
            groups: small number of each node; -1 is no group, and never outermost.
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
