"""`annot.tf.trace`, `start` and `end`: the ranges that they give, where and when, and that nothing else changes."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from captured import Captured  # noqa: E402
from commands import needs_recorder  # noqa: E402
from keras_models import VECTORS, compiled  # noqa: E402
from tf_recorded import both, counts, earlier, needs_graphs, optimized, recorded, same  # noqa: E402

import annot  # noqa: E402
from annot.emit import client  # noqa: E402
from annot.tf import end, start, trace  # noqa: E402

pytestmark = needs_recorder


@pytest.fixture
def wanted():
    """Decorators come before the recorder in these tests."""
    annot.enable()
    yield
    annot.enable(False)


def variables(count: int, size: int = 4) -> list[Any]:
    return [tf.Variable(tf.random.stateless_normal([size, size], [7, i])) for i in range(count)]


def unchanged(folder: Path, plain: Callable[[], Any], ranged: Callable[[], Any]) -> Captured:
    """Record `ranged`, whose results are those of `plain`."""
    expected, found = plain(), []
    captured = recorded(folder, lambda: found.append(ranged()))
    assert same(found[0], expected)
    return captured


def block(net: Any, weights: Any) -> Any:
    for weight in weights:
        net = tf.tanh(net @ weight)
    return net


def train(put: Callable[..., Any], weights: Any, graph: bool) -> Callable[[], Any]:
    """A step whose input needs no gradient."""

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(put(tf.ones([3, 4]), weights) ** 2)
        return loss, tape.gradient(loss, weights)

    return tf.function(step) if graph else step


@both
def test_trace_gives_a_range_to_the_block_and_to_its_gradient(tmp_path: Path, wanted: None, graph: bool) -> None:
    weights = variables(3)
    traced = trace(message="Dense Block", domain_name="Forward", grad_domain_name="Gradient")(block)
    captured = unchanged(tmp_path, train(block, weights, graph), train(traced, weights, graph))
    forward, gradient = captured.ranges
    assert (forward.text, gradient.text) == ("Dense Block", "Dense Block")
    # In a graph, the operation that closes a range runs on any thread, maybe after what follows.
    assert (forward.start if graph else forward.end) <= gradient.start
    assert _domains(tmp_path) == [("Dense Block", "Forward"), ("Dense Block", "Gradient")]


def _domains(folder: Path) -> list[tuple[str, str]]:
    import sqlite3

    (path,) = folder.glob("*.sqlite")
    with sqlite3.connect(path) as database:
        return database.execute(
            """select coalesce(e.text, s.value), d.text from NVTX_EVENTS e left join StringIds s on s.id = e.textId
               join NVTX_EVENTS d on d.eventType = 75 and d.domainId = e.domainId
               where e.eventType in (59, 60) order by e.start"""
        ).fetchall()


@needs_graphs
def test_the_gradients_of_the_weights_come_before_the_end_of_the_range(tmp_path: Path, wanted: None) -> None:
    """Each weight that the block reads, though no input needs a gradient."""
    weights = variables(3)
    graphs: list[Any] = []
    recorded(tmp_path, lambda: graphs.extend(optimized(train(trace("block")(block), weights, graph=True))))
    (graph,) = [one for one in graphs if any(node.op == "AnnotRange" for node in one.node)]
    closing = [earlier(graph, node) for node in graph.node if node.attr["close"].list.i]
    products = [node.name for node in graph.node if node.op == "MatMul" and node.attr["transpose_a"].b]
    assert len(products) == 3
    assert max(closing, key=len).issuperset(products)


@both
@pytest.mark.parametrize(
    "work",
    [
        lambda x, weight: (tf.ones([4, 4]) + weight) * weight,
        lambda x, weight: tf.einsum("ab,bc->ac", x, weight),
        lambda x, weight: tf.matmul(x, weight, transpose_b=True),
        lambda x, weight: tf.gather_nd(weight, [[0, 1]]) + x,
        lambda x, weight: tf.sin(tf.nn.embedding_lookup(weight, [0, 1, 1])) + x,
    ],
    ids=["mul", "einsum", "matmul", "gather", "embedding"],
)
def test_variables_that_operations_are_given_as_they_are(tmp_path: Path, wanted: None, graph: bool, work: Any) -> None:
    """TensorFlow's C part reads them by itself in eager mode."""
    weights = [tf.Variable(tf.random.stateless_normal([4, 4], [7, 1]))]

    def first(net: Any, weights: Any) -> Any:
        return work(net, weights[0])

    captured = unchanged(tmp_path, train(first, weights, graph), train(trace("first")(first), weights, graph))
    assert captured.texts == ["first |fwd", "first |bwd"]


@both
def test_a_variable_that_is_read_in_a_loop(tmp_path: Path, wanted: None, graph: bool) -> None:
    """The gradient comes from a loop too."""
    weights = variables(1)

    def loop(net: Any, weights: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, tf.tanh(x @ weights[0])), [0, net])[1]

    captured = unchanged(tmp_path, train(loop, weights, graph), train(trace("loop")(loop), weights, graph))
    assert captured.texts == ["loop |fwd", "loop |bwd"]


@both
def test_start_and_end_need_no_function(tmp_path: Path, wanted: None, graph: bool) -> None:
    def plain(x: Any) -> Any:
        return tf.nn.softmax(x * 2.0)

    def ranged(x: Any) -> Any:
        x, context = start(x, message="logits-softmax", grad_message="softmax's gradient")
        return end(plain(x), context)

    def gradient(of: Callable[[Any], Any]) -> Callable[[], Any]:
        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = of(x)
            return y, tape.gradient(y, x)

        inputs = tf.constant([1.0, 2.0])
        return functools.partial(tf.function(run) if graph else run, inputs)

    captured = unchanged(tmp_path, gradient(plain), gradient(ranged))
    assert captured.texts == ["logits-softmax |fwd", '"softmax\'s gradient" |bwd']


@both
def test_the_arguments_by_position_are_those_of_nvtx_plugins(tmp_path: Path, wanted: None, graph: bool) -> None:
    """Message, domain, message and domain of the gradient, trainable, enabled, name."""
    weights = variables(1)
    traced = trace("one", "Forward", "one'", "Gradient", True, True, "named")(block)

    def both_forms(net: Any, weights: Any) -> Any:
        net, context = start(traced(net, weights), "two", "Forward", "two'", "Gradient", True, True, "named")
        return end(tf.tanh(net), context)

    unchanged(
        tmp_path, train(lambda net, weights: tf.tanh(block(net, weights)), weights, graph),
        train(both_forms, weights, graph),
    )  # fmt: skip
    assert _domains(tmp_path) == [("one", "Forward"), ("two", "Forward"), ("two'", "Gradient"), ("one'", "Gradient")]


@both
def test_any_nest_of_tensors(tmp_path: Path, wanted: None, graph: bool) -> None:
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    sparse = tf.sparse.from_dense([[0.0, 4.0]])
    passed = {"b": (tf.constant(1.0), [tf.constant([2, 3])]), "a": ragged, "c": sparse, "text": tf.constant("x")}

    def plain(nest: Any, factor: float, *, name: str, nothing: None = None) -> Any:
        assert (name, nothing) == ("kept", None)
        return {**nest, "a": nest["a"] * factor}, [nest["b"][0] + factor]

    def call(of: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            result, (scalar,) = of(passed, 2.0, name="kept")
            return result["a"].to_list() if not graph else result["a"].values, result["c"].values, result["b"], scalar

        return tf.function(run) if graph else run

    captured = unchanged(tmp_path, call(plain), call(trace("nest")(plain)))
    assert captured.texts == ["nest |fwd"]


@both
def test_methods_and_layers(tmp_path: Path, wanted: None, graph: bool) -> None:
    class Scaled(tf.keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

        @trace("scaled")
        def call(self, x: Any, training: bool = False) -> Any:
            return tf.exp(x * self.scale) if training else x

    class Static:
        @trace
        @staticmethod
        def tanh(x: Any) -> Any:
            return tf.tanh(x)

        @trace
        @classmethod
        def softplus(cls, x: Any) -> Any:
            assert cls is Static
            return tf.nn.softplus(x)

    layer = Scaled()
    layer(tf.ones([2, 3]))
    assert "training" in inspect.signature(layer.call).parameters

    def run() -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(Static.softplus(Static.tanh(layer(tf.ones([2, 3]), training=True))) ** 2)
        return y, tape.gradient(y, layer.trainable_variables)

    def plain() -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.nn.softplus(tf.tanh(tf.exp(tf.ones([2, 3]) * layer.scale))) ** 2)
        return y, tape.gradient(y, layer.trainable_variables)

    captured = unchanged(tmp_path, tf.function(plain) if graph else plain, tf.function(run) if graph else run)
    prefix = "test_methods_and_layers.<locals>.Static"
    assert captured.texts == [
        "scaled |fwd", f"{prefix}.tanh |fwd", f"{prefix}.softplus |fwd", f"{prefix}.softplus |bwd",
        f"{prefix}.tanh |bwd", "scaled |bwd",
    ]  # fmt: skip


@needs_graphs
def test_a_traced_function_as_an_argument(tmp_path: Path, wanted: None) -> None:
    double = trace("double")(lambda x: x * 2.0)
    run = tf.function(lambda of, x: of(x))
    captured = unchanged(tmp_path, lambda: tf.constant(6.0), lambda: run(double, tf.constant(3.0)))
    assert captured.texts == ["double |fwd"]


@needs_graphs
def test_autograph_converts_what_is_traced(tmp_path: Path, wanted: None) -> None:
    @trace("clipped")
    def clipped(x: Any) -> Any:
        if tf.reduce_sum(x) > 1.0:
            x = x / 2.0
        while tf.reduce_sum(x) > 1.0:
            x = x - 1.0
        return x

    run = tf.function(lambda x: clipped(x))
    captured = unchanged(tmp_path, lambda: tf.constant([1.0]), lambda: run(tf.constant([8.0])))
    assert captured.texts == ["clipped |fwd"]


@both
def test_traced_functions_nest(tmp_path: Path, wanted: None, graph: bool) -> None:
    weights = variables(2)
    inner = trace("inner")(lambda x, w: tf.tanh(x @ w))

    def outer(x: Any, weights: Any) -> Any:
        return inner(inner(x, weights[0]), weights[1])

    captured = unchanged(tmp_path, train(block, weights, graph), train(trace("outer")(outer), weights, graph))
    assert counts(captured) == {"outer |fwd": 1, "inner |fwd": 2, "inner |bwd": 2, "outer |bwd": 1}
    for phase in ("fwd", "bwd"):
        (around,) = [one for one in captured.ranges if one.text == f"outer |{phase}"]
        inside = [one for one in captured.ranges if one.text == f"inner |{phase}"]
        assert all(around.start <= one.start and one.end <= around.end for one in inside)


@both
def test_an_exception_is_the_users_and_closes_the_range(tmp_path: Path, wanted: None, graph: bool) -> None:
    @trace("fails")
    def fails(x: Any) -> Any:
        raise KeyError("theirs")

    run = tf.function(fails) if graph else fails

    def body() -> None:
        with tf.GradientTape(), pytest.raises(KeyError, match="theirs"):
            run(tf.ones([1]))
        with pytest.raises(KeyError, match="theirs"):
            run(tf.ones([1]))

    assert counts(recorded(tmp_path, body)) == ({} if graph else {"fails |fwd": 2})


def test_without_a_tool_there_is_nothing(tmp_path: Path) -> None:
    if annot.enabled():
        pytest.skip("a tool is attached to this process")
    x = tf.ones([2])
    assert trace(message="off")(block) is block
    passed, context = start(x, message="off")
    assert passed is x
    assert end(x, context) is x


def test_switched_off_there_is_nothing(tmp_path: Path, wanted: None) -> None:
    def body() -> None:
        x = tf.ones([2])
        assert trace(message="off", enabled=False)(block) is block
        passed, context = start(x, message="off", enabled=False)
        assert passed is x
        assert end(x, context) is x

    assert recorded(tmp_path, body).texts == []


@needs_graphs
def test_under_xla_a_warning_and_no_range(tmp_path: Path, wanted: None) -> None:
    weights = variables(1)
    client.warn_once.cache_clear()
    traced = trace("block")(block)
    plain, ranged = (tf.function(one, jit_compile=True) for one in (block, traced))
    x = tf.ones([2, 4])
    with pytest.warns(RuntimeWarning, match="XLA"):
        captured = unchanged(tmp_path, lambda: plain(x, weights), lambda: ranged(x, weights))
    assert captured.texts == []


@needs_graphs
def test_a_mode_that_adds_nothing_to_graphs(tmp_path: Path, wanted: None) -> None:
    """Not beside a trace either, which has its range in the same graph."""
    model = compiled("dense")
    function = trace("traced")(tf.tanh)

    def body() -> None:
        with annot.emit_ranges(model, mode="names"):
            tf.function(lambda x: function(model(x)))(tf.constant(VECTORS[0]))
            model.train_on_batch(*VECTORS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = recorded(tmp_path, body)
    assert captured.texts == ["traced |fwd"]


@needs_graphs
def test_two_replicas(tmp_path: Path, wanted: None) -> None:
    devices = tf.config.list_logical_devices("CPU")
    if len(devices) < 2:
        pytest.skip("two logical CPUs must be made before TensorFlow starts")
    traced = trace("block")(block)

    def results(put: Callable[..., Any]) -> Any:
        strategy = tf.distribute.MirroredStrategy([device.name for device in devices[:2]])
        with strategy.scope():
            weights = variables(2)

        @tf.function
        def run() -> Any:
            def step() -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(put(tf.ones([3, 4]), weights))
                return tape.gradient(loss, weights)

            gradients = strategy.run(step)
            return [strategy.reduce("SUM", one, axis=None) for one in gradients]

        return run()

    captured = unchanged(tmp_path, lambda: results(block), lambda: results(traced))
    assert counts(captured) == {"block |fwd": 2, "block |bwd": 2}


@needs_graphs
def test_the_form_of_the_founding_documents(tmp_path: Path, wanted: None) -> None:
    """A graph of version 1, trained in a session."""

    def build(ranged: bool) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            weights = [
                tf.compat.v1.get_variable(
                    f"w{i}", initializer=tf.random.stateless_normal([4, 4], [7, i]), use_resource=True
                )
                for i in range(3)
            ]
            x = tf.compat.v1.placeholder(tf.float32, [None, 4])
            put = (
                trace(message="Dense Block", domain_name="Forward", grad_domain_name="Gradient")
                if ranged
                else lambda f: f
            )
            net = put(block)(x, weights[:2])
            context = None
            if ranged:
                net, context = start(net, message="logits-softmax")
            net = tf.nn.softmax(net @ weights[2])
            if ranged:
                net = end(net, context)
            loss = tf.reduce_sum(net**2)
            step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            session.run(tf.compat.v1.global_variables_initializer())
            losses = [session.run([loss, step], {x: [[1.0, 2.0, 3.0, 4.0]]})[0] for _ in range(4)]
            return losses, session.run(weights)

    captured = unchanged(tmp_path, lambda: build(False), lambda: build(True))
    assert counts(captured) == {"Dense Block": 8, "logits-softmax |fwd": 4, "logits-softmax |bwd": 4}


def test_wrong_use_is_said() -> None:
    with pytest.raises(TypeError, match="function or a message"):
        trace(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="message must be a string"):
        start(tf.ones([1]), message=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="context that start returned"):
        end(tf.ones([1]), None)  # type: ignore[arg-type]
