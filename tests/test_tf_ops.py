"""The operations themselves: what they pass on, when their ranges open and close, what gradients become of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from commands import needs_recorder  # noqa: E402
from tf_ranged import chain, dense, plain, ranged, step, variables  # noqa: E402
from tf_recorded import counts, recorded, same  # noqa: E402

from annot import emit  # noqa: E402
from annot.tf import operations, ops  # noqa: E402

pytestmark = needs_recorder


@pytest.fixture(autouse=True)
def ranges_wanted():
    emit.enable()
    yield
    emit.enable(False)


def test_each_range_comes_once_a_step_in_a_graph(tmp_path: Path) -> None:
    weights, x = variables(5), tf.ones([3, 6])
    wanted = tf.function(step)(x, weights, plain)
    train = tf.function(step)

    def body() -> None:
        for _ in range(500):
            assert same(train(x, weights, ranged), wanted)

    seen = counts(recorded(tmp_path, body))
    assert seen == {f"layer{i}{sign}": 500 for i in range(5) for sign in ("", "'")}


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


def test_tensors_of_every_kind_pass(tmp_path: Path) -> None:
    values = [
        tf.constant(1.5, tf.float16), tf.constant([2, 3], tf.bfloat16), tf.constant([[4.0]], tf.float64),
        tf.zeros([0, 3]), tf.constant([1, 2], tf.int32), tf.constant(3, tf.int64), tf.constant([True]),
        tf.constant(["a", "b"]), tf.constant(1 + 2j, tf.complex64), tf.constant([5], tf.uint8),
        tf.constant([1, -1], tf.int8),
    ]  # fmt: skip

    @tf.function
    def first_of(*tensors: Any) -> Any:
        return ranged("all", tensors, lambda *inside: inside)

    def body() -> None:
        for turn in range(len(values)):  # each is once the one that goes through the start operation
            turned = values[turn:] + values[:turn]
            assert same(list(first_of(*turned)), turned)

    assert counts(recorded(tmp_path, body)) == {"all": len(values)}


def test_work_on_integers_only_has_its_range(tmp_path: Path) -> None:
    double = tf.function(lambda x: ranged("integers", [x], lambda x: x * 2))
    captured = recorded(tmp_path, lambda: same(double(tf.constant([4])), tf.constant([8])) or pytest.fail("changed"))
    assert captured.texts == ["integers"]


def test_handles_and_variants_are_left_as_they_are(tmp_path: Path) -> None:
    @tf.function
    def total(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True).write(0, x)
        flow = ranged("variant", [array.flow, x], lambda flow, x: (flow, x + 1.0))
        return flow[1] + array.stack()[0]

    captured = recorded(tmp_path, lambda: same(total(tf.constant(2.0)), tf.constant(5.0)) or pytest.fail("changed"))
    assert captured.texts == ["variant"]


def test_shapes_are_known_behind_the_operations() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 5]), tf.TensorSpec([]), tf.TensorSpec([None, None, 2])])
    def shapes(*tensors: Any) -> Any:
        inside, token = ops.begin(tensors, emit.event("shapes"), emit.event("shapes'"))
        outside = ops.finish(inside, token)
        assert [tensor.shape.as_list() for tensor in (*inside, *outside)] == 2 * [[None, 5], [], [None, None, 2]]
        return outside

    shapes.get_concrete_function()


def test_operations_are_pure() -> None:
    """A stateful one would keep alive what nobody asks for."""
    x = tf.ones([2, 6])
    weights = variables(1)
    graph = tf.function(step).get_concrete_function(x, weights, ranged).graph
    found = {op.type: op.op_def.is_stateful for op in graph.get_operations() if op.type.startswith("Annot")}
    assert found == {"AnnotStart": False, "AnnotGate": False, "AnnotEnd": False}


def test_what_nobody_asks_for_is_not_computed_and_has_no_range(tmp_path: Path) -> None:
    @tf.function
    def half(x: Any) -> Any:
        ranged("unused", [x], tf.math.log)
        return ranged("used", [x], lambda x: x + 1.0)

    assert recorded(tmp_path, lambda: half(tf.constant(-1.0))).texts == ["used"]


def test_one_output_of_several_opens_and_closes_the_range(tmp_path: Path) -> None:
    @tf.function
    def second(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            _first, result = ranged("two", [x], lambda x: (x * 2.0, x * x))
        return tape.gradient(result, x)

    captured = recorded(tmp_path, lambda: same(second(tf.constant(3.0)), tf.constant(6.0)) or pytest.fail("changed"))
    assert captured.texts == ["two", "two'"]


def test_work_without_outputs_closes_its_range(tmp_path: Path) -> None:
    @tf.function
    def aside(x: Any) -> Any:
        (x,), token = ops.begin([x], emit.event("aside"))
        assert ops.finish([], token) == []
        return x + 1.0

    assert recorded(tmp_path, lambda: aside(tf.constant(1.0))).texts == ["aside"]


def test_loops_and_branches(tmp_path: Path) -> None:
    weights = variables(2)

    def work(x: Any, put: Any) -> Any:
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                x = put("loop", [x, weights[0]], dense)
            x = tf.cond(
                tf.reduce_sum(x) < 1e9, lambda: put("yes", [x, weights[1]], dense), lambda: put("no", [x], tf.sin)
            )
            x = tf.map_fn(lambda row: put("map", [row], tf.cos), x)
            loss = tf.reduce_sum(x)
        return tape.gradient(loss, weights)

    run, x = tf.function(work), tf.ones([2, 6])
    wanted = run(x, plain)
    captured = recorded(tmp_path, lambda: same(run(x, ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"loop": 3, "loop'": 3, "yes": 1, "yes'": 1, "map": 2, "map'": 2}


def test_a_failed_step_leaves_ranges_that_can_be_closed(tmp_path: Path) -> None:
    @tf.function
    def fails(x: Any) -> Any:
        return ranged("fails", [x], lambda x: tf.debugging.check_numerics(x, "broken"))

    closed = []

    def body() -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
            fails(tf.constant(float("nan")))
        closed.append(ops.close_open_ranges())

    captured = recorded(tmp_path, body)
    assert (captured.texts, closed) == (["fails"], [1])


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
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    captured = recorded(tmp_path, body)
    assert results == [True] * 100
    assert counts(captured) == {f"layer{i}{sign}": 101 for i in range(2) for sign in ("", "'")}


def test_a_text_that_this_process_does_not_know_opens_nothing(tmp_path: Path) -> None:
    """As in a graph that another process has made."""

    @tf.function
    def foreign(x: Any) -> Any:
        token, (x,) = operations.start([x], [], "text\x1fdomain\x1f1\x1f0x00000000")
        return operations.end([x + 1.0], token, [])[1][0]

    captured = recorded(tmp_path, lambda: same(foreign(tf.constant(2.0)), tf.constant(3.0)) or pytest.fail("changed"))
    assert captured.texts == []


def test_a_graph_and_session_of_version_1(tmp_path: Path) -> None:
    def run(put: Any) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None, 6])
            weights = [tf.random.stateless_normal([6, 6], [7, i]) for i in range(2)]
            y = chain(x, weights, put)
            gradients = tf.gradients(tf.reduce_sum(y), weights)
            return [session.run(gradients, {x: [[1.0] * 6]}) for _ in range(3)]

    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {f"layer{i}{sign}": 3 for i in range(2) for sign in ("", "'")}


def test_no_operation_under_xla(tmp_path: Path) -> None:
    weights, x = variables(2), tf.ones([3, 6])
    train = tf.function(step, jit_compile=True)
    captured = recorded(tmp_path, lambda: train(x, weights, ranged))
    assert captured.texts == []


def test_a_function_that_xla_takes_over_is_traced_without_operations(tmp_path: Path) -> None:
    """Each of its two traces is kept, whichever is called in between."""
    weights, x = variables(2), tf.ones([3, 6])
    inner = tf.function(lambda x: step(x, weights, ranged))
    outer = tf.function(lambda x: inner(x), jit_compile=True)
    expected = step(x, weights, plain)
    traces: list[int] = []

    def body() -> None:
        for function in (inner, outer, inner, outer):
            for one, other in zip(tf.nest.flatten(expected), tf.nest.flatten(function(x)), strict=True):
                tf.debugging.assert_near(one, other)
            traces.append(inner.experimental_get_tracing_count())

    captured = recorded(tmp_path, body)
    assert counts(captured) == {f"layer{i}{sign}": 2 for i in range(2) for sign in ("", "'")}
    assert traces == [1, 2, 2, 2]


def test_fused_operations_stay_fused_within_a_range() -> None:
    def conv(x: Any, put: Any) -> Any:
        kernel, bias = tf.ones([3, 3, 2, 4]), tf.ones([4])
        return put("conv", [x], lambda x: tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)))

    assert _fused(conv, ranged) == _fused(conv, plain) == 1


def _fused(work: Any, put: Any) -> int:
    """How many fused convolutions run, as TensorFlow's optimizer left them."""
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [1, 8, 8, 2])
        session.run(work(x, put), {x: [[[[1.0] * 2] * 8] * 8]}, options=options, run_metadata=metadata)
    return sum("FusedConv2D" in node.op for graph in metadata.partition_graphs for node in graph.node)
