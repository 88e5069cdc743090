"""Wrappers around the `call` of each layer, while an `emit_ranges` block is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from annot.emit import client
from annot.emit.layer_filter import EVERYTHING, Choice
from annot.emit.patches import Patches
from annot.keras.layer_paths import SEPARATOR, children, paths
from annot.tf import name_scopes, owners
from annot.tf.layer_sites import Site, tensors_among

__all__ = ["Layers", "Mode", "Options"]

Mode: TypeAlias = Literal["names", "ops", "python"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one `emit_ranges` block."""

    forward: bool = True
    backward: bool = True
    shapes: bool = True
    choice: Choice = EVERYTHING
    mode: Mode = "python"
    optimizer: bool = True
    data: bool = True


_CALLS: Final = ("call", "quantized_call")
_NO_XLA: Final = (
    "XLA-compiled code (jit_compile=True) has layer names but no layer ranges: set jit_compile=False to see the ranges"
)


class Layers:
    """The wrapped layers of all open blocks. A layer in several blocks has the options of the first."""

    def __init__(self) -> None:
        self._wrappers: dict[int, LayerWrapper] = {}

    def add_model(self, model: keras.Layer, options: Options, block: list[LayerWrapper]) -> None:
        """Wrap the selected layers of a model, and add the wrappers to `block`, for `remove`."""
        for path, layer in paths(model):
            if options.choice.takes(path.partition(SEPARATOR)[2], layer):
                self._wrap(path, layer, options, block)

    def remove(self, block: list[LayerWrapper]) -> None:
        """Remove the wrappers of a block, the last one first. A wrapper that another block also uses stays.

        If an interrupt stops this, the next call finishes the rest.
        """
        while block:
            wrapper = block[-1]
            wrapper.holders.pop(id(block), None)
            if not wrapper.holders:
                self._wrappers.pop(id(wrapper.site.layer), None)
                wrapper.remove()
            del block[-1]

    def has(self, layer: keras.Layer) -> bool:
        """Return whether a layer is wrapped."""
        return id(layer) in self._wrappers

    def discover(self, wrapper: LayerWrapper) -> None:
        """Wrap sublayers that were created later, for example when a subclass was built."""
        pending = [(wrapper.site.path, wrapper.site.layer)]
        while pending:
            for path, layer in children(*pending.pop()):
                if self.has(layer):
                    continue
                pending.append((path, layer))
                if wrapper.options.choice.takes(path.partition(SEPARATOR)[2], layer):
                    self._wrap(path, layer, wrapper.options, wrapper.block)

    def _wrap(self, path: str, layer: keras.Layer, options: Options, block: list[LayerWrapper]) -> None:
        known = self._wrappers.get(id(layer))
        wrapper = known or LayerWrapper(Site(path, type(layer).__name__, layer, options.shapes), options, self, block)
        block.append(wrapper)  # first, since an interrupt may come between any two calls
        wrapper.holders[id(block)] = block
        if known is None:
            self._wrappers[id(layer)] = wrapper
            wrapper.install()


class LayerWrapper:
    """The wrappers around `call` of one layer, and around `quantized_call` of a quantized layer.

    They are stored in the ``__dict__`` of the layer, where Keras finds them and does not track them.

    Args:
        site: the layer and its labels.
        options: the options of the block that created the wrappers.
        layers: all wrapped layers.
        block: all wrappers of that block.
    """

    __slots__ = ("_known", "_patches", "block", "holders", "layers", "options", "site")

    def __init__(self, site: Site, options: Options, layers: Layers, block: list[LayerWrapper]) -> None:
        self.site, self.options, self.layers, self.block = site, options, layers, block
        self.holders: dict[int, list[LayerWrapper]] = {}
        """The blocks that use these wrappers, by id."""
        self._known = -1
        self._patches = Patches()

    def install(self) -> None:
        """Wrap the methods of the layer."""
        for name in _CALLS:
            original = getattr(self.site.layer, name, None)
            if original is not None:
                self._patches.replace(self.site.layer, name, self._wrapped(original))

    def remove(self) -> None:
        """Unwrap the methods. A wrapper that other code has wrapped in turn stays and only calls the original."""
        self._patches.undo()

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._patches.live or (_keras_infers_shapes() and not self._may_run_later()):
                return original(*args, **kwargs)
            if len(self.site.layer._layers) != self._known:
                self._wrap_new_layers()
            return self._call(original, args, kwargs)

        return call

    def _may_run_later(self) -> bool:
        """Return whether a graph that Keras traces to infer shapes may also run, as of a `tf.function` in a layer."""
        return self.options.mode == "ops" and self.site.layer.built and not tf.executing_eagerly()

    def _wrap_new_layers(self) -> None:
        """Wrap new sublayers. Calls are on the hot path, so they only compare the number of sublayers."""
        self._known = len(self.site.layer._layers)
        self.layers.discover(self)

    def _call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options, eager = self.options, tf.executing_eagerly()
        tensors = tensors_among(args, kwargs)
        if eager and not (options.backward and owners.may_be_taped()):
            if not options.forward:
                return original(*args, **kwargs)
            return client.inside(self.site.forward(tensors), original, args, kwargs)
        if not eager and (options.mode != "ops" or owners.in_xla()):
            if options.mode != "python":
                self._note(tensors)
            return original(*args, **kwargs)
        owner = self.site.owner(
            tensors, owners.current(),
            forward=options.forward, backward=options.backward, recomputed=owners.in_backward(),
        )  # fmt: skip
        return owners.call(owner, original, args, kwargs)

    def _note(self, tensors: list[Any]) -> None:
        """Record the layer of the operations that are being traced, for code without annot's ranges."""
        if self.options.mode != "names":
            client.warn_once(_NO_XLA)
        specs, _, arguments = self.site.shown(tensors)
        name_scopes.note(self.site.path, self.site.module, tf.get_current_name_scope(), specs, arguments)


def _keras_infers_shapes() -> bool:
    """Return whether Keras calls layers only to infer shapes.

    Keras 3 keeps its symbolic scope as an attribute of an object that `keras.backend.clear_session` replaces. Reading
    the dictionary of that object takes a tenth of the time of Keras's own function.
    """
    return vars(global_state.GLOBAL_STATE_TRACKER).get("symbolic_scope") is not None
