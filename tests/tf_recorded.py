"""What the recorder saw of a TensorFlow program, and whether its results are the plain ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from captured import Captured, Range, capture

from annot.tf import ops


def recorded(folder: Path, body: Callable[[], object]) -> Captured:
    """Run `body` under the recorder; every range is closed when it returns, with nothing left to close."""

    def inside() -> None:
        body()
        assert ops.close_open_ranges() == 0

    return capture(folder, inside)


def counts(captured: Captured) -> Counter[str]:
    """How many ranges each text has."""
    return Counter(captured.texts)


def only(captured: Captured, text: str) -> Range:
    """The one range of this text."""
    (found,) = [one for one in captured.ranges if one.text == text]
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two nests hold the same bits, and None in the same places."""
    ones, others = tf.nest.flatten(one), tf.nest.flatten(other)
    return len(ones) == len(others) and all(map(_same_tensor, ones, others))


def _same_tensor(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, tf.IndexedSlices):
        return isinstance(other, tf.IndexedSlices) and same([one.values, one.indices], [other.values, other.indices])
    left, right = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
    return left.dtype == right.dtype and left.shape == right.shape and left.numpy().tobytes() == right.numpy().tobytes()
