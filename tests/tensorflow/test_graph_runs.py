"""Runs of graphs with ranges: sessions, threads, failures, XLA, and where there are no ranges."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from commands import needs_recorder  # noqa: E402
from tf_ranged import chain, plain, ranged, step, variables  # noqa: E402
from tf_recorded import counts, needs_graphs, recorded, same  # noqa: E402

import annot  # noqa: E402
from annot.tf import library  # noqa: E402

pytestmark = [needs_recorder, needs_graphs]


@pytest.fixture(autouse=True)
def ranges_wanted() -> Iterator[None]:
    annot.enable()
    yield
    annot.enable(False)


def test_a_session_that_is_fed_a_tensor_in_the_middle(tmp_path: Path) -> None:
    """What comes before it does not run, with ranges as without; a warning says that the graph has none."""

    def body() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None])
            middle = ranged("first", [x], tf.tanh)
            result = ranged("second", [middle], lambda x: x * 2.0 + 1.0)
            with pytest.warns(RuntimeWarning, match="fed a tensor that is not a placeholder"):
                assert session.run(result, {middle: [1.0, 2.0]}).tolist() == [3.0, 5.0]
            assert session.run(result, {x: [0.0]}).tolist() == [1.0]

    assert recorded(tmp_path, body).texts == ["first", "second"]


def test_a_failed_step_leaves_ranges_that_can_be_closed(tmp_path: Path) -> None:
    @tf.function
    def fails(x: Any) -> Any:
        return ranged("fails", [x], lambda x: tf.debugging.check_numerics(x, "broken") + 1.0)

    closed = []

    def body() -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
            fails(tf.constant(float("nan")))
        closed.append(library.close_all())
        assert same(fails(tf.constant(1.0)), tf.constant(2.0))

    captured = recorded(tmp_path, body)
    assert (captured.texts, closed) == (["fails", "fails"], [1])


def test_a_recorder_may_come_again(tmp_path: Path) -> None:
    """What was traced before has ranges in each recording, and none in between."""
    add = tf.function(lambda x: ranged("again", [x], lambda x: x + 1.0))
    one = tf.constant(1.0)
    add(one)
    for _ in range(2):
        assert recorded(tmp_path, lambda: add(one)).texts == ["again"]
        add(one)


def test_two_threads_run_the_same_graph(tmp_path: Path) -> None:
    weights, x = variables(2), tf.ones([3, 6])
    train = tf.function(step)
    wanted = train(x, weights, plain)
    results: list[bool] = []

    def work() -> None:
        results.extend(same(train(x, weights, ranged), wanted) for _ in range(50))

    def body() -> None:
        train(x, weights, ranged)
        in_threads(work, work)

    captured = recorded(tmp_path, body)
    assert results == [True] * 100
    assert counts(captured) == {f"layer{i}{sign}": 101 for i in range(2) for sign in ("", "'")}


def in_threads(*bodies: Any) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_trace_at_the_same_time(tmp_path: Path) -> None:
    """Each has the ranges of its own graph."""
    weights, x = variables(1), tf.ones([3, 6])
    wanted = tf.function(step)(x, weights, plain)
    results: list[bool] = []

    def work(name: str) -> None:
        for _ in range(5):
            train = tf.function(step)
            put = lambda _, tensors, work: ranged(name, tensors, work)  # noqa: E731
            results.extend(same(train(x, weights, put), wanted) for _ in range(2))

    captured = recorded(tmp_path, lambda: in_threads(*(lambda name=name: work(name) for name in "abc")))
    assert results == [True] * 30
    assert counts(captured) == {f"{name}{sign}": 10 for name in "abc" for sign in ("", "'")}


def test_a_range_that_this_process_does_not_know_opens_nothing(tmp_path: Path) -> None:
    """As in a graph that another process has made."""
    graph = tf.compat.v1.GraphDef()
    node = graph.node.add(name="foreign", op="AnnotRange")
    node.attr["S"].i = 0
    node.attr["close"].list.i.extend([10**6])
    node.attr["open"].list.i.extend([10**6 + 1, 0, 0])
    library.load()

    @tf.function
    def foreign(x: Any) -> Any:
        (operation,) = tf.graph_util.import_graph_def(graph, return_elements=["foreign"])
        with tf.control_dependencies([operation]):
            return x + 1.0

    captured = recorded(tmp_path, lambda: same(foreign(tf.constant(2.0)), tf.constant(3.0)) or pytest.fail("changed"))
    assert captured.texts == []


def test_a_graph_and_session_of_version_1(tmp_path: Path) -> None:
    """Each run that fetches what has ranges; each range ends before the run does."""

    def run(put: Any, between: Any) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None, 6])
            weights = [tf.random.stateless_normal([6, 6], [7, i]) for i in range(2)]
            y = chain(x, weights, put)
            gradients = tf.gradients(tf.reduce_sum(y), weights)
            results = []
            for _ in range(3):
                results.append(session.run(gradients, {x: [[1.0] * 6]}))
                between()
            return results

    def check() -> None:
        assert library.close_all() == 0

    wanted = run(plain, lambda: None)
    captured = recorded(tmp_path, lambda: same(run(ranged, check), wanted) or pytest.fail("changed"))
    assert counts(captured) == {f"layer{i}{sign}": 3 for i in range(2) for sign in ("", "'")}


def imported(tensor: tf.Tensor) -> tf.Tensor:
    """Return twice a tensor, computed by operations that TensorFlow creates without Python."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name="x")
        tf.add(x, x, name="twice")
    return tf.import_graph_def(graph.as_graph_def(), {"x:0": tensor}, ["twice:0"], name="other")[0]


@pytest.mark.parametrize("kind", ["tensor", "operation", "several", "string", "imported", "reference", "input"])
def test_every_kind_of_fetch_of_a_session(tmp_path: Path, kind: str) -> None:
    """And the last range has ended when the run returns."""

    def run(put: Any) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None])
            variable = tf.compat.v1.get_variable("v", initializer=tf.zeros([3]), use_resource=True)
            reference = tf.compat.v1.get_variable("r", initializer=tf.zeros([3]), use_resource=False)

            def work(x: Any) -> Any:
                return tf.tanh(x), variable.assign_add(x).op, tf.strings.as_string(x), tf.split(x, 3)

            tensor, operation, text, parts = put("work", [x], work)
            fetched = {
                "tensor": tensor, "operation": operation, "several": [*parts, tensor], "string": text,
                "imported": [tensor, imported(tensor)],
                "reference": [tensor, tf.compat.v1.assign(reference, tensor)],
                "input": [tensor, tf.exp(tensor)],
            }[kind]  # fmt: skip
            session.run(tf.compat.v1.global_variables_initializer())
            results = []
            for _ in range(2):
                found = session.run(fetched, {x: [1.0, 2.0, 3.0]})
                assert library.close_all() == 0
                results.append([] if found is None else found)
            return results, session.run(variable)

    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert captured.texts == ["work"] * 2


def test_no_range_under_xla(tmp_path: Path) -> None:
    weights, x = variables(2), tf.ones([3, 6])
    train = tf.function(step, jit_compile=True)
    captured = recorded(tmp_path, lambda: train(x, weights, ranged))
    assert captured.texts == []


def test_a_function_that_xla_takes_over(tmp_path: Path) -> None:
    """Its trace is the one that has ranges before and after."""
    weights, x = variables(2), tf.ones([3, 6])
    inner = tf.function(lambda x: step(x, weights, ranged))
    outer = tf.function(lambda x: inner(x), jit_compile=True)
    expected = step(x, weights, plain)

    def body() -> None:
        for function in (inner, outer, inner, outer):
            for one, other in zip(tf.nest.flatten(expected), tf.nest.flatten(function(x)), strict=True):
                tf.debugging.assert_near(one, other)

    captured = recorded(tmp_path, body)
    assert counts(captured) == {f"layer{i}{sign}": 2 for i in range(2) for sign in ("", "'")}
    assert inner.experimental_get_tracing_count() == 1


def test_without_the_graph_optimizers_there_is_a_warning(tmp_path: Path) -> None:
    """And no range, but for what runs eagerly."""
    weights, x = variables(1), tf.ones([3, 6])
    annot.emit.client.warn_once.cache_clear()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        with pytest.warns(RuntimeWarning, match="disable_meta_optimizer"):
            captured = recorded(tmp_path, lambda: tf.function(step)(x, weights, ranged))
        assert captured.texts == []
        assert recorded(tmp_path, lambda: step(x, weights, ranged)).texts == ["layer0", "layer0'"]
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def test_many_graphs_leave_no_ranges_behind(tmp_path: Path) -> None:
    """A function that is traced anew, again and again, has its own ranges each time."""
    weights, x = variables(1), tf.ones([3, 6])

    def body() -> None:
        for _ in range(20):
            tf.function(step)(x, weights, ranged)

    assert counts(recorded(tmp_path, body)) == {"layer0": 20, "layer0'": 20}
