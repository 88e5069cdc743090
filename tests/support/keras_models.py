"""Small Keras models of every kind with training data, for tests in graph and eager mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context

# Two logical CPU devices for MirroredStrategy. TensorFlow accepts them only before its first operation.
CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

NUMBERS = np.random.default_rng(0)


def some(*shape: int) -> Any:
    """Return random numbers between 0 and 1."""
    return NUMBERS.random(shape, dtype="float32")


IMAGES = some(4, 8, 8, 3), some(4, 3)
WORDS = NUMBERS.integers(0, 10, (4, 6)), some(4, 3)
VECTORS = some(4, 5), some(4, 3)
SERIES = some(4, 6, 5), some(4, 3)


@keras.saving.register_keras_serializable("annot")
class Scale(layers.Layer):
    """Custom layer with a trainable scale and a counter of calls that it assigns."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any) -> Any:
        self.calls.assign_add(1.0)
        return inputs * self.scale


@keras.saving.register_keras_serializable("annot")
class Assigning(layers.Layer):
    """Layer that assigns to its trainable weight between two reads."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs: Any) -> Any:
        first = inputs * self.scale
        self.scale.assign(self.scale * 0.5)
        return first * self.scale


class Block(layers.Layer):
    """Layer with sublayers in attributes and in a list, two of them with the same name. Returns a dict."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first = layers.Dense(5, name="first")
        self.pair = [layers.Dense(5, name="pair"), layers.Dense(5, name="pair")]
        self.scaled = Scale(name="scaled")

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        outputs = self.first(inputs) + self.factor
        for layer in self.pair:
            outputs = layer(outputs)
        return {"outputs": self.scaled(outputs), "inputs": inputs}


class Late(keras.Model):
    """Model that creates a layer in `build`."""

    def __init__(self) -> None:
        super().__init__(name="late")
        self.block = Block(name="block")

    def build(self, shape: Any) -> None:
        self.head = layers.Dense(3, name="head")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.head(self.block(inputs)["outputs"])


def stack(shape: tuple[int | None, ...], *stacked: layers.Layer, dtype: str = "float32") -> keras.Model:
    """Return a sequential model named `m`."""
    return keras.Sequential([keras.Input(shape, dtype=dtype), *stacked], name="m")


def five_dense() -> keras.Model:
    return stack(
        (5,), *(layers.Dense(5, activation="relu", name=f"d{i}") for i in range(4)), layers.Dense(3, name="d4")
    )


def convolutions() -> keras.Model:
    return stack(
        (8, 8, 3), layers.Conv2D(4, 3, strides=2, padding="same", name="conv"), layers.BatchNormalization(name="norm"),
        layers.ReLU(name="relu"), layers.DepthwiseConv2D(3, name="depth"), layers.Dropout(0.5, seed=1, name="drop"),
        layers.GlobalAveragePooling2D(name="pool"), layers.Dense(3, name="head"),
    )  # fmt: skip


def recurrent() -> keras.Model:
    """Return a recurrent model. A mask passes from the embedding through all layers that support masks."""
    return stack(
        (6,), layers.Embedding(10, 5, mask_zero=True, name="words"), layers.LSTM(5, return_sequences=True, name="lstm"),
        layers.Bidirectional(layers.GRU(4, name="gru"), name="both"), layers.Dense(3, name="head"), dtype="int64",
    )  # fmt: skip


def cells() -> keras.Model:
    return stack(
        (6, 5), layers.TimeDistributed(layers.Dense(4), name="each"),
        layers.SimpleRNN(5, return_sequences=True, name="simple"),
        layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], name="cells"), layers.Dense(3, name="head"),
    )  # fmt: skip


def attention() -> keras.Model:
    inputs = keras.Input((6, 5))
    outputs = layers.MultiHeadAttention(2, 3, name="attend")(inputs, inputs)
    outputs = layers.Flatten(name="flat")(layers.LayerNormalization(name="norm")(outputs))
    return keras.Model(inputs, layers.Dense(3, name="head")(outputs), name="m")


def branches() -> keras.Model:
    """Return a model with two inputs and outputs, a shared layer, a nested model, and an operation between layers."""
    first, second = keras.Input((5,), name="first"), keras.Input((5,), name="second")
    shared = layers.Dense(5, name="shared")
    inner = keras.Sequential([keras.Input((5,)), layers.Dense(5, name="fc"), layers.ReLU(name="relu")], name="inner")
    joined = layers.Concatenate(name="join")([inner(shared(first)), shared(second)])
    joined = keras.ops.tanh(joined)
    outputs = [layers.Dense(3, name="left")(joined), layers.Dense(2, name="right")(joined)]
    return keras.Model([first, second], outputs, name="m")


def frozen() -> keras.Model:
    model = stack((5,), *(layers.Dense(5, name=f"d{i}") for i in range(2)), layers.Dense(3, name="d2"))
    model.layers[0].trainable = False
    return model


def mixed() -> keras.Model:
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return stack((8, 8, 3), layers.Conv2D(4, 3, name="conv"), layers.BatchNormalization(name="norm"),
                     layers.Flatten(name="flat"), layers.Dense(3, dtype="float32", name="head"))  # fmt: skip
    finally:
        keras.mixed_precision.set_global_policy(policy)


def assigning() -> keras.Model:
    return stack((5,), layers.Dense(4, name="d0"), Assigning(name="assigning"), layers.Dense(3, name="d1"))


def residual() -> keras.Model:
    inputs = hidden = keras.Input((8, 8, 3))
    for number in range(2):
        branch = layers.BatchNormalization(name=f"norm{number}")(layers.Conv2D(3, 1, name=f"conv{number}")(hidden))
        hidden = layers.Add(name=f"add{number}")([hidden, branch])
    pooled = layers.GlobalAveragePooling2D(name="pool")(hidden)
    return keras.Model(inputs, layers.Dense(3, name="head")(pooled), name="m")


MODELS: dict[str, tuple[Callable[[], keras.Model], Any, Any]] = {
    "dense": (five_dense, *VECTORS),
    "convolutions": (convolutions, *IMAGES),
    "recurrent": (recurrent, *WORDS),
    "cells": (cells, *SERIES),
    "attention": (attention, *SERIES),
    "branches": (branches, [VECTORS[0], VECTORS[0] * 2], [VECTORS[1], VECTORS[1][:, :2]]),
    "late": (Late, *VECTORS),
    "frozen": (frozen, *VECTORS),
    "mixed": (mixed, *IMAGES),
    "assigning": (assigning, *VECTORS),
    "residual": (residual, *IMAGES),
}
"""Builder, inputs and targets of each model."""


def compiled(kind: str, *, eager: bool = False, **options: Any) -> keras.Model:
    """Return a compiled model with the same weights each time."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = MODELS[kind][0]()
    losses = ["mse"] * len(model.outputs) if kind == "branches" else "mse"
    model.compile(options.pop("optimizer", "adam"), losses, run_eagerly=eager, **options)
    return model


def fit(model: keras.Model, kind: str, epochs: int = 1) -> list[Any]:
    """Train with batches of two samples. Return the losses, all weights, and the predictions after training."""
    _, inputs, targets = MODELS[kind]
    history = model.fit(inputs, targets, batch_size=2, epochs=epochs, shuffle=False, verbose=0).history
    predicted = keras.tree.flatten(model.predict(inputs, verbose=0))
    return [*history["loss"], *model.get_weights(), *predicted]


def same(one: list[Any], other: list[Any]) -> bool:
    """Return whether two runs gave bit-identical results."""
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def patched_layers(model: keras.Layer) -> list[str]:
    """Return the names of the layers whose `call` is patched."""
    return [layer.name for layer in model._flatten_layers() if "call" in vars(layer)]


def operations(function: Any) -> dict[str, int]:
    """Count each operation in the optimized graphs of a call.

    Of annot's nodes, only ranges are counted.
    """
    with context.collect_graphs(optimized=True) as graphs:
        function()
    nodes = [node for graph in graphs for node in graph.node]
    return Counter(node.op for node in nodes if node.op == "AnnotRange" or not node.name.startswith("annot/"))
