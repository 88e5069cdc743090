"""Sessions of `annot try` in this process, and programs whose steps they count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from tf_nets import BATCH, network, samples

from annot.live.keras_session import KerasSession
from annot.live.request import Request
from annot.live.session import StepsMeasured

EPOCHS = 3


@contextlib.contextmanager
def measured(*changes: str, **request: Any) -> Iterator[KerasSession]:
    """Measure the program in the block with changes of these names. The block ends after the measured steps."""
    live = {name: f"annot.live.keras_changes:{name.replace('-', '_')}" for name in changes}
    session = KerasSession(Request(result="", changes=live, **request))
    policy = keras.config.dtype_policy()
    session.apply()
    try:
        with contextlib.suppress(StepsMeasured):
            yield session
    finally:
        session.finish()
        keras.config.set_dtype_policy(policy)


def fit(model: Any) -> None:
    """Train on ten batches in each epoch, with a validation after it."""
    x, y = samples(10)
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, shuffle=False, validation_data=samples(2))


def fit_data(model: Any) -> None:
    """Train on a data set of known length."""
    model.fit(tf.data.Dataset.from_tensor_slices(samples(10)).batch(BATCH), epochs=EPOCHS, verbose=0)


def on_batches(model: Any) -> None:
    """Train and test on batches in turn."""
    for x, y in _batches():
        model.train_on_batch(x, y)
        model.test_on_batch(x, y)


def eagerly(model: Any) -> None:
    """Train in a loop in eager mode, with a test before each step."""
    for x, y in _batches():
        model(x)
        _update(model, x, y)


def in_a_function(model: Any, strategy: Any = None) -> None:
    """Train in a loop that calls a `tf.function`, with a test before each step."""
    update = _update if strategy is None else lambda *args: strategy.run(_update, args)
    train, test = tf.function(update), tf.function(lambda model, x: model(x))
    for x, y in _batches():
        test(model, x)
        train(model, x, y)


def adversarially(model: Any) -> None:
    """Train a second model after each step of the first one."""
    other = network(seed=1)
    train, train_other = tf.function(_update), tf.function(_update)
    for x, y in _batches():
        train(model, x, y)
        train_other(other, x, y)
        train_other(other, x, y)


def _batches() -> Iterator[tuple[Any, Any]]:
    x, y = samples(10)
    for _ in range(EPOCHS):
        for at in range(0, len(x), BATCH):
            yield tf.constant(x[at : at + BATCH]), tf.constant(y[at : at + BATCH])


def _update(model: Any, x: Any, y: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.cast(model(x, training=True), tf.float32) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
