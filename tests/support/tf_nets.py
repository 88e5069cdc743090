"""Small Keras models and data for tests of training loops, the same in every call."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from annot.emit.client import IS_NATIVE
from annot.labels import tag

BATCH = 4


def numbered(text: str) -> str:
    """Return the recorded name of an epoch or batch. The `nvtx` package receives the name without the number."""
    parsed = tag.parse(text)
    assert parsed is not None
    return text if IS_NATIVE else tag.format(dataclasses.replace(parsed, step=None))


def network(*layers: Any, optimizer: Any = "sgd", seed: int = 0, **compiled: Any) -> Any:
    """Return a compiled model of the given layers. Default: two dense layers."""
    keras.utils.set_random_seed(seed)
    dense = [keras.layers.Dense(5, activation="tanh", name="one"), keras.layers.Dense(1, name="two")]
    model = keras.Sequential([keras.layers.Input((3,)), *(layers or dense)], name="net")
    compiled.setdefault("jit_compile", False)
    model.compile(optimizer, "mse", **compiled)
    return model


def samples(batches: int) -> tuple[Any, Any]:
    """Return inputs and targets as arrays, for `batches` batches of `BATCH` samples."""
    numbers = np.random.RandomState(0)
    return (numbers.rand(batches * BATCH, 3).astype("float32"), numbers.rand(batches * BATCH, 1).astype("float32"))


def weights(model: Any) -> list[bytes]:
    """Return the bits of all weights, including those of the optimizer."""
    variables = [*model.weights, *model.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(one.value)).tobytes() for one in variables]
