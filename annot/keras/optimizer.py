"""A range around every update of the weights by an optimizer of Keras, in `fit` and in loops of one's own."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras

from annot import emit
from annot.keras import updates
from annot.locks import fork_safe
from annot.outermost import Outermost
from annot.patches import Patches

__all__ = ["OptimizerSteps"]


class OptimizerSteps:
    """Ranges around `apply` of every optimizer, and so around `apply_gradients`, from `install` to `remove`.

    An optimizer inside another one, as in a `LossScaleOptimizer`, has none of its own. In a graph the range opens when
    all gradients are there, which the update waits for then, and closes when the last variable is assigned. Under XLA
    there is none.

    Args:
        graphs: ranges in graphs too; otherwise only of what runs eagerly.
    """

    def __init__(self, *, graphs: bool = True) -> None:
        self._graphs = graphs
        self._patches = Patches()
        self._lock = fork_safe()
        self._inner: list[int] = []  # ids of optimizers that another one is calling, on whatever thread
        self._thread = threading.local()

    def install(self) -> None:
        """Patch every class of optimizers that has an `apply` of its own."""
        base = keras.optimizers.Optimizer
        for cls in dict.fromkeys((*base.__mro__, *_subclasses(base))):
            if "apply" in vars(cls):
                self._patches.replace(cls, "apply", self._stand_in(vars(cls)["apply"]))

    def remove(self) -> None:
        """Put everything back, in reverse order."""
        self._patches.undo()

    def _stand_in(self, original: Any) -> Any:
        @functools.wraps(original)
        def apply(optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
            where = self._where(optimizer)
            if where is None:
                return original(optimizer, grads, *args, **kwargs)
            inner = id(getattr(optimizer, "inner_optimizer", None))
            self._thread.busy = True
            with self._lock:
                self._inner.append(inner)
            try:
                return where(original, optimizer, grads, *args, **kwargs)
            finally:
                self._thread.busy = False
                with self._lock:
                    self._inner.remove(inner)

        return apply

    def _where(self, optimizer: Any) -> Any:
        """Return what calls `apply` inside a range; None where there is to be none."""
        inside = getattr(self._thread, "busy", False) or id(optimizer) in self._inner
        if inside or not self._patches.live or not emit.enabled():
            return None
        backend = keras.backend.backend()
        if backend == "torch":
            return None if sys.modules["torch"].compiler.is_dynamo_compiling() else _apply_eagerly
        if backend != "tensorflow":
            return None
        if sys.modules["tensorflow"].executing_eagerly():
            return _apply_eagerly
        return _apply_in_graph if self._graphs else None


def _apply_eagerly(original: Any, optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
    with Outermost("optimizer", updates.event(optimizer, _variables(*args, **kwargs))):
        return original(optimizer, grads, *args, **kwargs)


def _variables(trainable_variables: Any = None, *_: Any, **__: Any) -> Any:
    """Return what is given to `apply` beside the gradients."""
    return trainable_variables


def _apply_in_graph(original: Any, optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
    from annot.tf import owners

    event = updates.event(optimizer, _variables(*args, **kwargs))
    with owners.owned(owners.Owner(event, parent=owners.current(), waits=True)):
        return original(optimizer, grads, *args, **kwargs)


def _subclasses(cls: type) -> Iterator[type]:
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)
