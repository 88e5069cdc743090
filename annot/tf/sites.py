"""Which layer stands where: from a layer to its path in the model and the texts of its ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import keras
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from annot import emit, own, tag
from annot.hyperparameters import Arguments
from annot.keras.hyperparameters import gradients, hyperparameters
from annot.recent import Recent
from annot.shapes import MAX_TENSORS, spec_of
from annot.tf.owners import Owner, is_watched, may_be_taped
from annot.tf.sizes import sources_of

__all__ = ["Site", "tensors_among"]

_DEPTH: Final = 3
_PLAIN: Final = (type(None), bool, int, float, str)
"""What tells at once that it is no tensor; asking TensorFlow's classes takes long."""

_Specs: TypeAlias = tuple[tuple[tag.TensorSpec, ...], int, Arguments]


@dataclass(slots=True, eq=False)
class Site:
    """One layer of a model that has ranges: what they say, prepared once per combination of input shapes.

    Args:
        path: as `annot.keras.paths.paths` gives it.
        module: class name.
        layer: the layer itself.
        shapes: whether the ranges say shapes.
        events: events by phase and by what goes into the text.
    """

    path: str
    module: str
    layer: keras.Layer
    shapes: bool = True
    events: Recent = field(default_factory=Recent)

    def forward(self, tensors: Sequence[Any]) -> Any:
        """Return the event of a forward call with these tensors."""
        return self._made("forward", _key(tensors), tensors)[1]

    def owner(
        self, tensors: Sequence[Any], parent: Owner | None, *, forward: bool, backward: bool, recomputed: bool
    ) -> Owner:
        """Return the owner of the operations of a call with these tensors.

        Args:
            tensors: the inputs.
            parent: the owner around the call.
            forward: whether the call has a range.
            backward: whether its backward has one.
            recomputed: whether the call is part of a backward.
        """
        key = _key(tensors)
        made, event = self._made("recompute" if recomputed else "forward", key, tensors)
        grad_tag = grad_event = None
        if backward:
            needs = bool(self.layer.trainable_variables), any(map(_needs_gradient, tensors))
            grad_tag, grad_event = self._made("backward", (*needs, *key), tensors, needs)
        sizes = sources_of(tensors[:MAX_TENSORS]) if self.shapes else ()
        return Owner(event if forward else None, grad_event, parent, tag=made, grad_tag=grad_tag, sizes=sizes)

    def _made(
        self, phase: tag.Phase, key: tuple[Any, ...], tensors: Sequence[Any], needs: tuple[bool, bool] | None = None
    ) -> tuple[tag.Tag, Any]:
        """Return what a range shows, and its event."""
        found: tuple[tag.Tag, Any] | None = self.events.recall((phase, key))
        if found is None:
            specs, omitted, arguments = self.shown(tensors)
            if specs and needs is not None:
                grad: Arguments = own.attempt(gradients, self.layer, *needs, otherwise=())
                arguments += grad
            shown = tag.Tag(self.path, self.module, phase, specs, omitted, arguments=arguments)
            found = shown, emit.event(tag.format(shown), category=phase, few=not specs)
            self.events.keep((phase, key), found)
        return found

    def shown(self, tensors: Sequence[Any]) -> _Specs:
        """Return what the text of a call with these tensors shows of them, and of the layer."""
        if not self.shapes:
            return (), 0, ()
        specs = tuple(spec_of(tensor) for tensor in tensors[:MAX_TENSORS])
        arguments: Arguments = ()
        if specs:  # a subclass may do without what its class sets
            arguments = own.attempt(hyperparameters, self.layer, self.module, otherwise=())
        return specs, max(0, len(tensors) - MAX_TENSORS), arguments


def tensors_among(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that come into a call: not masks, which say which part of these counts."""
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
    elif not isinstance(value, _PLAIN) and isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        found.append(value)


def _needs_gradient(tensor: Any) -> bool:
    """Return whether a tensor may need a gradient: a tape watches it, or a graph has computed it.

    The tape may be around a function that is traced without one; then an argument of the function is taken for data.
    """
    if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        tensor = tensor.flat_values if isinstance(tensor, tf.RaggedTensor) else tensor.values
    if isinstance(tensor, EagerTensor) or may_be_taped():
        return is_watched(tensor)
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and tensor.op.type != "Placeholder"


def _key(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """What tells the texts of two calls apart."""
    return tuple([_shape_and_dtype(tensor) for tensor in tensors])


def _shape_and_dtype(tensor: Any) -> tuple[Any, Any]:
    if isinstance(tensor, EagerTensor):  # whose `shape` would cost a microsecond
        return tensor._shape_tuple(), tensor._datatype_enum()
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape), tensor.dtype
