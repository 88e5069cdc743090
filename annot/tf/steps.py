"""Epochs and batches of a Keras model whose `fit`, `evaluate` and `predict` are called without a callback."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import keras

from annot.tf.callback import AnnotCallback

__all__ = ["FitLoops"]

_METHODS: Final = ("fit", "evaluate", "predict")


class FitLoops:
    """Stand-ins for `fit`, `evaluate` and `predict` of one model, from `install` to `remove`.

    Each adds an `AnnotCallback`, unless there is one, and closes its ranges however the call ends.

    Args:
        model: a Keras model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._stand_ins: dict[str, Any] = {}
        self._live = False

    def install(self) -> None:
        """Put the stand-ins in their places; what is there in the model itself and not in its class is left alone."""
        self._live = True
        for name in _METHODS:
            original = getattr(self._model, name, None)
            if callable(original) and name not in vars(self._model):
                # Past Keras' own __setattr__, which would track what is assigned as a part of the model.
                vars(self._model)[name] = self._stand_ins[name] = self._stand_in(original)

    def remove(self) -> None:
        """Take the stand-ins away; one that somebody else has wrapped meanwhile is transparent from now on."""
        self._live = False
        while self._stand_ins:
            name, stand_in = self._stand_ins.popitem()
            if vars(self._model).get(name) is stand_in:
                del vars(self._model)[name]

    def _stand_in(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = _bound(original, args, kwargs) if self._live else None
            if arguments is None:
                return original(*args, **kwargs)
            callback = _add_callback(arguments)
            try:
                return original(*arguments.args, **arguments.kwargs)
            finally:
                callback.close()

        return call


def _bound(function: Any, args: Any, kwargs: Any) -> inspect.BoundArguments | None:
    """Return the arguments of a call, if a callback can be added to them.

    Where Keras passes a list of its own, `fit` is what calls, and has its callback.
    """
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    own = isinstance(bound.arguments.get("callbacks"), keras.callbacks.CallbackList)
    return None if own or "callbacks" not in signature.parameters else bound


def _add_callback(bound: inspect.BoundArguments) -> AnnotCallback:
    """Add a callback, unless there is one, and return it; the list that was passed is not changed."""
    given = bound.arguments.get("callbacks") or []
    callbacks = list(given) if isinstance(given, list | tuple) else [given]
    for one in callbacks:
        if isinstance(one, AnnotCallback):
            return one
    callback = AnnotCallback()
    bound.arguments["callbacks"] = [*callbacks, callback]
    return callback
