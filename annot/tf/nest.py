"""The tensors in whatever the user passes around, and the same thing around other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["replace_tensors", "tensors_in"]

_COMPOSITES = (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)


def tensors_in(structure: Any) -> list[Any]:
    """Return the tensors of any nest, those that ragged and sparse tensors are made of too.

    Example:
        >>> [int(tensor) for tensor in tensors_in({"b": [tf.constant(2), "text"], "a": tf.constant(1)})]
        [1, 2]
    """
    return [tensor for leaf in tf.nest.flatten(structure) for tensor in _parts(leaf)]


def replace_tensors(structure: Any, tensors: Sequence[Any]) -> Any:
    """Return the same nest around other tensors; the very same object if they are the very same tensors.

    Args:
        structure: any nest.
        tensors: one for each of `tensors_in`.
    """
    if all(new is old for new, old in zip(tensors, tensors_in(structure), strict=True)):
        return structure
    following = iter(tensors)
    return tf.nest.map_structure(lambda leaf: _rebuilt(leaf, following), structure)


def _parts(leaf: Any) -> list[Any]:
    if isinstance(leaf, tf.Tensor):
        return [leaf]
    if isinstance(leaf, _COMPOSITES):
        return [part for part in tf.nest.flatten(leaf, expand_composites=True) if isinstance(part, tf.Tensor)]
    return []


def _rebuilt(leaf: Any, following: Any) -> Any:
    if isinstance(leaf, tf.Tensor):
        return next(following)
    if isinstance(leaf, _COMPOSITES):
        parts = tf.nest.flatten(leaf, expand_composites=True)
        new = [next(following) if isinstance(part, tf.Tensor) else part for part in parts]
        return tf.nest.pack_sequence_as(leaf, new, expand_composites=True)
    return leaf
