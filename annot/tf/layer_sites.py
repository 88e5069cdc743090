"""Layers with their paths and the labels of their ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import keras
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from annot.emit import client, guard
from annot.emit.shapes import MAX_TENSORS, spec_of
from annot.keras.hyperparameters import gradients, hyperparameters
from annot.labels import tag
from annot.labels.hyperparameters import Arguments
from annot.tf.dynamic_sizes import sources_of
from annot.tf.owners import Owner, is_watched, may_be_taped
from annot.util.lru_cache import Recent

__all__ = ["Site", "tensors_among"]

_DEPTH: Final = 3
_NOT_TENSORS: Final = (type(None), bool, int, float, str)
"""Types that need no `isinstance` check against TensorFlow's classes, which is slow."""

_Specs: TypeAlias = tuple[tuple[tag.TensorSpec, ...], int, Arguments]


@dataclass(slots=True, eq=False)
class Site:
    """A layer with its path and the labels of its ranges, built once per combination of input shapes.

    Args:
        path: path of the layer, from `annot.keras.layer_paths.paths`.
        module: class name of the layer.
        layer: the layer.
        shapes: whether the labels have shapes.
        events: cache of tags and events, by phase and input shapes.
    """

    path: str
    module: str
    layer: keras.Layer
    shapes: bool = True
    events: Recent = field(default_factory=Recent)

    def forward(self, tensors: Sequence[Any]) -> Any:
        """Return the event of a forward call with these input tensors."""
        return self._tag_and_event("forward", _key(tensors), tensors)[1]

    def owner(
        self, tensors: Sequence[Any], parent: Owner | None, *, forward: bool, backward: bool, recomputed: bool
    ) -> Owner:
        """Return a new owner for the operations of a call.

        Args:
            tensors: the input tensors.
            parent: the enclosing owner.
            forward: whether the call has a range.
            backward: whether its backward has a range.
            recomputed: whether the call is part of a backward, as with recomputed activations.
        """
        key = _key(tensors)
        made, event = self._tag_and_event("recompute" if recomputed else "forward", key, tensors)
        grad_tag = grad_event = None
        if backward:
            needs = bool(self.layer.trainable_variables), any(map(_needs_gradient, tensors))
            grad_tag, grad_event = self._tag_and_event("backward", (*needs, *key), tensors, needs)
        sizes = sources_of(tensors[:MAX_TENSORS]) if self.shapes else ()
        return Owner(event if forward else None, grad_event, parent, tag=made, grad_tag=grad_tag, sizes=sizes)

    def _tag_and_event(
        self, phase: tag.Phase, key: tuple[Any, ...], tensors: Sequence[Any], needs: tuple[bool, bool] | None = None
    ) -> tuple[tag.Tag, Any]:
        """Return the tag and the event of a range, from the cache if possible."""
        found: tuple[tag.Tag, Any] | None = self.events.recall((phase, key))
        if found is None:
            specs, omitted, arguments = self.shown(tensors)
            if specs and needs is not None:
                grad: Arguments = guard.attempt(gradients, self.layer, *needs, otherwise=())
                arguments += grad
            shown = tag.Tag(self.path, self.module, phase, specs, omitted, arguments=arguments)
            found = shown, client.event(tag.format(shown), category=phase, few=not specs)
            self.events.keep((phase, key), found)
        return found

    def shown(self, tensors: Sequence[Any]) -> _Specs:
        """Return the tensor specs, the number of tensors left out, and the hyperparameters for a label."""
        if not self.shapes:
            return (), 0, ()
        specs = tuple(spec_of(tensor) for tensor in tensors[:MAX_TENSORS])
        arguments: Arguments = ()
        if specs:  # fails if a subclass lacks attributes that its base class sets
            arguments = guard.attempt(hyperparameters, self.layer, self.module, otherwise=())
        return specs, max(0, len(tensors) - MAX_TENSORS), arguments


def tensors_among(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the input tensors of a call, without masks."""
    found: list[Any] = []
    for value in args:
        _collect(value, _DEPTH, found)
    for name, value in kwargs.items():
        if value is not None and not _is_mask(name):
            _collect(value, _DEPTH, found)
    return found


def _is_mask(name: str) -> bool:
    return name == "mask" or name.endswith("_mask")


def _collect(value: Any, depth: int, found: list[Any]) -> None:
    if isinstance(value, tf.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple, dict)):
        if depth:
            for item in value.values() if isinstance(value, dict) else value:
                _collect(item, depth - 1, found)
    elif not isinstance(value, _NOT_TENSORS) and isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        found.append(value)


def _needs_gradient(tensor: Any) -> bool:
    """Return whether a tensor may need a gradient: a tape watches it, or an operation of a graph computes it.

    If the tape is outside of a traced function, the function's arguments count as data without a gradient.
    """
    if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        tensor = tensor.flat_values if isinstance(tensor, tf.RaggedTensor) else tensor.values
    if isinstance(tensor, EagerTensor) or may_be_taped():
        return is_watched(tensor)
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and tensor.op.type != "Placeholder"


def _key(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Return the part of the cache key that depends on the tensors: their shapes and dtypes."""
    return tuple([_shape_and_dtype(tensor) for tensor in tensors])


def _shape_and_dtype(tensor: Any) -> tuple[Any, Any]:
    if isinstance(tensor, EagerTensor):  # reading `shape` takes a microsecond
        return tensor._shape_tuple(), tensor._datatype_enum()
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape), tensor.dtype
