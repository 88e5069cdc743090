"""What the recorder saw of a TensorFlow program, and whether its results are the plain ones."""

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
from annot.tf import library, noting

needs_graphs = pytest.mark.skipif(native.fast() is None, reason="without the C parts graphs have no ranges")
both = pytest.mark.parametrize(
    "graph", [pytest.param(True, marks=needs_graphs, id="graph"), pytest.param(False, id="eager")]
)

# Two processors for strategies with replicas; possible only before TensorFlow has run anything.
with contextlib.suppress(RuntimeError):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


def recorded(folder: Path, body: Callable[[], object]) -> Captured:
    """Run `body` under the recorder; every range is closed when it returns, with nothing left to close."""

    def inside() -> None:
        body()
        assert library.close_all() == 0

    return capture(folder, inside)


@contextlib.contextmanager
def installed(*parts: Any) -> Iterator[None]:
    """Have parts of `emit_ranges` in place inside the block, and in graphs the ranges that they make."""
    with contextlib.ExitStack() as undo:
        undo.callback(noting.remove, undo)
        undo.callback(library.switch, undo, on=False)
        noting.install(undo)
        library.switch(undo, on=True)
        for part in parts:
            part.install()
            undo.callback(part.remove)
        yield


def optimized(function: Callable[[], object]) -> list[Any]:
    """The graphs of a call, as TensorFlow has optimized them."""
    with context.collect_graphs(optimized=True) as graphs:
        function()
    return list(graphs)


def earlier(graph: Any, node: Any) -> set[str]:
    """The names of all nodes of a graph that one waits for, however indirectly."""
    nodes, found, left = {one.name: one for one in graph.node}, set(), [node]
    while left:
        names = {text.lstrip("^").partition(":")[0] for text in left.pop().input} - found
        found |= names
        left += [nodes[name] for name in names]
    return found


def counts(captured: Captured) -> Counter[str]:
    """How many ranges each text has."""
    return Counter(captured.texts)


def only(captured: Captured, text: str) -> Range:
    """The one range of this text."""
    (found,) = [one for one in captured.ranges if one.text == text]
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two nests hold the same bits, and None in the same places."""
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
