"""Stand-ins for the `call` of each layer, while a block of `emit_ranges` is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from annot import emit
from annot.choice import EVERYTHING, Choice
from annot.keras.paths import SEPARATOR, children, paths
from annot.patches import Patches
from annot.tf import names, owners
from annot.tf.sites import Site, tensors_among

__all__ = ["Layers", "Mode", "Options"]

Mode: TypeAlias = Literal["names", "ops", "python"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the ranges of one block show, and how they are made."""

    forward: bool = True
    backward: bool = True
    shapes: bool = True
    choice: Choice = EVERYTHING
    mode: Mode = "python"
    optimizer: bool = True
    data: bool = True


_CALLS: Final = ("call", "quantized_call")
_NO_XLA: Final = (
    "what XLA compiles (jit_compile=True) has no ranges of its layers, only their names: those need jit_compile=False"
)


class Layers:
    """The layers of all models that are being instrumented; of one in several blocks, the first decides."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, StandIn] = {}

    def add_model(self, model: keras.Layer, options: Options, block: list[StandIn]) -> None:
        """Put stand-ins into the chosen layers of a model, and add them to `block`, which `remove` needs."""
        for path, layer in paths(model):
            if options.choice.takes(path.partition(SEPARATOR)[2], layer):
                self._hold(path, layer, options, block)

    def remove(self, block: list[StandIn]) -> None:
        """Let go of these; those that no other block holds are taken away, the last one first.

        After an interrupt, the next call goes on with the rest.
        """
        while block:
            stand_in = block[-1]
            stand_in.holders.pop(id(block), None)
            if not stand_in.holders:
                self._stand_ins.pop(id(stand_in.site.layer), None)
                stand_in.remove()
            del block[-1]

    def has(self, layer: keras.Layer) -> bool:
        """Return whether a layer has ranges."""
        return id(layer) in self._stand_ins

    def discover(self, stand_in: StandIn) -> None:
        """Look for layers that came after their model, as those that a subclass makes when it is built."""
        pending = [(stand_in.site.path, stand_in.site.layer)]
        while pending:
            for path, layer in children(*pending.pop()):
                if self.has(layer):
                    continue
                pending.append((path, layer))
                if stand_in.options.choice.takes(path.partition(SEPARATOR)[2], layer):
                    self._hold(path, layer, stand_in.options, stand_in.block)

    def _hold(self, path: str, layer: keras.Layer, options: Options, block: list[StandIn]) -> None:
        known = self._stand_ins.get(id(layer))
        stand_in = known or StandIn(Site(path, type(layer).__name__, layer, options.shapes), options, self, block)
        block.append(stand_in)  # first, since an interrupt may come between any two calls
        stand_in.holders[id(block)] = block
        if known is None:
            self._stand_ins[id(layer)] = stand_in
            stand_in.install()


class StandIn:
    """What is called in the place of one layer's `call`, and of `quantized_call` of a quantized layer.

    It goes into the layer's own ``__dict__``, where Keras finds it and does not track it.

    Args:
        site: what the ranges say.
        options: those of the block that it belongs to.
        layers: all stand-ins.
        block: those of the block.
    """

    __slots__ = ("_known", "_patches", "block", "holders", "layers", "options", "site")

    def __init__(self, site: Site, options: Options, layers: Layers, block: list[StandIn]) -> None:
        self.site, self.options, self.layers, self.block = site, options, layers, block
        self.holders: dict[int, list[StandIn]] = {}
        """The blocks that have it, by id."""
        self._known = -1
        self._patches = Patches()

    def install(self) -> None:
        """Put the stand-ins into their places."""
        for name in _CALLS:
            original = getattr(self.site.layer, name, None)
            if original is not None:
                self._patches.replace(self.site.layer, name, self._stand_in(original))

    def remove(self) -> None:
        """Take them away; where somebody else has wrapped one meanwhile, it stays and does nothing."""
        self._patches.undo()

    def _stand_in(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._patches.live or (_keras_only_looks() and not self._may_run_later()):
                return original(*args, **kwargs)
            if len(self.site.layer._layers) != self._known:
                self._look_for_layers()
            return self._call(original, args, kwargs)

        return call

    def _may_run_later(self) -> bool:
        """Return whether a graph that Keras traces to infer shapes may run, as that of a `tf.function` in a layer."""
        return self.options.mode == "ops" and self.site.layer.built and not tf.executing_eagerly()

    def _look_for_layers(self) -> None:
        """Find the layers that came since the last call; each call only counts them, for it has to be quick."""
        self._known = len(self.site.layer._layers)
        self.layers.discover(self)

    def _call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options, eager = self.options, tf.executing_eagerly()
        tensors = tensors_among(args, kwargs)
        if eager and not (options.backward and owners.may_be_taped()):
            if not options.forward:
                return original(*args, **kwargs)
            return emit.inside(self.site.forward(tensors), original, args, kwargs)
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
        """Say which layer the operations belong to that are being traced, for where they have no ranges of annot's."""
        if self.options.mode != "names":
            emit.warn_once(_NO_XLA)
        specs, _, arguments = self.site.shown(tensors)
        names.note(self.site.path, self.site.module, tf.get_current_name_scope(), specs, arguments)


def _keras_only_looks() -> bool:
    """Return whether Keras calls layers to infer shapes, and not for their outputs.

    The scope is an attribute of an object that `keras.backend.clear_session` replaces; its dictionary says so ten times
    as fast as Keras.
    """
    return vars(global_state.GLOBAL_STATE_TRACKER).get("symbolic_scope") is not None
