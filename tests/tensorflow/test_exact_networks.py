"""Networks and training loops give the same bits with ranges and without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import needs_recorder

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from tf_exact import calls, deterministic, some, trained, with_and_without  # noqa: E402, F401
from tf_recorded import recorded, same  # noqa: E402

import annot  # noqa: E402

pytestmark = needs_recorder
layers = keras.layers


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
    keras.utils.set_random_seed(0)  # without a seed, TensorFlow 2.16 refuses to shuffle deterministically
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
        with pytest.warns(RuntimeWarning, match="counted no step"), annot.emit_ranges(model, schedule=steps):
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
