"""The operations themselves: what they pass on, when their ranges open and close, what gradients become of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from commands import needs_recorder  # noqa: E402
from tf_recorded import counts, only, recorded, same  # noqa: E402

from annot import emit  # noqa: E402
from annot.tf import ops  # noqa: E402

pytestmark = needs_recorder


@pytest.fixture(autouse=True)
def ranges_wanted():
    emit.enable()
    yield
    emit.enable(False)


def ranged(name: str, tensors: Any, work: Any, **options: Any) -> Any:
    """Do some work on tensors in the range `name`, with the backward range `name'`."""
    tensors, token = ops.begin(tensors, emit.event(name), emit.event(f"{name}'"), **options)
    outputs = work(*tensors)
    found = ops.finish(list(outputs) if isinstance(outputs, tuple) else [outputs], token)
    return tuple(found) if isinstance(outputs, tuple) else found[0]


def plain(_name: str, tensors: Any, work: Any) -> Any:
    return work(*tensors)


def variables(count: int, size: int = 6) -> list[Any]:
    return [tf.Variable(tf.random.stateless_normal([size, size], [7, i])) for i in range(count)]


def dense(x: Any, weight: Any) -> Any:
    return tf.tanh(x @ weight)


def chain(x: Any, weights: Any, put: Any) -> Any:
    for i, weight in enumerate(weights):
        x = put(f"layer{i}", [x, weight], dense)
    return x


def step(x: Any, weights: Any, put: Any, sources: Any = None) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(chain(x, weights, put) ** 2)
    return loss, tape.gradient(loss, weights if sources is None else sources)


def test_each_range_comes_once_a_step_in_a_graph(tmp_path: Path) -> None:
    weights, x = variables(5), tf.ones([3, 6])
    wanted = tf.function(step)(x, weights, plain)
    train = tf.function(step)

    def body() -> None:
        for _ in range(20):
            assert same(train(x, weights, ranged), wanted)

    seen = counts(recorded(tmp_path, body))
    assert seen == {f"layer{i}{sign}": 20 for i in range(5) for sign in ("", "'")}


def test_ranges_of_a_chain_follow_each_other(tmp_path: Path) -> None:
    weights, x = variables(4), tf.ones([3, 6])
    captured = recorded(tmp_path, lambda: tf.function(step)(x, weights, ranged))
    order = [f"layer{i}" for i in range(4)] + [f"layer{i}'" for i in reversed(range(4))]
    assert captured.texts == order
    assert all(one.end <= following.start for one, following in zip(captured.ranges, captured.ranges[1:], strict=False))


def test_eager_ranges_come_from_the_tape(tmp_path: Path) -> None:
    weights, x = variables(3), tf.ones([3, 6])
    wanted = step(x, weights, plain)
    captured = recorded(tmp_path, lambda: same(step(x, weights, ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["layer0", "layer1", "layer2", "layer2'", "layer1'", "layer0'"]


def test_a_gradient_that_is_none_stays_none(tmp_path: Path) -> None:
    """Zeros instead would reach the optimizer, and NaN where the unused branch has an infinite slope."""
    used, unused = variables(2)

    def work(x: Any, used: Any, unused: Any) -> Any:
        return x @ used, tf.sqrt(x * 0.0) @ used, tf.stop_gradient(x @ unused)

    def gradients(put: Any) -> Any:
        x = tf.ones([2, 6])
        with tf.GradientTape() as tape:
            tape.watch(x)
            first, _second, third = put("both", [x, used, unused], work)
            loss = tf.reduce_sum(first) + tf.reduce_sum(third)
        return tape.gradient(loss, [x, used, unused])

    eager, graph = gradients(plain), tf.function(gradients)
    assert eager[2] is None
    captured = recorded(tmp_path, lambda: (same(gradients(ranged), eager), same(graph(ranged), eager)) == (True, True) or pytest.fail("changed"))
    assert counts(captured) == {"both": 2, "both'": 2}
