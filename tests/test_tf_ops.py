"""The operations themselves: what they pass on, when their ranges open and close, what gradients become of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from commands import needs_recorder  # noqa: E402
from tf_recorded import counts, recorded, same  # noqa: E402

from annot import emit  # noqa: E402
from annot.tf import operations, ops  # noqa: E402

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
    captured = recorded(
        tmp_path,
        lambda: (same(gradients(ranged), eager), same(graph(ranged), eager)) == (True, True) or pytest.fail("changed"),
    )
    assert counts(captured) == {"both": 2, "both'": 2}


def test_the_gradient_of_the_weights_lies_in_the_range_where_no_input_needs_one(tmp_path: Path) -> None:
    """And neither does anybody compute the gradient of that input."""
    weights, x = variables(1), tf.ones([3, 6])
    train = tf.function(step)
    captured = recorded(tmp_path, lambda: train(x, weights, ranged))
    assert captured.texts == ["layer0", "layer0'"]
    graph = train.get_concrete_function(x, weights, ranged).graph
    (closing,) = [op for op in graph.get_operations() if op.type == "AnnotEnd" and "gradient_tape" in op.name]
    assert _products(_before(closing)) == _products(_before(*(tensor.op for tensor in graph.outputs)))
    assert len(_products(_before(closing))) == 2  # forward, and the gradient of the weight


def _products(operations: set[Any]) -> set[str]:
    return {op.name for op in operations if op.type == "MatMul"}


def _before(*operations: Any) -> set[Any]:
    found, pending = set(operations), list(operations)
    while pending:
        one = pending.pop()
        for source in (*(tensor.op for tensor in one.inputs), *one.control_inputs):
            if source not in found:
                found.add(source)
                pending.append(source)
    return found


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


@pytest.mark.parametrize("graph", [True, False])
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


@pytest.mark.parametrize("graph", [True, False])
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


@pytest.mark.parametrize("graph", [True, False])
def test_gradients_of_one_output_after_the_other(tmp_path: Path, graph: bool) -> None:
    x = tf.constant([2.0, 3.0])

    def each(put: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            outputs = put("two", [x], lambda x: (x * x, tf.sin(x)))
        return [tape.gradient(one, x) for one in outputs]

    run = tf.function(each) if graph else each
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"two": 1, "two'": 2}


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
        return outer.gradient(loss, weight)

    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"work": 1, "work'": 1}


def test_work_without_outputs_closes_its_range(tmp_path: Path) -> None:
    @tf.function
    def aside(x: Any) -> Any:
        (x,), token = ops.begin([x], emit.event("aside"))
        assert ops.finish([], token) == []
        return x + 1.0

    assert recorded(tmp_path, lambda: aside(tf.constant(1.0))).texts == ["aside"]


@pytest.mark.parametrize("graph", [True, False])
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


def test_jacobian_and_vectorized_map(tmp_path: Path) -> None:
    weights, x = variables(1), tf.ones([2, 6])

    def work(put: Any) -> Any:
        with tf.GradientTape() as tape:
            y = chain(x, weights, put)
        return tape.jacobian(y, weights[0]), tf.vectorized_map(lambda row: put("row", [row], tf.sin), x)

    run = tf.function(work)
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"layer0": 1, "layer0'": 1, "row": 1}
    assert same(work(ranged)[0], work(plain)[0])  # of an eager tape


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


def test_sparse_gradients_stay_sparse(tmp_path: Path) -> None:
    table = tf.Variable(tf.random.stateless_normal([9, 4], [1, 2]))
    weight = tf.Variable(tf.random.stateless_normal([9, 4], [3, 4]))

    def lookup(put: Any) -> Any:
        with tf.GradientTape() as tape:
            y = put("lookup", [table, weight], lambda table, weight: tf.gather(table, [1, 5]) * weight[:2])
        return tape.gradient(y, [table, weight])

    for run in (lookup, tf.function(lookup)):
        wanted = run(plain)
        captured = recorded(
            tmp_path, lambda run=run, wanted=wanted: same(run(ranged), wanted) or pytest.fail("changed")
        )
        assert captured.texts == ["lookup", "lookup'"]


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


@pytest.mark.parametrize("graph", [True, False])
def test_forward_mode_derivatives(tmp_path: Path, graph: bool) -> None:
    weights, x = variables(2), tf.ones([3, 6])

    def derivative(put: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x) * 2.0) as accumulator:
            y = chain(x, weights, put)
        return y, accumulator.jvp(y)

    run = tf.function(derivative) if graph else derivative
    wanted = run(plain)
    captured = recorded(tmp_path, lambda: same(run(ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"layer0": 1, "layer1": 1}


@pytest.mark.parametrize("graph", [True, False])
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
