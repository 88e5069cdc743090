"""Train a Keras network without and with ranges in turns, each step from the same weights, and count the results.

    python tf_sum_fits.py NETWORK OPTIMIZER THREADS TRACES STEPS

Prints three counts as JSON, by hash of all weights after a step: without ranges, again without, and with ranges.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

import annot

layers = keras.layers
Block: TypeAlias = Callable[[Any], AbstractContextManager[Any]]
SIZES = {"ResNet50V2": 32, "InceptionV3": 75}


class Fork(keras.Layer):  # type: ignore[misc]
    """Copies of its input. Their gradients are added in the order in which they are ready."""

    def call(self, x: Any) -> Any:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def copies(x: Any) -> Any:
            return [tf.identity(x) for _ in range(5)], lambda *g: tf.raw_ops.AccumulateNV2(inputs=g, shape=x.shape)

        return copies(x)


def forked() -> keras.Model:
    """Branches of different lengths between a fork and its sum."""
    inputs = keras.Input((64,), batch_size=8)
    a, b, c, d, e = Fork()(layers.Dense(64)(inputs))
    b = layers.Dense(64, "relu")(b)
    c = layers.Dense(64)(layers.LayerNormalization()(layers.Dense(64, "relu")(c)))
    e = layers.Dense(64)(layers.Activation("tanh")(layers.Dense(128)(layers.ReLU()(layers.Dense(64)(e)))))
    x = layers.LayerNormalization()(layers.Add()([a, b, c, layers.Rescaling(30.0)(d), e]))
    return keras.Model(inputs, layers.Dense(4, "softmax")(x), name="forked")


def network(name: str) -> keras.Model:
    keras.backend.clear_session()
    gc.collect()
    keras.utils.set_random_seed(7)
    if name == "forked":
        return forked()
    size = SIZES[name]
    return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=4)


def results(name: str, optimizer: str, steps: int, block: Block) -> list[str]:
    model = network(name)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    variables = [one.value for one in (*model.variables, *model.optimizer.variables)]
    first = [one.numpy() for one in variables]
    batch = model.input_shape[0] or 2
    x = np.random.RandomState(0).rand(batch, *model.input_shape[1:]).astype("f")
    found = []
    with block(model):
        for _ in range(steps):
            model.train_on_batch(x, np.arange(batch) % 4)
            found.append(hashlib.md5(b"".join(one.numpy().tobytes() for one in variables)).hexdigest())
            for variable, value in zip(variables, first, strict=True):
                variable.assign(value)
    return found


def main(name: str, optimizer: str, threads: str, traces: str, steps: str) -> None:
    warnings.simplefilter("ignore")
    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(int(threads))
    annot.enable()
    plain: Block = lambda _: contextlib.nullcontext()  # noqa: E731
    blocks: tuple[Block, ...] = (plain, plain, annot.emit_ranges)
    counts: list[Counter[str]] = [Counter() for _ in blocks]
    for _ in range(int(traces)):
        for counter, block in zip(counts, blocks, strict=True):
            counter.update(results(name, optimizer, int(steps), block))
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
