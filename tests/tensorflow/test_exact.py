"""Programs give the same bits with ranges and without, whatever they do with outputs, masks, weights and gradients."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import needs_recorder

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from captured import Captured  # noqa: E402
from matrices import matrix  # noqa: E402
from tensorflow.python.framework import config  # noqa: E402
from tf_recorded import recorded, same  # noqa: E402

import annot  # noqa: E402
from annot.tf import end, library, start, trace  # noqa: E402

pytestmark = needs_recorder
layers = keras.layers
GRAPH_AND_EAGER = pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Have TensorFlow give the same bits twice; it runs no XLA then, which other tests need."""
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


def some(*shape: int) -> Any:
    """Return the same numbers for the same shape."""
    return np.random.default_rng(0).random(shape, "float32")


def with_and_without(folder: Path, program: Callable[[Any], Any]) -> tuple[Any, Any, Captured]:
    """Run a program, which takes what makes a block of a model, plainly and with ranges."""
    plain = program(lambda _: contextlib.nullcontext())
    found: list[Any] = []
    captured = recorded(folder, lambda: found.append(program(annot.emit_ranges)))
    return plain, found[0], captured


def calls(captured: Captured, sign: str) -> Counter[str]:
    return Counter(one.name[:-1] for one in captured.ranges if one.name.endswith(sign))


def trained(model: keras.Model, block: Any, inputs: Any, targets: Any, batch: int = 2) -> Any:
    with block(model):
        history = model.fit(inputs, targets, batch_size=batch, epochs=2, verbose=0, shuffle=False).history
        predicted = model.predict(inputs, verbose=0)
    return history["loss"], model.get_weights(), predicted


LOSSES = {
    "softmax": ("sparse_categorical_crossentropy", np.array([1] * 4)),
    "one hot": ("categorical_crossentropy", np.eye(2, dtype="float32")[[1] * 4]),
    "sigmoid": ("binary_crossentropy", np.zeros((4, 1), "float32")),
}


@pytest.mark.parametrize(("kind", "eager"), matrix(LOSSES, [False, True]))
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


@pytest.mark.parametrize(("how", "eager"), matrix(["recompute_grad", "remat", "custom_gradient"], [False, True]))
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


def convolution(x: Any, filters: int, size: int = 3, **options: Any) -> Any:
    return layers.Conv2D(filters, size, padding="same", **options)(x)


def normalized(x: Any) -> Any:
    return layers.ReLU()(layers.BatchNormalization()(x))


def dense_net() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = convolution(inputs, 8, use_bias=False)
    for _ in range(2):
        x = layers.Concatenate()([x, convolution(normalized(x), 4, use_bias=False)])
    return inputs, normalized(x)


def preactivated() -> Any:
    """Batch normalization with two consumers."""
    inputs = keras.Input((8, 8, 3))
    x = convolution(inputs, 8)
    for _ in range(3):
        p = normalized(x)
        x = layers.Add()([convolution(p, 8, 1), convolution(normalized(convolution(p, 8)), 8, 1)])
    return inputs, normalized(x)


def excited() -> Any:
    inputs = keras.Input((4, 4, 8))
    x = convolution(inputs, 8, 1)
    for _ in range(2):
        s = layers.ReLU()(convolution(layers.GlobalAveragePooling2D(keepdims=True)(x), 4, 1))
        x = layers.Multiply()([x, layers.Activation("hard_sigmoid")(convolution(s, 8, 1))])
    return inputs, x


def rectified() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.ReLU()(convolution(inputs, 4))
    return inputs, layers.LeakyReLU()(convolution(x, 4))


def attention() -> Any:
    inputs = keras.Input((6, 8))
    x = layers.LayerNormalization()(layers.Add()([inputs, layers.MultiHeadAttention(2, 4)(inputs, inputs)]))
    return inputs, layers.Add()([x, layers.Dense(8, "gelu")(x)])


def recurrent() -> Any:
    inputs = keras.Input((6, 8))
    return inputs, layers.Bidirectional(layers.LSTM(4, return_sequences=True))(inputs)


NETWORKS = (dense_net, preactivated, excited, rectified, attention, recurrent)


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(network, id=network.__name__, marks=[] if network is rectified else pytest.mark.slow)
        for network in NETWORKS
    ],
)
def test_networks_whose_operations_tensorflow_rewrites(network: Callable[[], Any], tmp_path: Path) -> None:
    """Fusions, sums across layers and rewritten broadcasts: every layer that computes has a range, alone or joined."""

    def program(block: Any) -> Any:
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        inputs, x = network()
        model = keras.Model(inputs, layers.Dense(3, "softmax", name="head")(layers.Flatten()(x)), name="m")
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
        result = trained(model, block, some(5, *inputs.shape[1:]), np.arange(5) % 3)
        names.append([layer.name for layer in model.layers[1:]])
        return result

    names: list[list[str]] = []
    plain, found, captured = with_and_without(tmp_path, program)
    assert same(plain, found)
    paths = [path for joined in calls(captured, ">") for path in joined.split("+")]
    assert {path.split("/")[1] for path in paths if "/" in path} == set(names[0])
    assert [one.text for one in captured.ranges if "?" in one.text] == []


def test_own_loops_with_a_static_batch(tmp_path: Path) -> None:
    def program(block: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((8, 8, 3)), layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(),
             layers.Flatten(), layers.Dense(6), layers.Dense(2)]
        )  # fmt: skip
        optimizer = keras.optimizers.SGD(0.05)
        with block(model):

            @tf.function
            def step(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return loss

            return [step(tf.constant(some(4, 8, 8, 3)), tf.constant(some(4, 2))) for _ in range(3)]

    plain, found, _ = with_and_without(tmp_path, program)
    assert same(plain, found)


class OwnFit(keras.Model):
    """A model whose `fit` takes what Keras's takes, as those of KerasHub do."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return super().fit(*args, **kwargs)


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_fit_that_takes_anything(scheduled: bool, positional: bool, tmp_path: Path) -> None:
    inputs = keras.Input((5,))
    model = OwnFit(inputs, layers.Dense(2, name="d")(inputs), name="m")
    model.compile("sgd", "mse", jit_compile=False)
    seen: list[int] = []
    mine = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: seen.append(batch))

    def body() -> None:
        with annot.emit_ranges(model, schedule=annot.schedule(wait=3, active=2, repeat=1) if scheduled else None):
            if positional:
                model.fit(some(40, 5), some(40, 2), 4, 1, 0, [mine])
            else:
                model.fit(some(40, 5), some(40, 2), batch_size=4, verbose=0, callbacks=[mine])

    captured = recorded(tmp_path, body)
    assert seen == list(range(10))
    assert sum(one.text.startswith("Batch") for one in captured.ranges) == 10
    assert calls(captured, "<")["m/d"] == (2 if scheduled else 10)


def test_a_schedule_that_sees_no_step_says_so(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((5,)), layers.Dense(2)])

    def body() -> None:
        annot.emit.client.warn_once.cache_clear()
        steps = annot.schedule(wait=1, active=1)
        with pytest.warns(RuntimeWarning, match="saw no step"), annot.emit_ranges(model, schedule=steps):
            model(some(2, 5))

    recorded(tmp_path, body)


def test_quantized_layers_have_ranges(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, name="d"), layers.Dense(2, name="e")], name="m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.quantize("int8")
    plain = model.predict(some(4, 6), verbose=0)
    found: list[Any] = []

    def body() -> None:
        with annot.emit_ranges(model):
            found.append(model.predict(some(4, 6), verbose=0))

    captured = recorded(tmp_path, body)
    assert same(plain, found[0])
    assert calls(captured, ">") == {"m": 1, "m/d": 1, "m/e": 1}
    assert "quantized_call" not in vars(model.layers[0])


def described(graph: Any) -> list[Any]:
    """Return what defines the operations of a graph; TensorFlow takes control inputs from a set."""
    nodes = [op.node_def for op in graph.get_operations()]
    return [(one.name, one.op, sorted(one.input), sorted(one.attr.items(), key=str)) for one in nodes]


def test_operations_are_the_ones_of_the_plain_program(tmp_path: Path) -> None:
    """Types, attributes and inputs of all operations that are traced, and the kernels that run, are the same."""
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.ReLU(), layers.Flatten(), layers.Dense(3, "softmax")]
    )

    def traced() -> Any:
        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        return step.get_concrete_function(tf.TensorSpec((2, 8, 8, 3))).graph

    plain = traced()
    found: list[Any] = []

    def body() -> None:
        with annot.emit_ranges(model):
            found.append(traced())

    recorded(tmp_path, body)
    assert described(plain) == described(found[0])


def test_a_step_that_finds_the_end_of_the_data(tmp_path: Path) -> None:
    """TensorFlow counts it and moves on its seeds, whatever waits for the data."""

    def program(block: Any) -> Any:
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(6, "relu"), layers.Dropout(0.5), layers.Dense(2)])
        model.compile("adam", "mse", jit_compile=False)
        types = (tf.TensorSpec([4, 8]), tf.TensorSpec([4, 2]))
        data = tf.data.Dataset.from_generator(lambda: iter([(some(4, 8), some(4, 2))] * 3), output_signature=types)
        with block(model):
            losses = model.fit(data, epochs=3, verbose=0).history["loss"]
        return losses, model.optimizer.iterations, [one.value for one in model.non_trainable_variables]

    plain, found, _ = with_and_without(tmp_path, program)
    assert same(plain, found)


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


def test_a_layer_that_is_fused_without_saying_of_what(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(4, name="fc"), layers.Activation("mish", name="mish")], name="m"
    )

    def program(block: Any) -> Any:
        with block(model):
            return tf.function(lambda x: model(x))(tf.constant(some(4, 8)))

    plain, found, captured = with_and_without(tmp_path, program)
    assert same(plain, found)
    assert "m/fc" in {path for joined in calls(captured, ">") for path in joined.split("+")}


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


def test_a_model_with_two_outputs(tmp_path: Path) -> None:
    """The backward of each layer opens inside that of the model, however long the other output's gradient takes."""
    inputs = keras.Input((8,))
    x = layers.Dense(16, name="x")(inputs)
    model = keras.Model(inputs, [layers.Dense(2, name="one")(x), layers.Dense(3, name="two")(x)], name="m")

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            one, two = model(x)
            slow = tf.linalg.inv(tf.eye(200) + tf.reduce_sum(two))[0, 0]
            loss = tf.reduce_sum(one**2) + tf.reduce_sum(slow * two)
        return tape.gradient(loss, model.trainable_variables)

    def body() -> None:
        with annot.emit_ranges(model):
            step(tf.ones([4, 8]))

    (whole, *inside) = [one for one in recorded(tmp_path, body).ranges if one.name.endswith("<")]
    assert whole.name == "m<"
    assert {one.name for one in inside} == {"m/x<", "m/one<", "m/two<"}
    assert all(whole.start <= one.start for one in inside)
