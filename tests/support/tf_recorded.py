"""Record TensorFlow programs, and compare their results with those of a run without ranges."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from captured import Captured, Range, capture
from tensorflow.python.eager import context

from annot import native
from annot.tf import library, operation_owners

needs_graphs = pytest.mark.skipif(native.emitter() is None, reason="without the C parts graphs have no ranges")
both = pytest.mark.parametrize(
    "graph", [pytest.param(True, marks=needs_graphs, id="graph"), pytest.param(False, id="eager")]
)

# Two logical CPUs for strategies with replicas. TensorFlow accepts them only before its first operation.
with contextlib.suppress(RuntimeError):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


def recorded(folder: Path, body: Callable[[], object]) -> Captured:
    """Run `body` under the recorder, and check that it closes every range itself."""

    def inside() -> None:
        body()
        assert library.close_all() == 0

    return capture(folder, inside)


@contextlib.contextmanager
def installed(*parts: Any) -> Iterator[None]:
    """Install parts of `emit_ranges` for the block, including their ranges in graphs."""
    with contextlib.ExitStack() as undo:
        undo.callback(operation_owners.remove, undo)
        undo.callback(library.switch, undo, on=False)
        operation_owners.install(undo)
        library.switch(undo, on=True)
        for part in parts:
            part.install()
            undo.callback(part.undo)
        yield


def optimized(function: Callable[[], object]) -> list[Any]:
    """Return the optimized graphs of a call."""
    with context.collect_graphs(optimized=True) as graphs:
        function()
    return list(graphs)


def earlier(graph: Any, node: Any) -> set[str]:
    """Return the names of all nodes of a graph that `node` depends on, directly or indirectly."""
    nodes, left = {one.name: one for one in graph.node}, [node]
    found: set[str] = set()
    while left:
        names = {text.lstrip("^").partition(":")[0] for text in left.pop().input} - found
        found |= names
        left += [nodes[name] for name in names]
    return found


def counts(captured: Captured) -> Counter[str]:
    """Count the ranges with each name."""
    return Counter(captured.texts)


def only(captured: Captured, text: str) -> Range:
    """Return the only range with this name."""
    (found,) = [one for one in captured.ranges if one.text == text]
    return found


def same(one: Any, other: Any) -> bool:
    """Return whether two nested structures have the same bits, and None at the same positions."""
    ones, others = tf.nest.flatten(one), tf.nest.flatten(other)
    return len(ones) == len(others) and all(map(_same_tensor, ones, others))


def _same_tensor(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, tf.IndexedSlices):
        return isinstance(other, tf.IndexedSlices) and same([one.values, one.indices], [other.values, other.indices])
    left, right = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    return bool(np.all(left == right)) if left.dtype == tf.string else left.numpy().tobytes() == right.numpy().tobytes()
