"""Ranges around epochs and batches of `fit`, `evaluate` and `predict` without a callback from the user."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import keras

from annot.emit.patches import Patches
from annot.keras.callback import AnnotCallback

__all__ = ["FitLoops"]

_METHODS: Final = ("fit", "evaluate", "predict")


class FitLoops:
    """Wrappers around `fit`, `evaluate` and `predict` of one model, from `install` to `remove`.

    Each wrapper adds an `AnnotCallback` unless the call has one, and closes its ranges when the call returns or raises.

    Args:
        model: a Keras model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._patches = Patches()

    def install(self) -> None:
        """Wrap the methods. A method in the `__dict__` of the model itself stays as it is."""
        for name in _METHODS:
            original = getattr(self._model, name, None)
            if callable(original) and name not in vars(self._model):
                self._patches.replace(self._model, name, self._wrapper(original))

    def remove(self) -> None:
        """Remove the wrappers. A wrapper that other code has wrapped in turn stays and only calls the original."""
        self._patches.undo()

    def _wrapper(self, original: Any) -> Any:
        keras_function = getattr(keras.Model, original.__name__, original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            added = _with_callback(original, keras_function, args, kwargs) if self._patches.live else None
            if added is None:
                return original(*args, **kwargs)
            args, kwargs, callback = added
            try:
                return original(*args, **kwargs)
            finally:
                callback.close()

        return call


def _with_callback(
    function: Any, keras_function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], AnnotCallback] | None:
    """Return the arguments of a call with an `AnnotCallback` added, and the callback; None if none can be added.

    A subclass may define `fit` with ``*args, **kwargs``, as in KerasHub. A `CallbackList` comes from Keras's own `fit`,
    which already has the callback.

    Args:
        function: the function that is called.
        keras_function: Keras's function of that name. Its signature gives the position of the callbacks in ``*args``.
        args, kwargs: the arguments of the call.
    """
    parameters = inspect.signature(function).parameters
    named = "callbacks" in parameters
    if not named and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    order = [*parameters] if named else [*inspect.signature(keras_function).parameters][1:]
    place = order.index("callbacks") if "callbacks" in order else len(args)
    given = args[place] if place < len(args) else kwargs.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        return None
    callbacks, callback = _added(given)
    if place < len(args):
        return (*args[:place], callbacks, *args[place + 1 :]), kwargs, callback
    return args, {**kwargs, "callbacks": callbacks}, callback


def _added(given: Any) -> tuple[list[Any], AnnotCallback]:
    """Return a new list of the callbacks with an `AnnotCallback`, added if there is none, and that callback."""
    callbacks = list(given) if isinstance(given, list | tuple) else [given] if given else []
    for one in callbacks:
        if isinstance(one, AnnotCallback):
            return callbacks, one
    callback = AnnotCallback()
    return [*callbacks, callback], callback
