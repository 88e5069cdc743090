"""Ranges around the weight updates of Keras optimizers, in `fit` and in custom training loops."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import keras

from annot.emit import client
from annot.emit.class_sources import library_class
from annot.emit.outermost import Outermost
from annot.emit.patches import Patches, subclasses
from annot.emit.update_events import UpdateEvents
from annot.labels import optimizer_arguments, tag


class OptimizerSteps(Patches):
    """Ranges around `apply` of every Keras optimizer, from `install` to `undo`. `apply_gradients` calls `apply`.

    An optimizer inside another one, as in a `LossScaleOptimizer`, shares the range of the outer one. In a graph the
    range opens when all gradients are computed, and the update waits for them. The range closes when the last variable
    is assigned. Updates under XLA have no ranges.

    Args:
        in_graph: returns a context manager that opens the range of an event around the operations of a TensorFlow
            graph; None: only eager updates have ranges.
    """

    def __init__(self, in_graph: Callable[[Any], AbstractContextManager[Any]] | None = None) -> None:
        super().__init__()
        self._in_graph = in_graph
        self._inner: list[int] = []  # ids of optimizers that another one calls, on any thread
        self._thread = threading.local()

    def install(self) -> None:
        """Patch every optimizer class that defines `apply`."""
        base = keras.optimizers.Optimizer
        for cls in dict.fromkeys((*base.__mro__, *subclasses(base))):
            if "apply" in vars(cls):
                self.wrap(cls, "apply", self._apply)

    def _apply(self, original: Any, optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        open_range = self._opener(optimizer)
        if open_range is None:
            return original(optimizer, grads, *args, **kwargs)
        inner = id(getattr(optimizer, "inner_optimizer", None))
        self._thread.busy = True
        self._inner.append(inner)
        try:
            variables = args[0] if args else kwargs.get("trainable_variables")
            with open_range(_events.next_event(optimizer, variables)):
                return original(optimizer, grads, *args, **kwargs)
        finally:
            self._thread.busy = False
            self._inner.remove(inner)

    def _opener(self, optimizer: Any) -> Any:
        """Return the function that opens the range of an event around `apply`; None if this call gets no range."""
        inside = getattr(self._thread, "busy", False) or id(optimizer) in self._inner
        if inside or not client.enabled():
            return None
        backend = keras.backend.backend()
        if backend == "torch":
            return None if sys.modules["torch"].compiler.is_dynamo_compiling() else _eager_range
        if backend != "tensorflow":
            return None
        if sys.modules["tensorflow"].executing_eagerly():
            return _eager_range
        return self._in_graph


def _eager_range(event: Any) -> Outermost:
    return Outermost("optimizer", event)


def _updated(optimizer: Any, variables: Any) -> Sequence[Any]:
    """Return the variables of an update. Without a sequence, they are those that the optimizer was built for.

    An iterator is left to Keras, which would find it empty.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return variables if isinstance(variables, (list, tuple)) else getattr(inner, "_trainable_variables", ())


def _arguments(optimizer: Any, variables: Any) -> tuple[tuple[str, tag.Value], ...]:
    """Return what the range of an update shows. For a wrapper such as `LossScaleOptimizer`, this is the inner one."""
    inner, names = getattr(optimizer, "inner_optimizer", optimizer), (*optimizer_arguments.NUMBERS, "weight_decay")
    on = optimizer_arguments.switched_on({name: getattr(inner, name, None) for name in names}, decoupled=True)
    rows = [
        (math.prod(variable.shape), tag.short_dtype(str(getattr(variable.dtype, "name", variable.dtype))), on)
        for variable in _updated(optimizer, variables)
    ]
    return *_base(type(optimizer).__name__, inner), *optimizer_arguments.arguments(rows)


_events: Final = UpdateEvents(lambda *step: [id(variable) for variable in _updated(*step)], _arguments)
"""The events of all Keras optimizers."""


def _base(name: str, optimizer: Any) -> tuple[tuple[str, tag.Value], ...]:
    """Return ``base``, the Keras class whose update step the optimizer uses, if `name` is another one."""
    keras_class = library_class(type(optimizer), "keras.src.optimizers.", "update_step")
    return () if keras_class is None or keras_class.__name__ == name else (("base", keras_class.__name__),)
