"""Nesting of layers by their ranges: the path of a layer does not say where it was called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from annot.attribution import column_ops
from annot.attribution.attribute import Attribution
from annot.util.weak_keys import once_for_each

__all__ = ["LayerNesting", "nested_layers"]

_Layer: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LayerNesting:
    """The nesting of layers, each a path and a module class, in all phases.

    Args:
        parents: parent of each node of the layer paths, -1 at the top.
        layers: layer of each node.
        nodes: nodes of each layer with calls or GPU activities; ranges that cross others have none.
    """

    parents: Sequence[int]
    layers: Sequence[_Layer]
    nodes: Mapping[_Layer, Sequence[int]]

    def around(self, layer: _Layer) -> Iterator[_Layer]:
        """Yield the layers that contain all calls and GPU activities of a layer, innermost first.

        Example:
            >>> nesting = LayerNesting([-1, 0, -1], [("", "Net"), ("fc", "Linear"), ("loss", "Loss")],
            ...                        {("fc", "Linear"): [1], ("loss", "Loss"): [2]})
            >>> [list(nesting.around(layer)) for layer in (("fc", "Linear"), ("loss", "Loss"))]
            [[('', 'Net')], []]
        """
        nodes = self.nodes[layer]
        node = self.parents[nodes[0]]
        while node != column_ops.NONE:
            outer = self.layers[node]
            if outer != layer and all(self._is_inside(one, outer) for one in nodes):
                yield outer
            node = self.parents[node]

    def _is_inside(self, node: int, outer: _Layer) -> bool:
        node = self.parents[node]
        while node != column_ops.NONE and self.layers[node] != outer:
            node = self.parents[node]
        return node != column_ops.NONE


@once_for_each
def nested_layers(attribution: Attribution) -> LayerNesting:
    """Return the nesting of the layers of an attribution, in its selected steps."""
    forest, table = attribution.forest, attribution.nodes
    used = column_ops.fold(table["parent"], table["calls"] + table["kernels"] + table["copies"]) > 0
    names = [(layer, module) for layer, module, _ in forest.keys.names]
    layers = [names[key] for key in forest.nodes.keys]
    nodes: dict[_Layer, list[int]] = {}
    for node in used.arg_true():
        nodes.setdefault(layers[node], []).append(node)
    return LayerNesting(forest.nodes.parents, layers, nodes)
