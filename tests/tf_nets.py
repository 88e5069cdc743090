"""Small Keras models and data for the tests of loops; every call gives the same numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from annot import tag
from annot.emit import IS_NATIVE

BATCH = 4


def numbered(text: str) -> str:
    """Return the text of an epoch or batch as it is recorded: the `nvtx` package gets none with a number."""
    parsed = tag.parse(text)
    assert parsed is not None
    return text if IS_NATIVE else tag.format(dataclasses.replace(parsed, step=None))


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
