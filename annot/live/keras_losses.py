"""Losses of the first steps of a Keras program, kept in a variable that also compiled steps write to."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import tensorflow as tf


class Losses:
    """Losses of the first updates of an optimizer.

    A graph runs no Python code, and one call may run many steps. So each update, in eager mode or in a graph, writes
    its loss to a variable. Reading the variable waits for the device.

    Args:
        count: number of losses to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: Any = None
        self._number: Any = None

    def keep(self, loss: Any, scale: Any) -> None:
        """Keep the loss of an update, or of each update of the graph that is being traced.

        Nothing is kept under a distribution strategy, where every replica has a loss, and if the loss belongs to
        another graph than the update.

        Args:
            loss: tensor that was differentiated. Several values count as their mean.
            scale: factor by which the optimizer has scaled the loss.
        """
        if tf.distribute.has_strategy():
            return
        with contextlib.suppress(TypeError, ValueError):
            value = tf.reduce_mean(tf.cast(loss, tf.float32)) / tf.cast(scale, tf.float32)
            self._write(value)

    def read(self) -> list[float | None]:
        """Return the losses so far; None: a loss is NaN or infinite."""
        if self._kept is None:
            return []
        values = self._kept.numpy()[: min(int(self._number.numpy()), self._count)]
        return [float(value) if math.isfinite(value) else None for value in values]

    def _write(self, value: Any) -> None:
        if self._kept is None:
            with tf.init_scope():  # outside the graph, where the variables also live after it
                self._kept = tf.Variable(tf.zeros([self._count + 1]), trainable=False)
                self._number = tf.Variable(0, dtype=tf.int64, trainable=False)
        place = tf.minimum(self._number, self._count)  # all later losses share the last place
        is_here = tf.range(self._count + 1, dtype=tf.int64) == place
        self._kept.assign(tf.where(is_here, value, self._kept))
        self._number.assign_add(1)
