"""The order of the sums that TensorFlow accumulates one part after the other, in whatever order they are ready.

Where memory is short, TensorFlow's memory optimizer has an ``AddN`` add its inputs to a temporary variable, and each
order rounds in its own way. Ranges change when a node is ready. So that they do not change a sum, its parts get the
order that a run without ranges mostly has: that of TensorFlow's executor (core/common_runtime/executor.cc), step by
step, with a few costs for a clock.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from annot.tf.shape import PASSED_ON, VALUES

__all__ = ["execution_order", "order_sums"]

_INLINE: Final = PASSED_ON | VALUES | {"ExpandDims", "Reshape", "Squeeze"}
"""Operations that the executor runs at once, on the thread that made them ready."""
_LONG: Final = ("Conv", "MatMul", "Pool")
# By these the order is that of ResNet50V2, ResNet101V2 and InceptionV3, as their traces on two cores show it; so it is
# with 5 to 10 for a long operation.
_COSTS: Final = {"inline": 0.05, "short": 1.0, "long": 6.0}


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
    order = execution_order([node.op for node in graph.node], _sources(graph), _threads())
    rank = {i: place for place, i in enumerate(order)}
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


def _threads() -> int:
    return tf.config.threading.get_inter_op_parallelism_threads() or len(os.sched_getaffinity(0))


def execution_order(kinds: Sequence[str], sources: Sequence[Sequence[int]], threads: int) -> list[int]:
    """Return the nodes of a graph in the order in which the threads of an executor finish them.

    A thread goes on with the last node that it made ready. The others wait in its queue, from which it takes the latest
    and a thread without work the earliest.

    Args:
        kinds: the type of each node.
        sources: the nodes that each waits for; what waits for a cycle is left out.
        threads: how many there are.
    """
    missing = [len(one) for one in sources]
    consumers: list[list[int]] = [[] for _ in sources]
    for i, one in enumerate(sources):
        for source in one:
            consumers[source].append(i)
    first = [i for i, count in enumerate(missing) if not count]
    queues = [first[thread::threads] for thread in range(threads)]
    at_once: list[list[int]] = [[] for _ in range(threads)]
    running: list[tuple[float, int, int]] = []
    order: list[int] = []
    idle, now = list(range(threads)), 0.0
    while True:
        taken = [(thread, _take(at_once[thread], queues[thread], queues)) for thread in idle]
        idle = [thread for thread, node in taken if node is None]
        for thread, node in taken:
            if node is not None:
                heapq.heappush(running, (now + _cost(kinds[node]), thread, node))
        if not running:
            return order
        now, thread, done = heapq.heappop(running)
        order.append(done)
        idle.append(thread)
        ready = []
        for consumer in consumers[done]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
        at_once[thread] += [i for i in ready if kinds[i] in _INLINE]
        ready = [i for i in ready if kinds[i] not in _INLINE]
        if ready and not at_once[thread]:
            at_once[thread].append(ready.pop())
        queues[thread] += ready


def _take(at_once: list[int], own: list[int], queues: list[list[int]]) -> int | None:
    """Return what a thread runs next."""
    if at_once:
        return at_once.pop(0)
    if own:
        return own.pop()
    longest = max(queues, key=len)
    return longest.pop(0) if longest else None


def _cost(kind: str) -> float:
    if kind in _INLINE:
        return _COSTS["inline"]
    return _COSTS["long" if any(part in kind for part in _LONG) else "short"]
