"""Ranges in TensorFlow and Keras; importing this imports TensorFlow."""

from __future__ import annotations

from annot.tf.ranges import EmitRanges, emit_ranges

__all__ = ["EmitRanges", "emit_ranges"]
