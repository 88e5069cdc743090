"""Small TensorFlow computations that run with or without ranges."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from annot.tf import trace


def ranged(name: str, tensors: Any, work: Any) -> Any:
    """Apply `work` to tensors in the range `name`, with the backward range `name'`."""
    return trace(name, "work", f"{name}'", "work")(work)(*tensors)


def plain(_name: str, tensors: Any, work: Any) -> Any:
    return work(*tensors)


def variables(count: int, size: int = 6) -> list[Any]:
    return [tf.Variable(tf.random.stateless_normal([size, size], [7, i])) for i in range(count)]


def dense(x: Any, weight: Any) -> Any:
    return tf.tanh(x @ weight)


def chain(x: Any, weights: Any, put: Any) -> Any:
    for i, weight in enumerate(weights):
        x = put(f"layer{i}", [x, weight], dense)
    return x


def step(x: Any, weights: Any, put: Any, sources: Any = None) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(chain(x, weights, put) ** 2)
    return loss, tape.gradient(loss, weights if sources is None else sources)
