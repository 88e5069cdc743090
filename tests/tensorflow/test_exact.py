"""Programs give the same bits with ranges and without, whatever they do with outputs, masks, weights and gradients."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import needs_recorder

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from matrices import every_third  # noqa: E402
from tf_exact import calls, deterministic, some, trained, with_and_without  # noqa: E402, F401
from tf_recorded import recorded, same  # noqa: E402

import annot  # noqa: E402
from annot.tf import end, library, start, trace  # noqa: E402

pytestmark = needs_recorder
layers = keras.layers
GRAPH_AND_EAGER = pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])


LOSSES = {
    "softmax": ("sparse_categorical_crossentropy", np.array([1] * 4)),
    "one hot": ("categorical_crossentropy", np.eye(2, dtype="float32")[[1] * 4]),
    "sigmoid": ("binary_crossentropy", np.zeros((4, 1), "float32")),
}


@pytest.mark.parametrize(("kind", "eager"), every_third(itertools.product(LOSSES, [False, True])))
def test_losses_find_the_logits(kind: str, eager: bool, tmp_path: Path) -> None:
    """Keras's losses take the logits from `_keras_logits` or from the operation before a softmax or sigmoid."""
    loss, targets = LOSSES[kind]
    inputs = np.array([[100.0, 0.0]] * 4, "float32")

    def program(block: Any) -> Any:
        units = targets.shape[-1] if targets.ndim > 1 else 2
        dense = layers.Dense(
            units, "sigmoid" if kind == "sigmoid" else "softmax", name="d",
            kernel_initializer="ones" if kind == "sigmoid" else "identity",
        )  # fmt: skip
        model = keras.Sequential([keras.Input((2,)), dense], name="m")
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False, run_eagerly=eager)
        return trained(model, block, inputs, targets)

    plain, found, captured = with_and_without(tmp_path, program)
    assert plain[0][0] > 20  # not the loss of clipped probabilities
    assert same(plain, found)
    assert calls(captured, "<") == {"m": 4, "m/d": 4}


class Recompute(layers.Layer):
    """A layer that computes its dense layer once more in the backward, or has a gradient of its own."""

    def __init__(self, how: str) -> None:
        super().__init__(name="rc")
        self.dense = layers.Dense(6, name="d")
        self.dense.build((None, 6))
        self.how = how

    def call(self, inputs: Any) -> Any:
        if self.how == "recompute_grad":
            return tf.recompute_grad(lambda x: self.dense(x))(inputs)
        if self.how == "remat":
            return keras.remat(lambda x: self.dense(x))(inputs)

        @tf.custom_gradient
        def own(x: Any) -> Any:
            y = self.dense(x)

            def gradient(upstream: Any, variables: Any = None) -> Any:
                if tf.executing_eagerly():
                    return upstream, [tf.ones_like(one) for one in variables]
                first, *rest = tf.gradients(y, [x, *variables], upstream)
                return first, rest

            return y, gradient

        return own(inputs)


@pytest.mark.parametrize(
    ("how", "eager"), every_third(itertools.product(["recompute_grad", "remat", "custom_gradient"], [False, True]))
)
def test_recomputed_layers_have_gradients(how: str, eager: bool, tmp_path: Path) -> None:
    def program(block: Any) -> Any:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        model = keras.Model(inputs, layers.Dense(2, name="out")(Recompute(how)(inputs)), name="m")
        model.compile(keras.optimizers.SGD(0.02), "mse", jit_compile=False, run_eagerly=eager)
        return trained(model, block, some(4, 6), some(4, 2))

    plain, found, captured = with_and_without(tmp_path, program)
    assert same(plain, found)
    assert calls(captured, "<")["m/rc"] == 4
    if eager and how != "custom_gradient":  # a graph computes once what is the same
        assert any("m/rc/d" in one.text and one.tag.phase == "recompute" for one in captured.ranges), captured.texts


@GRAPH_AND_EAGER
def test_gradient_of_one_output_with_respect_to_another(eager: bool, tmp_path: Path) -> None:
    """As for Grad-CAM."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    conv = layers.Conv2D(4, 3, name="conv")(inputs)
    output = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.ReLU()(conv)))
    both = keras.Model(inputs, [conv, output])
    images = tf.constant(some(2, 8, 8, 3))

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            maps, scores = both(images)
            score = scores[:, 0]
        return tape.gradient(score, maps)

    def program(block: Any) -> Any:
        with block(both):
            return (gradient if eager else tf.function(gradient))()

    plain, found, _ = with_and_without(tmp_path, program)
    assert plain is not None
    assert same(plain, found)


@GRAPH_AND_EAGER
def test_masks_pass_through_trace_and_start(eager: bool, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    embedding, lstm = layers.Embedding(9, 4, mask_zero=True), layers.LSTM(3)
    words = tf.constant([[1, 2, 0, 0], [3, 4, 5, 0]])

    def between(x: Any) -> Any:
        x, context = start(x, "block")
        return end(lstm(x), context)

    def results(block: Callable[[Any], Any]) -> Any:
        def step(words: Any) -> Any:
            with tf.GradientTape() as tape:
                y = block(embedding(words))
                loss = tf.reduce_sum(y)
            return y, tape.gradient(loss, lstm.trainable_variables)

        return (step if eager else tf.function(step))(words)

    plain = results(lstm)
    found: list[Any] = []
    captured = recorded(tmp_path, lambda: found.extend([results(trace("block")(lambda e: lstm(e))), results(between)]))
    assert same(plain, found[0])
    assert same(plain, found[1])
    assert Counter(captured.texts) == {"block |fwd": 2, "block |bwd": 2}


@GRAPH_AND_EAGER
def test_stateless_calls_after_clear_session(eager: bool, tmp_path: Path) -> None:
    """The weights are those that are passed."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(2)])
    inputs = tf.constant(some(2, 3))

    def step() -> Any:
        weights = [tf.zeros_like(one.value) for one in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y, _ = model.stateless_call(weights, [one.value for one in model.non_trainable_variables], inputs)
            loss = tf.reduce_sum((y - 1) ** 2)
        return y, tape.gradient(loss, weights)

    def program(block: Any) -> Any:
        with block(model):
            return (step if eager else tf.function(step))()

    plain, found, _ = with_and_without(tmp_path, program)
    assert float(tf.reduce_sum(tf.abs(plain[0]))) == 0
    assert same(plain, found)


class Lazy(layers.Layer):
    """A layer without `build`, that calls a layer with a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, a: Any, b: Any = None) -> Any:
        return self.dense(a) + b


class LazyModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.lazy, self.head = Lazy(), layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.head(self.lazy(inputs, b=tf.zeros((1, 4))))


def test_layers_that_are_built_late_warn_of_nothing(tmp_path: Path) -> None:
    keras.backend.clear_session()

    def program(block: Any) -> Any:
        model = LazyModel()
        model.compile("sgd", "mse", jit_compile=False)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with block(model):
                model.fit(some(8, 3), some(8, 2), verbose=0)
        return sorted({str(one.message)[:60] for one in said if issubclass(one.category, UserWarning)})

    plain, found, _ = with_and_without(tmp_path, program)
    assert plain == found


@GRAPH_AND_EAGER
def test_gradient_of_some_weights_leaves_no_range_open(eager: bool, tmp_path: Path) -> None:
    """As the step of a discriminator, or of a new head: the backward of the rest never comes."""
    base = keras.Sequential([keras.Input((6,)), layers.Dense(6, name="d")], name="base")
    head = keras.Sequential([keras.Input((6,)), layers.Dense(5, name="a"), layers.Dense(2, name="b")], name="head")
    model = keras.Sequential([base, head], name="m")
    left: list[int] = []

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return tape.gradient(loss, head.trainable_variables)

    def program(block: Any) -> Any:
        function = step if eager else tf.function(step)
        with block(model):
            results = [function(tf.ones((4, 6))) for _ in range(5)]
            left.append(library.close_all())
        return results

    plain, found, captured = with_and_without(tmp_path, program)
    assert same(plain, found)
    assert left == [0, 0]
    expected = {"m": 5, "m/head": 5, "m/head/a": 5, "m/head/b": 5}
    if eager:  # where TensorFlow computes all that the tape has recorded
        expected |= {"m/base": 5, "m/base/d": 5}
    assert calls(captured, "<") == expected


@GRAPH_AND_EAGER
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_gradients_with_inputs_that_are_no_tensors(eager: bool, kind: str, tmp_path: Path) -> None:
    class Mean(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="mean")
            self.dense = layers.Dense(2, name="dense", kernel_initializer="ones")
            self.dense.build((None, 3))

        def call(self, x: Any) -> Any:
            return tf.reduce_mean(self.dense(x.values if kind == "ragged" else tf.sparse.to_dense(x)))

    model = Mean()
    ragged = tf.RaggedTensor.from_row_splits(some(3, 3), [0, 2, 3])
    x = ragged if kind == "ragged" else tf.sparse.from_dense(some(3, 3))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model(x)
        return tape.gradient(loss, model.trainable_variables)

    def program(block: Any) -> Any:
        with block(model):
            return (step if eager else tf.function(step))(x)

    plain, found, captured = with_and_without(tmp_path, program)
    assert same(plain, found)
    assert calls(captured, ">") == {"mean": 1, "mean/dense": 1}
    assert calls(captured, "<") == {"mean": 1, "mean/dense": 1}


def test_functions_of_the_same_names_inside_layers(tmp_path: Path) -> None:
    """Each layer has the ranges of its own function, forward and backward, inside its own."""

    class Block(keras.layers.Layer):
        def __init__(self, name: str) -> None:
            super().__init__(name=name)
            self.dense = layers.Dense(4, name="dense")
            self.dense.build((None, 4))

        @tf.function  # type: ignore[untyped-decorator]
        def inner(self, x: Any) -> Any:
            return self.dense(x)

        def call(self, x: Any) -> Any:
            return self.inner(x)

    class Blocks(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="m")
            self.one, self.two = Block("one"), Block("two")

        def call(self, x: Any) -> Any:
            return self.two(self.one(x))

    model = Blocks()

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    def body() -> None:
        with annot.emit_ranges(model):
            step(tf.ones([2, 4]))

    captured = recorded(tmp_path, body)
    wanted = ["m", "m/one", "m/one/dense", "m/two", "m/two/dense"]
    assert [one.name for one in captured.ranges if one.name.endswith(">")] == [f"{path}>" for path in wanted]
    backward = ["m", "m/two", "m/two/dense", "m/one", "m/one/dense"]
    assert [one.name for one in captured.ranges if one.name.endswith("<")] == [f"{path}<" for path in backward]
