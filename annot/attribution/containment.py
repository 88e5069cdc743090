"""Layers of plain ranges: the ranges in unknown formats that a program opens itself.

The layer of a plain range is the path of the plain ranges around it on its thread: ``train › step # › forward``. Ranges
of other formats in between are left out of the path. Numbered siblings have one layer (see
`annot.labels.foreign.folded`). A range without a phase of its own has the phase of the plain range around it. A
range named step beside a forward or backward pass is the step of the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.layer_chains import Keys
from annot.labels.foreign import folded
from annot.labels.layer_path import INSIDE

__all__ = ["contained_keys"]

_DEEPEST: Final = 32
"""Plain ranges around each other that have a layer. Deeper ranges, as in profiles with leaked ranges, have none."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Path and phase of the plain ranges around a node, and their number."""

    path: str = ""
    phase: str = "other"
    depth: int = 0


def contained_keys(parent: pl.Series, key: pl.Series, labels: pl.DataFrame, keys: Keys) -> pl.Series:
    """Return the key of each range, with plain ranges named by their place.

    Args:
        parent: parent of each range in the tree, -1 at the top (Int32).
        key: key that each range adds to the path of its parent, -1: none (Int32).
        labels: label table of `annot.attribution.range_trees.Forest`.
        keys: all keys; those of the places are added.

    Returns:
        The key of each range (Int32). Plain ranges below the deepest level have none.
    """
    plain = frozenset(labels.filter("plain")["key"])
    if not plain:
        return key
    path, parents, node_key = column_ops.paths(parent, key)
    of_node = pl.Series("key", _keys_of_nodes(parents.to_list(), node_key.to_list(), plain, keys), pl.Int32)
    return pl.select(pl.when(key == column_ops.NONE).then(key).otherwise(of_node.gather(path))).to_series()


def _keys_of_nodes(parents: Sequence[int], node_keys: Sequence[int], plain: frozenset[int], keys: Keys) -> list[int]:
    """Return the key of each node. Nodes of one level and one place are siblings."""
    new_keys = list(node_keys)
    places: dict[int, _Place] = {column_ops.NONE: _Place()}
    for level in _levels(parents):
        siblings: dict[_Place, list[int]] = {}
        for node in level:
            around = places[parents[node]]
            if node_keys[node] in plain:
                siblings.setdefault(around, []).append(node)
            else:
                places[node] = around
        for around, nodes in siblings.items():
            named = [keys.names[node_keys[node]] for node in nodes]
            for node, place in zip(nodes, _placed(around, named), strict=True):
                places[node] = place
                deep = place.depth > _DEEPEST
                new_keys[node] = column_ops.NONE if deep else keys.number((place.path, "", place.phase))
    return new_keys


def _levels(parents: Sequence[int]) -> Iterable[list[int]]:
    """Return the nodes by their distance from the top. A parent comes before its children."""
    depths: list[int] = []
    levels: list[list[int]] = []
    for node, parent in enumerate(parents):
        depths.append(0 if parent == column_ops.NONE else depths[parent] + 1)
        if depths[node] == len(levels):
            levels.append([])
        levels[depths[node]].append(node)
    return levels


def _placed(around: _Place, siblings: Sequence[tuple[str, str, str]]) -> list[_Place]:
    """Return the places of plain siblings (layer, module, phase) inside a place."""
    if around.depth >= _DEEPEST:
        return [_Place(around.path, around.phase, _DEEPEST + 1)] * len(siblings)
    names = folded({name for name, _, _ in siblings})
    beside = any(phase in ("forward", "backward") for _, _, phase in siblings)
    return [
        _Place(
            (around.path + INSIDE if around.depth else "") + names.get(name, name),
            "optimizer" if beside and name.lower() == "step" else around.phase if phase == "other" else phase,
            around.depth + 1,
        )
        for name, _, phase in siblings
    ]
