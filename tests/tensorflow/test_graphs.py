"""Ranges in graphs: when they open and close, what they leave as it is, and where there are none."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from captured import Range  # noqa: E402
from commands import needs_recorder  # noqa: E402
from tf_ranged import chain, dense, plain, ranged, step, variables  # noqa: E402
from tf_recorded import counts, earlier, needs_graphs, only, optimized, recorded, same  # noqa: E402

import annot  # noqa: E402
from annot.tf import end, library, operation_owners, start  # noqa: E402

pytestmark = [needs_recorder, needs_graphs]


@pytest.fixture(autouse=True)
def ranges_wanted() -> Iterator[None]:
    annot.enable()
    yield
    annot.enable(False)


def test_each_range_comes_once_a_step(tmp_path: Path) -> None:
    weights, x = variables(5), tf.ones([3, 6])
    wanted = tf.function(step)(x, weights, plain)
    train = tf.function(step)

    def body() -> None:
        for _ in range(500):
            assert same(train(x, weights, ranged), wanted)

    seen = counts(recorded(tmp_path, body))
    assert seen == {f"layer{i}{sign}": 500 for i in range(5) for sign in ("", "'")}


def test_ranges_of_a_chain_follow_each_other(tmp_path: Path) -> None:
    """They begin in order: the graph does not order the end of a range and the next operation."""
    weights, x = variables(4), tf.ones([3, 6])
    captured = recorded(tmp_path, lambda: tf.function(step)(x, weights, ranged))
    order = [f"layer{i}" for i in range(4)] + [f"layer{i}'" for i in reversed(range(4))]
    assert captured.texts == order


def test_ranges_lie_where_their_operations_are(tmp_path: Path) -> None:
    """Seen from ranges that operations of the work make themselves."""

    def marked(text: str, tensor: Any) -> Any:
        def mark(value: Any) -> Any:
            with annot.trace(text):
                return value

        return tf.ensure_shape(tf.numpy_function(mark, [tensor], tf.float32), [3])

    @tf.function
    def run(x: Any) -> Any:
        x = marked("before", x)
        x = ranged("work", [x], lambda x: marked("second", marked("first", x) + 1.0))
        return marked("after", x)

    captured = recorded(tmp_path, lambda: run(tf.ones([3])))
    assert captured.texts == ["before", "work", "first", "second", "after"]
    before, work, first, second, after = captured.ranges
    assert before.end <= work.start
    assert work.start <= first.start <= second.end <= work.end
    assert second.end <= after.start  # the graph does not order the end of the range and what follows


@pytest.mark.parametrize(
    "value",
    [
        tf.constant(1.5, tf.float16), tf.constant([2, 3], tf.bfloat16), tf.constant([[4.0]], tf.float64),
        tf.zeros([0, 3]), tf.constant([1, 2], tf.int32), tf.constant(3, tf.int64), tf.constant([5], tf.uint8),
        tf.constant([1, -1], tf.int8), tf.constant(1 + 2j, tf.complex64), tf.constant(["a", "b"]), tf.constant([True]),
    ],
    ids=lambda value: value.dtype.name,
)  # fmt: skip
def test_tensors_of_every_kind_pass(tmp_path: Path, value: Any) -> None:
    """Work on integers, and on text, has its range too."""

    def work(x: Any) -> Any:
        return tf.concat([tf.reshape(x, [-1])] * 2, 0)

    run = tf.function(lambda x: ranged("work", [x], work))
    captured = recorded(tmp_path, lambda: same(run(value), work(value)) or pytest.fail("changed"))
    assert captured.texts == ["work"]


def test_tensor_arrays_are_left_as_they_are(tmp_path: Path) -> None:
    @tf.function
    def total(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[]).write(0, x)
        y = ranged("array", [array.flow, x], lambda flow, x: array.write(1, x + 1.0).stack())
        return tf.reduce_sum(y)

    captured = recorded(tmp_path, lambda: same(total(tf.constant(2.0)), tf.constant(5.0)) or pytest.fail("changed"))
    assert captured.texts == ["array"]


def test_a_traced_graph_holds_no_operation_of_annot() -> None:
    """Nor does it have other operations, or other names, than without."""
    x, weights = tf.ones([2, 6]), variables(2)

    def operations(put: Any) -> list[tuple[str, str]]:
        graph = tf.function(step).get_concrete_function(x, weights, put).graph
        return [(one.type, one.name) for one in graph.get_operations()]

    assert operations(ranged) == operations(plain)


def test_what_is_optimized_has_only_control_edges_more(tmp_path: Path) -> None:
    """Every node has the operation, attributes and inputs that it has without."""
    x, weights = tf.ones([2, 6]), variables(3)

    def nodes(put: Any) -> dict[str, Any]:
        run = tf.function(step)
        found = {}
        for graph in optimized(lambda: run(x, weights, put)):
            for node in graph.node:
                inputs = [text for text in node.input if not text.startswith("^")]
                attributes = {name: value.SerializeToString() for name, value in node.attr.items()}
                found[node.name] = node.op, inputs, attributes, node.device
        return found

    wanted, found = nodes(plain), {}
    recorded(tmp_path, lambda: found.update(nodes(ranged)))
    own = [name for name, node in found.items() if node[0] == "AnnotRange"]
    assert own
    assert not any(found[name][1] for name in own)
    assert {name: node for name, node in found.items() if name not in own} == wanted


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
            _first, result = ranged("two", [x], lambda x: (x * 2.0, tf.tanh(x)))
        return result, tape.gradient(result, x)

    x = tf.constant(3.0)
    wanted = tf.tanh(x), 1 - tf.tanh(x) ** 2
    captured = recorded(tmp_path, lambda: same(second(x), wanted) or pytest.fail("changed"))
    assert captured.texts == ["two", "two'"]


def test_work_without_outputs_has_its_range(tmp_path: Path) -> None:
    """As that of an operation which is there for what it does."""
    counter = tf.Variable(1.0)

    @tf.function
    def aside(x: Any) -> Any:
        _, context = start(x, "aside", "work")
        counter.assign_add(x)
        end(None, context)
        return x + 1.0

    assert recorded(tmp_path, lambda: aside(tf.constant(1.0))).texts == ["aside"]
    assert float(counter) == 2.0


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
        return loss, tape.gradient(loss, weights)

    run, x = tf.function(work), tf.ones([2, 6])
    wanted = run(x, plain)
    captured = recorded(tmp_path, lambda: same(run(x, ranged), wanted) or pytest.fail("changed"))
    assert counts(captured) == {"loop": 3, "loop'": 3, "yes": 1, "yes'": 1, "map": 2, "map'": 2}


def test_a_range_around_a_loop_and_a_branch(tmp_path: Path) -> None:
    """It holds all iterations; which branch is taken does not matter."""
    weights = variables(1)

    def work(x: Any, weight: Any) -> Any:
        x = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, ranged("inside", [x, weight], dense)), [0, x])[1]
        return tf.cond(tf.reduce_sum(x) < 0.0, lambda: tf.exp(x), lambda: ranged("taken", [x], tf.sin))

    def gradients(x: Any, put: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(put("around", [x, weights[0]], work) ** 2)
        return loss, tape.gradient(loss, weights)

    wanted = tf.function(lambda x: gradients(x, plain))
    run, inputs = tf.function(lambda x: gradients(x, ranged)), [tf.ones([2, 6]), -tf.ones([2, 6])]
    expected = [wanted(x) for x in inputs]
    results: list[Any] = []
    captured = recorded(tmp_path, lambda: results.extend(map(run, inputs)))
    assert same(results, expected)
    found = counts(captured)
    assert (found["around"], found["around'"], found["inside"], found["inside'"]) == (2, 2, 6, 6)
    assert found["taken"] == found["taken'"] == 1
    for one in [one for one in captured.ranges if one.text == "inside"]:
        around = [whole for whole in captured.ranges if whole.text == "around"]
        assert any(whole.start <= one.start and one.end <= whole.end for whole in around)


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_branches_of_the_same_names(tmp_path: Path, chosen: int) -> None:
    """The one that is taken has its range, and no other."""
    weights, x = variables(1), tf.ones([3, 6])

    @tf.function  # type: ignore[untyped-decorator]
    def work(x: Any, index: Any) -> Any:
        branches = [functools.partial(ranged, text, [x, weights[0]], dense) for text in ("zero", "one")]
        return tf.switch_case(index, [*branches, lambda: x])

    captured = recorded(tmp_path, lambda: work(x, tf.constant(chosen)))
    assert captured.texts == [["zero"], ["one"], []][chosen]


def test_functions_of_the_same_names(tmp_path: Path) -> None:
    weights, x = variables(1), tf.ones([3, 6])
    one, two = (
        tf.function(lambda x, text=text: ranged(text, [x, weights[0]], dense), autograph=False)
        for text in ("one", "two")
    )
    captured = recorded(tmp_path, lambda: tf.function(lambda x: two(one(x)))(x))
    assert captured.texts == ["one", "two"]


@pytest.mark.parametrize("inline", [True, False])
def test_a_function_that_is_called_twice_has_its_ranges_twice(tmp_path: Path, inline: bool) -> None:
    """One that TensorFlow does not inline has none: it optimizes that on a thread of its own, while it runs."""
    weights, x = variables(1), tf.ones([3, 6])

    def program(put: Any) -> Any:
        attributes = {} if inline else {"_noinline": True}
        inner = tf.function(lambda x: put("inner", [x, weights[0]], dense), experimental_attributes=attributes)
        return tf.function(lambda x: inner(inner(x)))

    wanted, run = program(plain)(x), program(ranged)
    captured = recorded(tmp_path, lambda: same(run(x), wanted) or pytest.fail("changed"))
    assert captured.texts == ["inner", "inner"] * inline
    assert all(one.end <= other.start for one, other in itertools.pairwise(captured.ranges))


@pytest.mark.parametrize("traced_first", [True, False])
def test_a_graph_that_is_not_recorded_has_no_ranges(tmp_path: Path, traced_first: bool) -> None:
    """A function that was traced before annot records operations, also if a recorded one has the same names."""
    weights, x = variables(2), tf.ones([3, 6])
    recorded_one, other = (tf.function(functools.partial(chain, weights=weights, put=put)) for put in (ranged, plain))

    def body() -> None:
        for function in (other, recorded_one) if traced_first else (recorded_one, other):
            graph = function.get_concrete_function(x).graph
            if function is other and operation_owners.graphs.get(graph) is not None:
                del operation_owners.graphs[graph]  # recorded because an earlier test uses `trace`
        assert same(other(x), recorded_one(x))

    assert recorded(tmp_path, body).texts == ["layer0", "layer1"]


def test_functions_whose_operations_have_the_same_names(tmp_path: Path) -> None:
    """The one that runs first need not be the one that was traced last."""
    weights, x = variables(1), tf.ones([3, 6])
    functions = [
        tf.function(lambda x, name=name: step(x, weights, lambda _, tensors, work: ranged(name, tensors, work)))
        for name in "ab"
    ]

    def body() -> None:
        traced = [function.get_concrete_function(x) for function in functions]
        for function in traced:
            function(x)

    assert recorded(tmp_path, body).texts == ["a", "a'", "b", "b'"]


def test_overlapping_starts(tmp_path: Path) -> None:
    """A range may begin in one and end in the next."""

    @tf.function
    def run(x: Any, weight: Any) -> Any:
        x, first = start(x, "first", "work")
        x = dense(x, weight)
        x, second = start(x, "second", "work")
        x = end(dense(x, weight), first)
        return end(dense(x, weight), second)

    (weight,), x = variables(1), tf.ones([3, 6])
    wanted = tf.function(lambda x: dense(dense(dense(x, weight), weight), weight))(x)
    captured = recorded(tmp_path, lambda: same(run(x, weight), wanted) or pytest.fail("changed"))
    assert captured.texts == ["first", "second"]
    first, second = captured.ranges
    assert first.start <= second.start <= first.end <= second.end


def test_a_start_without_an_end_ends_with_its_graph(tmp_path: Path) -> None:
    """And says nothing of the graphs after it."""
    (weight,), x = variables(1), tf.ones([3, 6])

    @tf.function
    def unended(x: Any) -> Any:
        x, _ = start(x, "unended", "work")
        return dense(x, weight)

    following = tf.function(lambda x: dense(x, weight))

    def body() -> None:
        unended(x)
        following(x)
        following(x)

    assert recorded(tmp_path, body).texts == ["unended"]


def test_fused_operations_stay_fused() -> None:
    """Within a range, and across two."""

    def convolution(x: Any, put: Any) -> Any:
        kernel, bias = tf.ones([3, 3, 2, 4]), tf.ones([4])
        x = put("conv", [x], lambda x: tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
        return put("relu", [x], tf.nn.relu)

    def fused(put: Any) -> int:
        run = tf.function(lambda x: convolution(x, put))
        graphs = optimized(lambda: run(tf.ones([1, 8, 8, 2])))
        (names,) = [[node.op for node in graph.node] for graph in graphs]
        assert "Relu" not in names
        return sum("FusedConv2D" in name for name in names)

    assert fused(ranged) == fused(plain) == 1


def test_the_close_waits_for_all_of_the_work(tmp_path: Path) -> None:
    """In the graph itself, not as an executor happens to go through it."""
    weights, x = variables(2), tf.ones([3, 6])

    def two(x: Any, first: Any, second: Any) -> Any:
        return tf.tanh(x @ first), tf.nn.softplus(x @ second)

    run = tf.function(lambda x: ranged("two", [x, *weights], two))
    graphs: list[Any] = []
    captured = recorded(tmp_path, lambda: graphs.extend(optimized(lambda: run(x))))
    assert isinstance(only(captured, "two"), Range)
    (graph,) = graphs
    (closing,) = [node for node in graph.node if node.attr["close"].list.i]
    (opening,) = [node for node in graph.node if node.attr["open"].list.i]
    work = [node for node in graph.node if node.op in ("MatMul", "_FusedMatMul", "Tanh", "Softplus")]
    assert {node.name for node in work} <= earlier(graph, closing)
    assert all(opening.name in earlier(graph, node) for node in work)


@pytest.mark.parametrize("graph", [True, False])
def test_a_function_of_tensorflow_that_is_traced(tmp_path: Path, graph: bool) -> None:
    """One range a call, and one for its gradient, when it is traced and afterwards."""
    (weight,), x = variables(1), tf.ones([3, 6])

    def program(put: Any) -> Any:
        function = tf.function(dense)

        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(put("work", [x, weight], function) ** 2)
            return loss, tape.gradient(loss, weight)

        return tf.function(run) if graph else run

    wanted, run = program(plain)(x), program(ranged)
    captured = recorded(tmp_path, lambda: all(same(run(x), wanted) for _ in range(2)) or pytest.fail("changed"))
    assert captured.texts == ["work", "work'"] * 2


def test_ranges_come_in_after_tensorflows_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow optimizes a graph in two rounds; a range that the first one adds would change the second."""
    rounds: list[int] = []
    rewrite = library.rewrite
    monkeypatch.setattr(library, "rewrite", lambda *given: rounds.append(1) or rewrite(*given))
    weights = variables(2)
    captured = recorded(tmp_path, lambda: tf.function(lambda x: chain(x, weights, ranged))(tf.ones([3, 6])))
    assert counts(captured) == {"layer0": 1, "layer1": 1}
    assert len(rounds) == 1
