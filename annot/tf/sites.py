"""Which layer stands where: from a layer to its path in the model and the texts of its ranges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import keras
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from annot import emit, tag
from annot.hyperparameters import Arguments
from annot.shapes import MAX_TENSORS, spec_of
from annot.tf import sizes
from annot.tf.hyperparameters import gradients, hyperparameters

__all__ = ["Site", "tensors_among"]

_TOO_MANY: Final = "too many different input shapes for one run: further ranges show none"
_DEPTH: Final = 3
_PLAIN: Final = (type(None), bool, int, float, str)
"""What tells at once that it is no tensor; asking TensorFlow's classes takes long."""

_Specs: TypeAlias = tuple[tuple[tag.TensorSpec, ...], int, Arguments]


@dataclass(slots=True, eq=False)
class Site:
    """One layer of a model that has ranges: what they say, prepared once per combination of input shapes.

    Args:
        path: as `annot.tf.paths.paths` gives it.
        module: class name.
        layer: the layer itself.
        shapes: whether the ranges say shapes.
        is_model: whether this is the whole model.
        events: events by phase and by what goes into the text.
    """

    path: str
    module: str
    layer: keras.Layer
    shapes: bool = True
    is_model: bool = False
    events: dict[Any, Any] = field(default_factory=dict)

    def forward(self, tensors: Sequence[Any]) -> Any:
        """Return the event of a forward call with these tensors."""
        key = _key(tensors)
        event = self.events.get(key)
        if event is None:
            event = self.events[key] = self._make("forward", self.shown(tensors))
        return event

    def backward(self, tensors: Sequence[Any], *, weights: bool, inputs: bool) -> Any:
        """Return the event of the backward of such a call.

        Args:
            tensors: what came into the forward.
            weights: whether any weight needs a gradient.
            inputs: whether any of the tensors does.
        """
        key = weights, inputs, *_key(tensors)
        event = self.events.get(key)
        if event is None:
            specs, omitted, arguments = self.shown(tensors)
            if specs:
                with contextlib.suppress(Exception):
                    arguments += gradients(self.layer, weights=weights, inputs=inputs)
            event = self.events[key] = self._make("backward", (specs, omitted, arguments))
        return event

    def whole_backward(self) -> Any:
        """Return the event of the whole backward, which is not that of one call."""
        event = self.events.get("backward")
        if event is None:
            event = self.events["backward"] = self._make("backward", ((), 0, ()))
        return event

    def shown(self, tensors: Sequence[Any]) -> _Specs:
        """Return what the text of a call with these tensors shows of them, and of the layer."""
        if not self.shapes:
            return (), 0, ()
        if not emit.room_for_texts(2):
            emit.warn_once(_TOO_MANY)
            return (), 0, ()
        specs = tuple(spec_of(tensor) for tensor in tensors[:MAX_TENSORS])
        arguments: Arguments = ()
        if specs:
            with contextlib.suppress(Exception):  # a subclass may do without what its class sets
                arguments = hyperparameters(self.layer, self.module)
        return specs, max(0, len(tensors) - MAX_TENSORS), arguments

    def open_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors of whose sizes the texts of a call with these tensors leave some open."""
        return sizes.open_tensors(tensors[:MAX_TENSORS]) if self.shapes else []

    def _make(self, phase: tag.Phase, shown: _Specs) -> Any:
        specs, omitted, arguments = shown
        text = tag.format(tag.Tag(self.path, self.module, phase, specs, omitted, arguments=arguments))
        return emit.event(text, category=phase, few=not specs)


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


def _key(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """What tells the texts of two calls apart."""
    return tuple([_shape_and_dtype(tensor) for tensor in tensors])


def _shape_and_dtype(tensor: Any) -> tuple[Any, Any]:
    if isinstance(tensor, EagerTensor):  # whose `shape` would cost a microsecond
        return tensor._shape_tuple(), tensor._datatype_enum()
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape), tensor.dtype
