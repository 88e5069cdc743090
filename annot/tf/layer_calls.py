"""Wrappers around the `call` of each layer, while an `emit_ranges` block is open, and the labels of their ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import record
from tensorflow.python.framework.ops import EagerTensor

from annot.emit import class_sources, client, guard
from annot.emit.layer_filter import EVERYTHING, Choice
from annot.emit.patches import Patches
from annot.emit.shapes import MAX_TENSORS, specs_of
from annot.keras.hyperparameters import gradients, hyperparameters
from annot.keras.layer_paths import SEPARATOR, paths
from annot.labels import tag
from annot.labels.hyperparameters import Arguments
from annot.tf import name_scopes, owners
from annot.tf.dynamic_sizes import sources_of
from annot.util.lru_cache import Recent


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one `emit_ranges` block."""

    forward: bool = True
    backward: bool = True
    shapes: bool = True
    choice: Choice = EVERYTHING
    operations: bool = False
    """Whether annot adds operations to graphs."""
    optimizer: bool = True
    data: bool = True


_CALLS: Final = ("call", "quantized_call")
_NO_XLA: Final = (
    "XLA-compiled code (jit_compile=True) has layer names but no layer ranges: set jit_compile=False to see the ranges"
)
_DEPTH: Final = 3
_NOT_TENSORS: Final = (type(None), bool, int, float, str)
"""Types that need no `isinstance` check against TensorFlow's classes, which is slow."""


class Layers:
    """The wrapped layers of all open blocks. A layer in several blocks has the options of the first."""

    def __init__(self) -> None:
        self._wrappers: dict[int, LayerWrapper] = {}

    def add(self, path: str, model: keras.Layer, options: Options, block: list[LayerWrapper]) -> None:
        """Wrap the selected layers of a model, and add the wrappers to `block`, for `remove`."""
        classes: set[tuple[str, type]] = set()
        for below, layer in paths(model, path):
            if not options.choice.takes(below.partition(SEPARATOR)[2], layer):
                continue
            wrapper = self._wrappers.get(id(layer))
            if wrapper is None:
                wrapper = LayerWrapper(below, layer, options, self, block)
            elif id(block) in wrapper.holders:
                continue
            block.append(wrapper)  # first, since an interrupt may come between any two calls
            wrapper.holders.add(id(block))
            if id(layer) not in self._wrappers:
                self._wrappers[id(layer)] = wrapper
                wrapper.install()
                classes.add((type(layer).__name__, type(layer)))
        class_sources.note(classes)

    def remove(self, block: list[LayerWrapper]) -> None:
        """Remove the wrappers of a block, the last one first. A wrapper that another block also uses stays.

        If an interrupt stops this, the next call finishes the rest.
        """
        while block:
            wrapper = block[-1]
            wrapper.holders.discard(id(block))
            if not wrapper.holders:
                self._wrappers.pop(id(wrapper.layer), None)
                wrapper.patches.undo()
            del block[-1]


class LayerWrapper:
    """The wrappers around `call` of one layer, and around `quantized_call` of a quantized layer, with their labels.

    They are stored in the ``__dict__`` of the layer, where Keras finds them and does not track them. `layers` has all
    wrappers, `block` those of the block that created this one.
    """

    def __init__(
        self, path: str, layer: keras.Layer, options: Options, layers: Layers, block: list[LayerWrapper]
    ) -> None:
        self._path, self._module, self.layer = path, type(layer).__name__, layer
        self._options, self._layers, self._block = options, layers, block
        self._events = Recent()  # by phase, input shapes and dtypes
        self.holders: set[int] = set()
        """The ids of the blocks that use these wrappers."""
        self.patches = Patches()
        self._sublayer_count = -1

    def install(self) -> None:
        """Wrap the methods of the layer."""
        for name in _CALLS:
            if getattr(self.layer, name, None) is not None:
                self.patches.wrap(self.layer, name, self._call)

    def _call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        layer, options, eager = self.layer, self._options, tf.executing_eagerly()
        # A graph that Keras traces to infer shapes may also run, as of a `tf.function` in a layer.
        if _keras_infers_shapes() and (eager or not options.operations or not layer.built):
            return original(*args, **kwargs)
        # Sublayers may be created later, for example when a subclass is built.
        if len(layer._layers) != self._sublayer_count:
            self._sublayer_count = len(layer._layers)
            self._layers.add(self._path, layer, options, self._block)
        tensors = _tensors_among(args, kwargs)
        if eager and not (options.backward and owners.may_be_taped()):
            if not options.forward:
                return original(*args, **kwargs)
            event = self._event("forward", _key(tensors), tensors)
            return client.inside(event, original, args, kwargs)
        if not eager:  # for reports that have only the names of operations
            name_scopes.note(tf.get_current_name_scope(), self._label("forward", tensors))
            if not options.operations or owners.in_xla():
                if options.operations:
                    client.warn_once(_NO_XLA)
                return original(*args, **kwargs)
        return owners.call(self._owner(tensors), original, args, kwargs)

    def _owner(self, tensors: Sequence[Any]) -> owners.Owner:
        """Return a new owner for the operations of a call with these input tensors."""
        key, options = _key(tensors), self._options
        event = self._event("recompute" if owners.in_backward() else "forward", key, tensors)
        grad_event = None
        if options.backward:
            needs = bool(self.layer.trainable_variables), any(map(_needs_gradient, tensors))
            grad_event = self._event("backward", (*needs, *key), tensors, needs)
        sizes = sources_of(tensors[:MAX_TENSORS]) if options.shapes else ()
        return owners.Owner(event if options.forward else None, grad_event, owners.current(), sizes=sizes)

    def _event(
        self, phase: tag.Phase, key: tuple[Any, ...], tensors: Sequence[Any], needs: tuple[bool, bool] | None = None
    ) -> Any:
        """Return the event of a range, from the cache if possible."""
        event = self._events.recall((phase, key))
        if event is None:
            shown = self._label(phase, tensors)
            if shown.tensors and needs is not None:
                grad: Arguments = guard.attempt(gradients, self.layer, *needs, otherwise=())
                shown = replace(shown, arguments=shown.arguments + grad)
            event = client.event(tag.format(shown), category=phase, few=not shown.tensors)
            self._events.keep((phase, key), event)
        return event

    def _label(self, phase: tag.Phase, tensors: Sequence[Any]) -> tag.Tag:
        if not self._options.shapes or not tensors:
            return tag.Tag(self._path, self._module, phase)
        # Fails if a subclass lacks attributes that its base class sets.
        arguments: Arguments = guard.attempt(hyperparameters, self.layer, self._module, otherwise=())
        return tag.Tag(self._path, self._module, phase, *specs_of(tensors), arguments=arguments)


def _keras_infers_shapes() -> bool:
    """Return whether Keras calls layers only to infer shapes.

    Keras 3 keeps its symbolic scope as an attribute of an object that `keras.backend.clear_session` replaces. Reading
    the dictionary of that object takes a tenth of the time of Keras's own function.
    """
    return vars(global_state.GLOBAL_STATE_TRACKER).get("symbolic_scope") is not None


def _tensors_among(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the input tensors of a call, without masks."""
    tensors: list[Any] = []
    for value in args:
        _collect(value, _DEPTH, tensors)
    for name, value in kwargs.items():
        if value is not None and name != "mask" and not name.endswith("_mask"):
            _collect(value, _DEPTH, tensors)
    return tensors


def _collect(value: Any, depth: int, tensors: list[Any]) -> None:
    """Collect tensors as `annot.emit.shapes.tensors_in` does, in half its time for the types of TensorFlow."""
    if isinstance(value, tf.Tensor):
        tensors.append(value)
    elif isinstance(value, (list, tuple, dict)):
        if depth:
            for item in value.values() if isinstance(value, dict) else value:
                _collect(item, depth - 1, tensors)
    elif not isinstance(value, _NOT_TENSORS) and isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        tensors.append(value)


def _needs_gradient(tensor: Any) -> bool:
    """Return whether a tensor may need a gradient: a tape watches it, or an operation of a graph computes it.

    If the tape is outside of a traced function, the function's arguments count as data without a gradient.
    """
    if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        tensor = tensor.flat_values if isinstance(tensor, tf.RaggedTensor) else tensor.values
    if isinstance(tensor, EagerTensor) or owners.may_be_taped():
        return bool(record.should_record_backprop([tensor]))
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and tensor.op.type != "Placeholder"


def _key(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Return the part of the cache key that depends on the tensors: their shapes and dtypes."""
    return tuple([_shape_and_dtype(tensor) for tensor in tensors])


def _shape_and_dtype(tensor: Any) -> tuple[Any, Any]:
    if isinstance(tensor, EagerTensor):  # reading `shape` takes a microsecond
        return tensor._shape_tuple(), tensor._datatype_enum()
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape), tensor.dtype
