"""Small Keras models and data for the tests of loops; every call gives the same numbers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

BATCH = 4


def network(*layers: Any, optimizer: Any = "sgd", seed: int = 0, **compiled: Any) -> Any:
    """Return a compiled model, of two dense layers unless some are given."""
    keras.utils.set_random_seed(seed)
    dense = [keras.layers.Dense(5, activation="tanh", name="one"), keras.layers.Dense(1, name="two")]
    model = keras.Sequential([keras.layers.Input((3,)), *(layers or dense)], name="net")
    compiled.setdefault("jit_compile", False)
    model.compile(optimizer, "mse", **compiled)
    return model


def samples(batches: int) -> tuple[Any, Any]:
    """Return inputs and targets, as arrays, for that many batches of `BATCH`."""
    numbers = np.random.RandomState(0)
    return (numbers.rand(batches * BATCH, 3).astype("float32"), numbers.rand(batches * BATCH, 1).astype("float32"))


def weights(model: Any) -> list[bytes]:
    """Return the bits of all weights, those of the optimizer included."""
    variables = [*model.weights, *model.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(one.value)).tobytes() for one in variables]
