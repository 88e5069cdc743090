"""Stand-ins for the `call` of each layer, while a block of `emit_ranges` is open."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import keras
import tensorflow as tf
from keras.src.backend.common.global_state import GLOBAL_STATE_TRACKER

from annot import emit
from annot.choice import EVERYTHING, Choice
from annot.tf import names, ops
from annot.tf.around import call_in_range, call_through_operations
from annot.tf.eager import may_be_taped
from annot.tf.paths import SEPARATOR, children, paths
from annot.tf.sites import Site, tensors_among
from annot.tf.weights import weights_of

__all__ = ["Layers", "Mode", "Options", "suspended"]

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


_NO_XLA: Final = (
    "what XLA compiles (jit_compile=True) has no ranges of its layers, only their names: those need jit_compile=False"
)


class _Suspended(threading.local):
    def __init__(self) -> None:
        self.blocks = 0

    def __enter__(self) -> None:
        self.blocks += 1

    def __exit__(self, *_: object) -> None:
        self.blocks -= 1


suspended: Final = _Suspended()
"""A block in which calls on this thread have no ranges, as if nothing were installed."""


class Layers:
    """The layers of all models that are being instrumented; of one in several blocks, the first decides."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, StandIn] = {}
        self._models: dict[int, StandIn] = {}
        self._holders: Counter[int] = Counter()

    def add_model(self, model: keras.Layer, options: Options) -> list[StandIn]:
        """Put stand-ins into the chosen layers of a model; return what `remove` needs."""
        block: list[StandIn] = []
        for path, layer in paths(model):
            if options.choice.takes(path.partition(SEPARATOR)[2], layer):
                self._hold(path, layer, options, block, is_model=layer is model)
        return block

    def remove(self, block: list[StandIn]) -> None:
        """Let go of these; those that no other block holds are taken away, the last one first."""
        while block:
            stand_in = block.pop()
            ident = id(stand_in.site.layer)
            self._holders[ident] -= 1
            if not self._holders[ident]:
                del self._holders[ident], self._stand_ins[ident]
                self._models.pop(ident, None)
                stand_in.remove()

    def has(self, layer: keras.Layer) -> bool:
        """Return whether a layer has ranges."""
        return id(layer) in self._stand_ins

    def backward_event(self, sources: Iterable[Any]) -> Any:
        """Return the event of the whole backward of the model that has all these variables; None if none has."""
        wanted = {id(source) for source in sources}
        if not wanted:
            return None
        for stand_in in self._models.values():
            if stand_in.options.backward and wanted <= stand_in.variables():
                return stand_in.site.whole_backward()
        return None

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

    def _hold(
        self, path: str, layer: keras.Layer, options: Options, block: list[StandIn], *, is_model: bool = False
    ) -> None:
        stand_in = self._stand_ins.get(id(layer))
        if stand_in is None:
            site = Site(path, type(layer).__name__, layer, options.shapes, is_model)
            stand_in = self._stand_ins[id(layer)] = StandIn(site, options, self, block)
            stand_in.install()
            if is_model:
                self._models[id(layer)] = stand_in
        self._holders[id(layer)] += 1
        block.append(stand_in)


class StandIn:
    """What is called in the place of one layer's `call`.

    It goes into the layer's own ``__dict__``, where Keras finds it and does not track it.

    Args:
        site: what the ranges say.
        options: those of the block that it belongs to.
        layers: all stand-ins.
        block: those of the block.
    """

    __slots__ = ("_known", "_on", "_original", "_own", "block", "layers", "options", "site", "stand_in")

    def __init__(self, site: Site, options: Options, layers: Layers, block: list[StandIn]) -> None:
        self.site, self.options, self.layers, self.block = site, options, layers, block
        self._known = -1
        self._on = True

    def install(self) -> None:
        """Put the stand-in into its place."""
        layer = self.site.layer
        self._own = vars(layer).get("call")
        self._original: Callable[..., Any] = layer.call

        @functools.wraps(self._original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._on or suspended.blocks or _keras_only_looks():
                return self._original(*args, **kwargs)
            if len(self.site.layer._layers) != self._known:
                self._look_for_layers()
            return self._call(args, kwargs)

        self.stand_in = call
        vars(layer)["call"] = call

    def remove(self) -> None:
        """Take it away; where somebody else has wrapped it meanwhile, it stays and does nothing."""
        self._on = False
        own = vars(self.site.layer)
        if own.get("call") is not self.stand_in:
            return
        if self._own is None:
            del own["call"]
        else:
            own["call"] = self._own

    def variables(self) -> set[int]:
        """Return the identities of the layer's trainable variables, as Keras and as TensorFlow know them."""
        variables = self.site.layer.trainable_variables
        return {id(one) for variable in variables for one in (variable, variable._value)}

    def _look_for_layers(self) -> None:
        """Find the layers that came since the last call; each call only counts them, for it has to be quick."""
        self._known = len(self.site.layer._layers)
        self.layers.discover(self)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options, eager = self.options, tf.executing_eagerly()
        taped = options.mode == "ops" and may_be_taped()
        if eager and not taped:
            if not options.forward:
                return self._original(*args, **kwargs)
            return call_in_range(self.site, self._original, args, kwargs)
        if not eager and (options.mode == "names" or ops.in_xla()):
            self._note(args, kwargs)
            return self._original(*args, **kwargs)
        if options.mode != "ops":
            return self._original(*args, **kwargs)
        return call_through_operations(
            self.site, self._original, args, kwargs,
            weights=self._weights if taped else _none, forward=options.forward, backward=options.backward,
        )  # fmt: skip

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Say which layer the operations belong to that are being traced, for where they have no ranges of annot's."""
        if self.options.mode != "names":
            emit.warn_once(_NO_XLA)
        specs, _, arguments = self.site.shown(tensors_among(args, kwargs))
        names.note(self.site.path, self.site.module, tf.get_current_name_scope(), specs, arguments)

    def _weights(self, *, needs_inputs: bool) -> list[Any]:
        """Return the weights whose gradients this layer's backward range waits for.

        Where the inputs need a gradient, it comes after those of all layers inside; else these have to be waited for.
        The backward of a whole model has a range of its own in eager mode, see `annot.tf.tapes`.
        """
        if self.site.is_model and not needs_inputs and tf.executing_eagerly():
            return []
        return weights_of(self.site.layer, self.layers.has if needs_inputs else lambda _: False)


def _keras_only_looks() -> bool:
    """Return whether Keras calls layers for something else than their outputs, as to infer shapes.

    Both scopes are attributes of one object, if they are there; its dictionary says so ten times as fast as Keras.
    """
    scopes = vars(GLOBAL_STATE_TRACKER)
    return scopes.get("stateless_scope") is not None or scopes.get("symbolic_scope") is not None


def _none(*, needs_inputs: bool) -> list[Any]:
    return []
