"""Ranges around the weight updates of Keras optimizers, in `fit` and in custom training loops."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras

from annot.emit import client
from annot.emit.outermost import Outermost
from annot.emit.patches import Patches
from annot.keras import optimizer_events
from annot.util.locks import fork_safe

__all__ = ["OptimizerSteps"]


class OptimizerSteps:
    """Ranges around `apply` of every Keras optimizer, from `install` to `remove`. `apply_gradients` calls `apply`.

    An optimizer inside another one, as in a `LossScaleOptimizer`, shares the range of the outer one. In a graph the
    range opens when all gradients are computed, and the update waits for them. The range closes when the last variable
    is assigned. Updates under XLA have no ranges.

    Args:
        in_graph: returns a context manager that opens the range of an event around the operations of a TensorFlow
            graph; None: only eager updates have ranges.
    """

    def __init__(self, in_graph: Callable[[Any], AbstractContextManager[Any]] | None = None) -> None:
        self._in_graph = in_graph
        self._patches = Patches()
        self._lock = fork_safe()
        self._inner: list[int] = []  # ids of optimizers that another one calls, on any thread
        self._thread = threading.local()

    def install(self) -> None:
        """Patch every optimizer class that defines `apply`."""
        base = keras.optimizers.Optimizer
        for cls in dict.fromkeys((*base.__mro__, *_subclasses(base))):
            if "apply" in vars(cls):
                self._patches.replace(cls, "apply", self._wrapper(vars(cls)["apply"]))

    def remove(self) -> None:
        """Undo the patches, in reverse order."""
        self._patches.undo()

    def _wrapper(self, original: Any) -> Any:
        @functools.wraps(original)
        def apply(optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
            open_range = self._opener(optimizer)
            if open_range is None:
                return original(optimizer, grads, *args, **kwargs)
            inner = id(getattr(optimizer, "inner_optimizer", None))
            self._thread.busy = True
            with self._lock:
                self._inner.append(inner)
            try:
                with open_range(optimizer_events.event(optimizer, _variables(*args, **kwargs))):
                    return original(optimizer, grads, *args, **kwargs)
            finally:
                self._thread.busy = False
                with self._lock:
                    self._inner.remove(inner)

        return apply

    def _opener(self, optimizer: Any) -> Any:
        """Return the function that opens the range of an event around `apply`; None if this call gets no range."""
        inside = getattr(self._thread, "busy", False) or id(optimizer) in self._inner
        if inside or not self._patches.live or not client.enabled():
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


def _variables(trainable_variables: Any = None, *_: Any, **__: Any) -> Any:
    """Return the argument of `apply` that follows the gradients."""
    return trainable_variables


def _subclasses(cls: type) -> Iterator[type]:
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)
