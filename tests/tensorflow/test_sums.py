"""Sums that TensorFlow accumulates in a temporary variable: beside ranges their parts have an order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from commands import needs_recorder  # noqa: E402
from tensorflow.core.framework import graph_pb2  # noqa: E402
from tf_ranged import plain, ranged  # noqa: E402
from tf_recorded import needs_graphs, optimized, recorded  # noqa: E402

import annot  # noqa: E402
from annot.tf.graph_sums import execution_order, order_sums  # noqa: E402

pytestmark = [needs_recorder, needs_graphs]


@pytest.fixture(autouse=True)
def ranges_wanted() -> Iterator[None]:
    annot.enable()
    yield
    annot.enable(False)


def total(x: Any, put: Callable[..., Any]) -> Any:
    """The sum of branches of other lengths; its value depends on the order, as the parts are large and small."""
    parts = [x * 1e8, *(functools.reduce(lambda y, i: put(f"{n}.{i}", [y], tf.sin), range(n), x) for n in (7, 5, 3, 1))]
    return tf.raw_ops.AccumulateNV2(inputs=[*parts, -x * 1e8], shape=x.shape)


def parts_of(graph: Any) -> dict[str, list[str]]:
    """Return the parts of a sum, with those that each waits for."""
    parts = {node.name: list(node.input) for node in graph.node if node.op == "AssignAdd"}
    return {name: [text[1:] for text in inputs if text[1:] in parts] for name, inputs in parts.items()}


def test_the_parts_of_a_sum_wait_for_each_other(tmp_path: Path) -> None:
    x = tf.ones([64])

    def parts(put: Any) -> dict[str, list[str]]:
        run = tf.function(total)
        return next(found for found in map(parts_of, optimized(lambda: run(x, put))) if found)

    assert {tuple(before) for before in parts(plain).values()} == {()}
    found: list[dict[str, list[str]]] = []
    recorded(tmp_path, lambda: found.append(parts(ranged)))
    assert len(found[0]) == 6
    assert sorted(map(len, found[0].values())) == [0, 1, 1, 1, 1, 1]
    assert len({one for before in found[0].values() for one in before}) == 5, "it is one chain"


def test_such_a_sum_is_the_same_each_time(tmp_path: Path) -> None:
    x, sums = tf.random.stateless_uniform([1024], [1, 2]), []

    def body() -> None:
        run = tf.function(total)
        sums.extend(np.asarray(run(x, ranged)).tobytes() for _ in range(50))

    recorded(tmp_path, body)
    assert len(set(sums)) == 1


def accumulated(*parts: tuple[str, str]) -> Any:
    """A graph in which a sum has these parts, each with the node that it adds."""
    graph = graph_pb2.GraphDef()
    for name, op in (("sum", "TemporaryVariable"), ("zeros", "Const"), ("x", "Placeholder")):
        graph.node.add(name=name, op=op)
    graph.node.add(name="first", op="Assign", input=["sum", "zeros"])
    for name, source in (("short", "x"), ("long_0", "x"), ("long_1", "long_0")):
        graph.node.add(name=name, op="Neg", input=[source])
    for name, source in parts:
        graph.node.add(name=name, op="AssignAdd", input=["first", source])
    return graph


KINDS = ["Placeholder", "Sin", "Conv2D", "Sin", "Reshape", "Sin"]
# 0 makes 1, 2 and 3 ready; 4 follows 2 at once, and 5 follows 3.
SOURCES = [[], [0], [0], [0], [2], [3]]


@pytest.mark.parametrize(("threads", "order"), [(1, [0, 3, 5, 2, 4, 1]), (2, [0, 3, 1, 5, 2, 4])])
def test_the_order_is_that_of_an_executor(threads: int, order: list[int]) -> None:
    """A thread goes on with the last node that it made ready; another one takes the first."""
    assert execution_order(KINDS, SOURCES, threads) == order


@given(st.lists(st.sets(st.integers(0, 40), max_size=4), max_size=40), st.integers(1, 4))
def test_every_node_comes_once_and_after_what_it_waits_for(sources: list[set[int]], threads: int) -> None:
    before = [[one for one in wanted if one < i] for i, wanted in enumerate(sources)]
    kinds = [("Conv2D", "Sin", "Reshape")[i % 3] for i in range(len(before))]
    order = execution_order(kinds, before, threads)
    assert sorted(order) == list(range(len(before)))
    assert all(order.index(one) < order.index(i) for i, wanted in enumerate(before) for one in wanted)


def test_a_variable_of_the_user_is_left_alone() -> None:
    graph = accumulated(("a", "short"), ("b", "long_1"))
    next(node for node in graph.node if node.name == "sum").op = "VariableV2"
    order_sums(graph)
    assert parts_of(graph) == {"a": [], "b": []}
