"""Fix the order in which TensorFlow adds the parts of a sum to a temporary variable.

If memory is short, TensorFlow's memory optimizer lets an ``AddN`` add its inputs to a temporary variable as they become
ready. The rounding of the sum depends on that order, and ranges change when a node is ready. To keep the sum, this
module gives its parts the usual order of a run without ranges. It simulates TensorFlow's executor
(core/common_runtime/executor.cc) with a fixed cost per kind of operation.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from annot.tf.graph_order import PASSED_ON, VALUES, waiting

__all__ = ["execution_order", "order_sums"]

_INLINE: Final = PASSED_ON | VALUES | {"ExpandDims", "Reshape", "Squeeze"}
"""Operations that the executor runs immediately, on the thread that made them ready."""
_LONG: Final = ("Conv", "MatMul", "Pool")


def order_sums(graph: Any) -> None:
    """Make the additions to each temporary variable of a GraphDef wait for each other, by control inputs."""
    by_name = {node.name: node for node in graph.node if node.op in ("Assign", "TemporaryVariable")}
    sums: dict[str, list[int]] = {}
    for i, node in enumerate(graph.node):
        if node.op == "AssignAdd" and _is_temporary(by_name.get(node.input[0]), by_name):
            sums.setdefault(node.input[0], []).append(i)
    if not sums:
        return
    index = {node.name: i for i, node in enumerate(graph.node)}
    names = [{text.lstrip("^").partition(":")[0] for text in node.input} for node in graph.node]
    sources = [[index[name] for name in one if name in index] for one in names]
    threads = tf.config.threading.get_inter_op_parallelism_threads() or len(os.sched_getaffinity(0))
    order = execution_order([node.op for node in graph.node], sources, threads)
    rank = {node: i for i, node in enumerate(order)}
    for parts in sums.values():
        parts.sort(key=lambda i: rank.get(i, len(rank)))
        for before, after in itertools.pairwise(parts):
            graph.node[after].input.append(f"^{graph.node[before].name}")


def _is_temporary(node: Any, by_name: dict[str, Any]) -> bool:
    while node is not None and node.op == "Assign":
        node = by_name.get(node.input[0])
    return node is not None


def execution_order(kinds: Sequence[str], sources: Sequence[Sequence[int]], threads: int) -> list[int]:
    """Return the nodes of a graph in the order in which the threads of an executor finish them.

    A thread continues with the last node that it made ready. The other nodes wait in its queue. The thread takes the
    latest node from its own queue; an idle thread takes the earliest node from the longest queue. Nodes that wait for a
    cycle are left out. `kinds` has the operation type of each node, `sources` the nodes that each node waits for.
    """
    missing = [len(one) for one in sources]
    consumers = waiting(sources)
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
        for consumer in consumers[done]:
            missing[consumer] -= 1
        ready = [consumer for consumer in consumers[done] if not missing[consumer]]
        at_once[thread] += [i for i in ready if kinds[i] in _INLINE]
        ready = [i for i in ready if kinds[i] not in _INLINE]
        if ready and not at_once[thread]:
            at_once[thread].append(ready.pop())
        queues[thread] += ready


def _take(at_once: list[int], own: list[int], queues: list[list[int]]) -> int | None:
    """Remove and return the node that a thread runs next; None if all queues are empty."""
    if at_once:
        return at_once.pop(0)
    if own:
        return own.pop()
    longest = max(queues, key=len)
    return longest.pop(0) if longest else None


def _cost(kind: str) -> float:
    # With these costs the order matches traces of ResNet50V2, ResNet101V2 and InceptionV3 on two cores. Values from 5
    # to 10 for a long operation give the same order.
    if kind in _INLINE:
        return 0.05
    return 6.0 if any(part in kind for part in _LONG) else 1.0
