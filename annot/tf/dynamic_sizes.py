"""Labels with sizes that are known only when the graph runs, such as the size of the last batch in an epoch.

In the graphs of `fit`, Keras leaves the batch size unknown. An unknown size is a ``?`` in the label of a range. The
operation that opens the range gets the shapes of these tensors as int32, and this module returns the event with them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from annot.emit import client
from annot.labels import tag
from annot.util.locks import fork_safe

MAX_SIZED: Final = 64
"""Maximum number of variants of one label, as in annot/native/tf_ops/operations.c. Further ranges keep the ``?``."""

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_TOO_MANY: Final = f"a layer in a graph has more than {MAX_SIZED} different input shapes: further ranges show '?'"

_lock = fork_safe()
_variants: dict[Any, dict[Shapes, Any]] = {}  # keeps the events alive for the C library


class Source(NamedTuple):
    """Name and DataType number of a tensor in a graph."""

    name: str
    kind: int


def sources_of(tensors: Sequence[Any]) -> tuple[Source, ...]:
    """Return those of the tensors in a label that have an unknown size.

    The result is empty if one of them is ragged, sparse or eager. The dense shape of a ragged or sparse tensor does not
    determine the work.
    """
    dynamic = [tensor for tensor in tensors if tensor.shape.rank is None or None in tuple(tensor.shape)]
    if not all(isinstance(tensor, tf.Tensor) and not isinstance(tensor, EagerTensor) for tensor in dynamic):
        return ()
    return tuple(Source(_computed(tensor).name, tensor.dtype.as_datatype_enum) for tensor in dynamic)


def _computed(tensor: Any) -> Any:
    """Return the tensor that this one is a copy of, because TensorFlow's optimizers remove copies."""
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def shapes_among(numbers: Sequence[int]) -> Shapes:
    """Return the shapes in a flat sequence of integers, where the rank precedes the sizes of each shape."""
    values = iter(numbers)
    return tuple([tuple(itertools.islice(values, rank)) for rank in values])


def sized(event: Any, shapes: Shapes) -> Any:
    """Return the event of the same range with a shape for each tensor with an unknown size, in order.

    The result is `event` itself if it has `MAX_SIZED` variants already.
    """
    with _lock:
        variants = _variants.setdefault(event, {})
        if shapes not in variants and len(variants) < MAX_SIZED:
            variants[shapes] = _fill_shapes(event, shapes)
    if shapes not in variants:
        client.warn_once(_TOO_MANY)
    return variants.get(shapes, event)


def _fill_shapes(event: Any, shapes: Shapes) -> Any:
    shown = tag.parse(event.text)
    if shown is None:
        return event
    remaining = iter(shapes)
    tensors = tuple(
        dataclasses.replace(spec, shape=next(remaining, spec.shape)) if None in spec.shape else spec
        for spec in shown.tensors
    )
    text = tag.format(dataclasses.replace(shown, tensors=tensors))
    return client.event(text, domain=event.domain, category=shown.phase)
