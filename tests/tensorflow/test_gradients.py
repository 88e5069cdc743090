"""Gradients of work with ranges: their values, and when the ranges open and close."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from commands import needs_recorder  # noqa: E402
from tf_ranged import chain, dense, plain, ranged, step, variables  # noqa: E402
from tf_recorded import both, counts, earlier, needs_graphs, optimized, recorded, same  # noqa: E402

from annot.emit import client  # noqa: E402

pytestmark = needs_recorder


@pytest.fixture(autouse=True)
def ranges_wanted() -> Iterator[None]:
    """Decorators come before the recorder in these tests."""
    client.enable()
    yield
    client.enable(False)


def test_eager_ranges_come_from_the_tape(tmp_path: Path) -> None:
    weights, x = variables(3), tf.ones([3, 6])
    wanted = step(x, weights, plain)
    captured = recorded(tmp_path, lambda: same(step(x, weights, ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["layer0", "layer1", "layer2", "layer2'", "layer1'", "layer0'"]
    assert all(one.nested for one in captured.ranges)
    assert all(one.end <= following.start for one, following in itertools.pairwise(captured.ranges))


@both
def test_a_gradient_that_is_none_stays_none(tmp_path: Path, graph: bool) -> None:
    """Zeros instead would reach the optimizer, and NaN where the unused branch has an infinite slope."""
    used, unused = variables(2)

    def work(x: Any, used: Any, unused: Any) -> Any:
        return x @ used, tf.sqrt(x * 0.0) @ used, tf.stop_gradient(x @ unused)

    def gradients(put: Any) -> Any:
        x = tf.ones([2, 6])
        with tf.GradientTape() as tape:
            tape.watch(x)
            first, _second, third = put("both", [x, used, unused], work)
            loss = tf.reduce_sum(first**2) + tf.reduce_sum(third)
        return *tape.gradient(loss, [x, used, unused]), loss

    run = tf.function(gradients) if graph else gradients
    wanted = run(plain)
    assert wanted[2] is None
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["both", "both'"]


@needs_graphs
def test_the_gradient_of_the_weights_lies_in_the_range_where_no_input_needs_one(tmp_path: Path) -> None:
    """And neither does anybody compute the gradient of that input."""
    weights, x = variables(1), tf.ones([3, 6])
    train, graphs = tf.function(step), []
    captured = recorded(tmp_path, lambda: graphs.extend(optimized(lambda: train(x, weights, ranged))))
    assert captured.texts == ["layer0", "layer0'"]
    (graph,) = [one for one in graphs if any(node.op == "AnnotRange" for node in one.node)]
    products = {node.name for node in graph.node if node.op == "MatMul"}
    assert len(products) == 2  # forward, and the gradient of the weight
    last = max((earlier(graph, node) for node in graph.node if node.attr["close"].list.i), key=len)
    assert products <= last


@both
def test_a_backward_range_begins_with_its_gradient(tmp_path: Path, graph: bool) -> None:
    """And not as soon as something in it can be computed from the forward alone, as here the cosine."""
    x = tf.constant([[2.0, 3.0]])

    def gradient(x: Any, put: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = put("sine", [x], tf.sin)
            loss = tf.reduce_sum(put("product", [y], lambda y: tf.matmul(y, y, transpose_a=True)) ** 2)
        return loss, tape.gradient(loss, x)

    run = tf.function(gradient) if graph else gradient
    wanted = run(x, plain)
    captured = recorded(tmp_path, lambda: same(run(x, ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["sine", "product", "product'", "sine'"]
    if not graph:  # in a graph, the operation that closes a range runs on any thread, maybe after what follows
        assert all(one.end <= following.start for one, following in itertools.pairwise(captured.ranges))


@both
def test_gradients_of_gradients(tmp_path: Path, graph: bool) -> None:
    weights, x = variables(2), tf.ones([3, 6])

    def penalty(put: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(chain(x, weights, put))
            slope = inner.gradient(y, x)
            loss = y + tf.reduce_sum(slope**2)
        return outer.gradient(loss, weights)

    run = tf.function(penalty) if graph else penalty
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert {"layer0", "layer1", "layer0'", "layer1'"} == set(captured.texts)
    assert counts(captured)["layer0"] == 1


@both
def test_a_persistent_tape_has_a_backward_range_for_each_gradient(tmp_path: Path, graph: bool) -> None:
    weights, x = variables(2), tf.ones([3, 6])

    def twice(put: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            y = chain(x, weights, put)
            losses = tf.reduce_sum(y), tf.reduce_sum(y**2)
        return [tape.gradient(loss, weights) for loss in losses]

    run = tf.function(twice) if graph else twice
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"layer0": 1, "layer1": 1, "layer0'": 2, "layer1'": 2}


@both
def test_gradients_of_one_output_after_the_other(tmp_path: Path, graph: bool) -> None:
    x = tf.constant([2.0, 3.0])

    def each(put: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            outputs = put("two", [x], lambda x: (tf.tanh(x), tf.nn.softplus(x)))
        return outputs, [tape.gradient(one, x) for one in outputs]

    run = tf.function(each) if graph else each
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"two": 1, "two'": 2}


@both
def test_a_backward_range_begins_with_the_gradient_of_the_loss(tmp_path: Path, graph: bool) -> None:
    """Which is computed outside of all ranges."""
    x = tf.constant([[2.0, 3.0]])

    def gradient(x: Any, put: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(put("softplus", [tf.matmul(x, x, transpose_a=True)], tf.nn.softplus) ** 2)
        return loss, tape.gradient(loss, x)

    run = tf.function(gradient) if graph else gradient
    wanted = run(x, plain)
    captured = recorded(tmp_path, lambda: same(run(x, ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["softplus", "softplus'"]
    forward, backward = captured.ranges
    assert (forward.start if graph else forward.end) <= backward.start


@needs_graphs
def test_a_gradient_through_another_gradient_of_the_same_work(tmp_path: Path) -> None:
    """The backward range must not wait for what is computed from its own results."""
    x, weight = tf.constant([2.0, 3.0]), tf.Variable([5.0, 7.0])

    @tf.function
    def run(put: Any) -> Any:
        beside = []

        def work(x: Any, weight: Any) -> Any:
            beside.append(weight * 3.0)
            return x * x

        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = put("work", [x, weight], work)
            loss = tf.reduce_sum(beside.pop() * inner.gradient(y, x))
        return y, outer.gradient(loss, weight)

    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"work": 1, "work'": 1}


@both
def test_gradients_of_some_weights_close_what_they_open(tmp_path: Path, graph: bool) -> None:
    """As when one of two networks is trained: the other's weights are on the tape, but nobody asks for them."""
    weights, x = variables(3), tf.ones([3, 6])
    run = tf.function(step) if graph else step
    wanted = run(x, weights, plain, weights[0])

    def body() -> None:
        for _ in range(3):
            assert same(run(x, weights, ranged, weights[0]), wanted)

    captured = recorded(tmp_path, body)
    assert counts(captured) == {f"layer{i}{sign}": 3 for i in range(3) for sign in ("", "'")}


@needs_graphs
def test_a_tape_around_a_function(tmp_path: Path) -> None:
    """TensorFlow builds the gradient of the graph later, from the operations."""
    weights, x = variables(2), tf.ones([3, 6])
    forward = tf.function(chain)

    def gradients(put: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(x, weights, put))
        return tape.gradient(loss, weights)

    wanted = gradients(plain)
    captured = recorded(tmp_path, lambda: same(gradients(ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["layer0", "layer1", "layer1'", "layer0'"]


@needs_graphs
def test_jacobian_and_vectorized_map(tmp_path: Path) -> None:
    weights, x = variables(1), tf.ones([2, 6])

    def work(put: Any) -> Any:
        with tf.GradientTape() as tape:
            y = chain(x, weights, put)
        return tape.jacobian(y, weights[0]), tf.vectorized_map(lambda row: put("row", [row], tf.sin), x)

    run = tf.function(work)
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured)["layer0"] == 1  # what is vectorized has no range
    assert same(work(ranged)[0], work(plain)[0])  # of an eager tape


@both
def test_sparse_gradients_stay_sparse(tmp_path: Path, graph: bool) -> None:
    table = tf.Variable(tf.random.stateless_normal([9, 4], [1, 2]))
    weight = tf.Variable(tf.random.stateless_normal([9, 4], [3, 4]))

    def lookup(put: Any) -> Any:
        with tf.GradientTape() as tape:
            y = put("lookup", [table, weight], lambda table, weight: tf.gather(table, [1, 5]) * weight[:2])
        return tape.gradient(y, [table, weight])

    run = tf.function(lookup) if graph else lookup
    wanted = run(plain)
    assert isinstance(wanted[0], tf.IndexedSlices)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["lookup", "lookup'"]


@both
def test_forward_mode_derivatives(tmp_path: Path, graph: bool) -> None:
    weights, x = variables(2), tf.ones([3, 6])

    def derivative(put: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x) * 2.0) as accumulator:
            y = chain(x, weights, put)
        return y, accumulator.jvp(y)

    run = tf.function(derivative) if graph else derivative
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    found = counts(captured)  # TensorFlow computes the derivatives from gradients, which have ranges
    assert (found["layer0"], found["layer1"]) == (1, 1)


@both
def test_work_that_is_computed_again_for_its_gradient(tmp_path: Path, graph: bool) -> None:
    weights, x = variables(2), tf.ones([3, 6])

    def gradients(put: Any) -> Any:
        again = tf.recompute_grad(lambda x: put("layer", [x, weights[0]], dense))
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(again(x) @ weights[1])
        return loss, tape.gradient(loss, [x, *weights])

    run = tf.function(gradients) if graph else gradients
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"layer": 2, "layer'": 1}
