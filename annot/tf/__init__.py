"""Ranges in TensorFlow and Keras; importing this imports TensorFlow."""

from __future__ import annotations

from annot.tf.calls import end, start, trace

__all__ = ["end", "start", "trace"]
