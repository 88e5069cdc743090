"""The order of the sums that TensorFlow accumulates one part after the other, in whatever order they are ready.

Where memory is short, TensorFlow's memory optimizer has an ``AddN`` add its inputs to a temporary variable, and each
order rounds in its own way. Ranges change when a node is ready. So that they do not change a sum, its parts get the
order in which an executor with one thread reaches them, which a run without ranges mostly keeps to.
"""

from __future__ import annotations

import itertools
from typing import Any

__all__ = ["order_sums"]


def order_sums(graph: Any) -> None:
    """Have the parts of each sum in a temporary variable wait for each other.

    Args:
        graph: a GraphDef.
    """
    made = {node.name: node for node in graph.node if node.op in ("Assign", "TemporaryVariable")}
    sums: dict[str, list[int]] = {}
    for i, node in enumerate(graph.node):
        if node.op == "AssignAdd" and _is_temporary(made.get(node.input[0]), made):
            sums.setdefault(node.input[0], []).append(i)
    if not sums:
        return
    rank = {i: place for place, i in enumerate(_order(_sources(graph)))}
    for parts in sums.values():
        parts.sort(key=lambda i: rank.get(i, len(rank)))
        for before, after in itertools.pairwise(parts):
            graph.node[after].input.append(f"^{graph.node[before].name}")


def _is_temporary(node: Any, made: dict[str, Any]) -> bool:
    while node is not None and node.op == "Assign":
        node = made.get(node.input[0])
    return node is not None


def _sources(graph: Any) -> list[list[int]]:
    places = {node.name: i for i, node in enumerate(graph.node)}
    names = [{text.lstrip("^").partition(":")[0] for text in node.input} for node in graph.node]
    return [[places[name] for name in one if name in places] for one in names]


def _order(sources: list[list[int]]) -> list[int]:
    """Return the nodes as one thread runs them: of those that a node makes ready, the last one follows it."""
    missing = [len(one) for one in sources]
    consumers: list[list[int]] = [[] for _ in sources]
    for i, one in enumerate(sources):
        for source in one:
            consumers[source].append(i)
    ready = [i for i, count in enumerate(missing) if not count][::-1]
    order = []
    while ready:
        i = ready.pop()
        order.append(i)
        for consumer in consumers[i]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
    return order
