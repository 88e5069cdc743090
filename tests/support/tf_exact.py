"""Run TensorFlow programs without and with ranges, for tests that compare the bits of their results."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from captured import Captured
from tensorflow.python.framework import config
from tf_recorded import recorded

import annot


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
