"""Ranges in TensorFlow and Keras; importing this imports TensorFlow."""

from __future__ import annotations

from annot.tf.calls import end, start, trace
from annot.tf.ranges import EmitRanges, emit_ranges

__all__ = ["EmitRanges", "emit_ranges", "end", "start", "trace"]
