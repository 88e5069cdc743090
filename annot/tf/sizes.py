"""Sizes that are known only when a graph runs, such as the last batch of an epoch: put into the text of a range there.

Keras leaves the number of samples open in the graphs of `fit`. What is open is a ``?`` in the text of a range; the
operation that opens the range is given the shapes of those tensors, four bytes a size, and asks here for the text.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from annot import emit, tag
from annot.locks import fork_safe

__all__ = ["MAX_SIZED", "Shapes", "Source", "shapes_among", "sized", "sources_of"]

MAX_SIZED: Final = 64
"""How many variants of one text there are; further ones show the open sizes as such (as in annot/native/tf_ops.c)."""

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_TOO_MANY: Final = f"over {MAX_SIZED} different input shapes of a layer in a graph: further ranges show '?' for a size"

_lock = fork_safe()
_variants: dict[tuple[Any, Shapes], Any] = {}  # which keeps the events alive for the C part
_counts: Counter[Any] = Counter()


class Source(NamedTuple):
    """A tensor of a graph, by name, and its type as TensorFlow numbers it."""

    name: str
    kind: int


def sources_of(tensors: Sequence[Any]) -> tuple[Source, ...]:
    """Return the tensors of a graph that have an open size, of those that a text shows.

    None if one of them is ragged or sparse: of such a one the sizes are no measure of the work.
    """
    found = [tensor for tensor in tensors if tensor.shape.rank is None or None in tuple(tensor.shape)]
    if not all(isinstance(tensor, tf.Tensor) and not isinstance(tensor, EagerTensor) for tensor in found):
        return ()
    return tuple(Source(_computed(tensor).name, tensor.dtype.as_datatype_enum) for tensor in found)


def _computed(tensor: Any) -> Any:
    """Return the tensor that one is a copy of, since TensorFlow removes what only copies."""
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def shapes_among(numbers: Sequence[int]) -> Shapes:
    """Return the shapes that are written one after another, each with its rank in front of it.

    Example:
        >>> shapes_among([2, 32, 10, 1, 7])
        ((32, 10), (7,))
    """
    shapes: list[tuple[int, ...]] = []
    at = 0
    while at < len(numbers):
        end = at + 1 + numbers[at]
        shapes.append(tuple(numbers[at + 1 : end]))
        at = end
    return tuple(shapes)


def sized(event: Any, shapes: Shapes) -> Any:
    """Return the event of the same range with these shapes for the tensors with an open size, in order.

    Args:
        event: of `annot.emit.event`, with the text of a tag.
        shapes: one for each tensor with an open size.

    Returns:
        The event itself if it has `MAX_SIZED` variants already.
    """
    with _lock:
        made = _variants.get((event, shapes))
        if made is None and _counts[event] < MAX_SIZED:
            made = _variants[event, shapes] = _made(event, shapes)
            _counts[event] += 1
    if made is None:
        emit.warn_once(_TOO_MANY)
    return made or event


def _made(event: Any, shapes: Shapes) -> Any:
    shown = tag.parse(event.text)
    if shown is None:
        return event
    following = iter(shapes)
    tensors = tuple(_closed(spec, following) for spec in shown.tensors)
    text = tag.format(dataclasses.replace(shown, tensors=tensors))
    return emit.event(text, domain=event.domain, category=shown.phase)


def _closed(spec: tag.TensorSpec, following: Iterator[tuple[int, ...]]) -> tag.TensorSpec:
    return dataclasses.replace(spec, shape=next(following, spec.shape)) if None in spec.shape else spec
