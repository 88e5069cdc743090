"""A range around each update of the weights, eagerly and in graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matrices import matrix

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import keras  # noqa: E402
from captured import Captured  # noqa: E402
from commands import needs_recorder  # noqa: E402
from tf_nets import BATCH, network, numbered, samples, weights  # noqa: E402
from tf_recorded import earlier, installed, optimized, recorded  # noqa: E402

import annot  # noqa: E402
from annot.keras.optimizer import OptimizerSteps  # noqa: E402
from annot.tf import (  # noqa: E402
    AnnotCallback,
    emit_ranges,
    owners,
)

pytestmark = needs_recorder

UPDATE = "Optimizer LossScaleOptimizer base=SGD params=26 |opt"


def fit(model: Any, *callbacks: Any, epochs: int = 2) -> None:
    x, y = samples(3)
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks))


def ranged(folder: Path, body: Callable[[], object]) -> Captured:
    def inside() -> None:
        with installed(OptimizerSteps(owners.gradients_first)):
            body()

    return recorded(folder, inside)


def classes() -> list[type]:
    found, left = [], [keras.optimizers.Optimizer]
    while left:
        found.append(left.pop())
        left += found[-1].__subclasses__()
    return [*found, *keras.optimizers.Optimizer.__mro__]


@pytest.mark.parametrize(("name", "eagerly"), matrix(["sgd", "adamw", "lossscale"], [False, True]))
def test_each_step_of_fit_has_one_range(tmp_path: Path, name: str, eagerly: bool) -> None:
    """Inside its batch; the weights and the optimizer's variables are the same bits."""

    def build() -> Any:
        optimizers = keras.optimizers
        made = {
            "sgd": lambda: optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
            "adamw": lambda: optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=2),
            "lossscale": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), dynamic_growth_steps=2),
        }
        return network(optimizer=made[name](), run_eagerly=eagerly)

    model, plain = build(), build()
    captured = ranged(tmp_path, lambda: fit(model, AnnotCallback()))
    fit(plain)
    assert weights(model) == weights(plain)
    steps = [one for one in captured.ranges if one.text.endswith("|opt")]
    batches = [one for one in captured.ranges if one.text.endswith("|step")]
    said = {
        "sgd": "SGD params=26 momentum=True",
        "adamw": "AdamW params=26 weight_decay=decoupled",
        "lossscale": "LossScaleOptimizer base=SGD params=26",
    }[name]
    assert [one.text for one in steps] == [f"Optimizer {said} |opt"] * 6
    assert all(a.start < b.start < b.end < a.end for a, b in zip(batches, steps, strict=True))


def own_loop(model: Any, function: Callable[[Any], Any]) -> None:
    """A training loop with a tape, of a model with an embedding, whose gradient is sparse."""

    def step(x: Any, y: Any) -> Any:
        with annot.trace("forward"), tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    compiled = function(step)
    for number in range(3):
        compiled(tf.constant([[number, 1, 2]]), tf.ones((1, 1)))


def sparse() -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((3,), dtype="int32"), keras.layers.Embedding(9, 4), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1))
    return model


@pytest.mark.parametrize("function", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_loops_of_ones_own(tmp_path: Path, function: Callable[[Any], Any]) -> None:
    """Each update has its range, and sparse gradients stay sparse."""
    model, plain = sparse(), sparse()
    captured = ranged(tmp_path, lambda: own_loop(model, function))
    own_loop(plain, function)
    assert weights(model) == weights(plain)
    assert [text for text in captured.texts if text.endswith("|opt")] == ["Optimizer Adam params=49 |opt"] * 3


def test_gradients_that_are_missing_stay_missing(tmp_path: Path) -> None:
    """Keras leaves their variables out, with its own warning."""
    used, unused = tf.Variable(1.0), tf.Variable(1.0)
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([used, unused])

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        optimizer.apply([tf.constant(1.0), None], [used, unused])

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        captured = ranged(tmp_path, step)
    assert captured.texts == ["Optimizer SGD params=2 |opt"]
    assert (float(used), float(unused)) == (0.5, 1.0)


def test_an_update_in_a_graph_begins_with_its_gradients_and_ends_with_its_assignments(tmp_path: Path) -> None:
    """Seen from ranges that the computation of gradients and of assigned values makes, in no order of their own."""

    def marked(text: str, tensor: Any) -> Any:
        def mark(value: Any) -> Any:
            with annot.trace(text):
                return value

        return tf.numpy_function(mark, [tensor], tf.float32, stateful=False)

    class Marked(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            variable.assign_sub(tf.ensure_shape(marked("update", gradient), ()))

    variables, optimizer = [tf.Variable(1.0), tf.Variable(4.0)], Marked(0.5)
    optimizer.build(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        slow = marked("gradient", marked("gradient", tf.sqrt(variables[1])))
        optimizer.apply([variables[0] * 2.0, tf.ensure_shape(slow, ())], variables)

    captured = ranged(tmp_path, step)
    assert [float(one) for one in variables] == [-1.0, 2.0]
    assert captured.texts == ["gradient", "gradient", "Optimizer Marked params=2 |opt", "update", "update"]
    *gradients, whole, first, second = captured.ranges
    assert all(one.end < whole.start for one in gradients)
    assert whole.start < first.start
    assert max(first.end, second.end) < whole.end


def test_the_order_is_one_of_the_graph(tmp_path: Path) -> None:
    """And not of how an executor happens to go through it: gradients, start, assignments, end."""
    variables, optimizer = [tf.Variable(1.0), tf.Variable(4.0)], keras.optimizers.Adam(0.5, beta_1=0.0)
    optimizer.build(variables)
    function = tf.function(lambda: optimizer.apply([tf.sqrt(variables[1]), tf.exp(variables[0])], variables))
    graphs: list[Any] = []
    ranged(tmp_path, lambda: graphs.extend(optimized(function)))
    (graph,) = [one for one in graphs if any(node.op == "AnnotRange" for node in one.node)]
    (opening,) = [node for node in graph.node if node.attr["open"].list.i]
    (closing,) = [node for node in graph.node if node.attr["close"].list.i]
    kinds = {node.name: node.op for node in graph.node}
    assert {"Sqrt", "Exp"} <= {kinds[name] for name in earlier(graph, opening)}
    assigned = [node for node in graph.node if node.op.startswith("Assign")]
    assert len(assigned) == 7  # two moments and the value of each variable, and the count of steps
    assert all(opening.name in earlier(graph, one) for one in assigned)
    assert {one.name for one in assigned} <= earlier(graph, closing)


@pytest.mark.parametrize("function", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_an_update_that_fails(tmp_path: Path, function: Callable[[Any], Any]) -> None:
    """The exception is the same as without, and the next update has its range."""

    class Fails(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            if variable.shape.rank == 1:
                raise ValueError("by an optimizer")
            super().update_step(gradient, variable, learning_rate)

    optimizer, scalar, vector = Fails(0.5), tf.Variable(1.0), tf.Variable([1.0])
    optimizer.build([scalar, vector])

    def body() -> None:
        with pytest.raises(ValueError, match="by an optimizer"):
            function(lambda: optimizer.apply([tf.constant([1.0])], [vector]))()
        function(lambda: optimizer.apply([tf.constant(1.0)], [scalar]))()

    failed = [] if function is tf.function else ["Optimizer Fails params=1 |opt"]
    assert ranged(tmp_path, body).texts == [*failed, "Optimizer Fails params=1 |opt"]
    assert (float(scalar), float(vector[0])) == (0.5, 1.0)


def test_variables_in_an_iterator_reach_keras(tmp_path: Path) -> None:
    """The range is made without them. Its arguments are those of the variables that the optimizer was built for."""
    optimizer, variable = keras.optimizers.SGD(0.5), keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    captured = ranged(tmp_path, lambda: optimizer.apply([tf.constant([1.0, 1.0])], iter([variable])))
    assert captured.texts == ["Optimizer SGD params=2 |opt"]
    assert variable.numpy().tolist() == [0.5, 1.5]


def test_everything_is_as_before() -> None:
    """After the block; what was held from inside it does nothing more."""
    before = [vars(cls).get("apply") for cls in classes()]
    annot.enable()
    steps = OptimizerSteps(owners.gradients_first)
    steps.install()
    during = [vars(cls).get("apply") for cls in classes()]
    steps.undo()
    annot.enable(False)
    assert before == [vars(cls).get("apply") for cls in classes()]
    assert before != during


def test_without_graphs_only_eager_updates_have_ranges(tmp_path: Path) -> None:
    """As the mode "names" is without them; and the graph has no operation of annot's."""
    model = network()

    def run() -> None:
        with emit_ranges(model, mode="names", forward=False, backward=False):
            fit(model, epochs=1)

    assert not [text for text in recorded(tmp_path, run).texts if text.endswith("|opt")]
    model.run_eagerly = True
    model.train_function = None
    texts = [text for text in recorded(tmp_path, run).texts if text.endswith("|opt")]
    assert texts == ["Optimizer SGD params=26 |opt"] * 3


def test_xla_has_no_ranges_and_no_failure(tmp_path: Path) -> None:
    """The weights are those of XLA without annot."""
    model, plain = network(jit_compile=True), network(jit_compile=True)
    assert ranged(tmp_path, lambda: fit(model, epochs=1)).texts == []
    fit(plain, epochs=1)
    assert weights(model) == weights(plain)


@pytest.mark.slow
def test_replicas_have_one_range_for_their_update(tmp_path: Path) -> None:
    """With a strategy over two devices, which makes it for all at once; the weights are the same bits."""
    program = [sys.executable, str(Path(__file__).parents[1] / "support/tf_replicas.py"), str(tmp_path)]
    result = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    texts, same = json.loads(result.stdout.splitlines()[-1])
    assert same
    assert [text for text in texts if not text.startswith("Data")] == [
        numbered("Epoch 0 |epoch"),
        *(text for number in range(3) for text in (numbered(f"Batch {number} |step"), UPDATE)),
    ]
    assert texts.count("Data |data") >= 3
