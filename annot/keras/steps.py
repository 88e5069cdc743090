"""Epochs and batches of a Keras model whose `fit`, `evaluate` and `predict` are called without a callback."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import keras

from annot.keras.callback import AnnotCallback
from annot.patches import Patches

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
        self._patches = Patches()

    def install(self) -> None:
        """Put the stand-ins in their places; what is there in the model itself and not in its class is left alone."""
        for name in _METHODS:
            original = getattr(self._model, name, None)
            if callable(original) and name not in vars(self._model):
                self._patches.replace(self._model, name, self._stand_in(original))

    def remove(self) -> None:
        """Take the stand-ins away; one that somebody else has wrapped meanwhile is transparent from now on."""
        self._patches.undo()

    def _stand_in(self, original: Any) -> Any:
        usual = getattr(keras.Model, original.__name__, original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            taken = _with_callback(original, usual, args, kwargs) if self._patches.live else None
            if taken is None:
                return original(*args, **kwargs)
            args, kwargs, callback = taken
            try:
                return original(*args, **kwargs)
            finally:
                callback.close()

        return call


def _with_callback(
    function: Any, usual: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], AnnotCallback] | None:
    """Return the arguments of a call with a callback added, and the callback; None if it takes none.

    A model's own `fit` may take ``*args, **kwargs`` for Keras's, as those of KerasHub do. Where Keras passes a list of
    its own, `fit` is what calls, and has its callback.

    Args:
        function: what is called.
        usual: Keras's function of that name, which says where the callbacks stand among ``*args``.
        args, kwargs: what it is called with.
    """
    parameters = inspect.signature(function).parameters
    named = "callbacks" in parameters
    if not named and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    order = [*parameters] if named else [*inspect.signature(usual).parameters][1:]
    place = order.index("callbacks") if "callbacks" in order else len(args)
    given = args[place] if place < len(args) else kwargs.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        return None
    callbacks, callback = _added(given)
    if place < len(args):
        return (*args[:place], callbacks, *args[place + 1 :]), kwargs, callback
    return args, {**kwargs, "callbacks": callbacks}, callback


def _added(given: Any) -> tuple[list[Any], AnnotCallback]:
    """Return the callbacks with one of annot's, unless there is one; the list that was passed is not changed."""
    callbacks = list(given) if isinstance(given, list | tuple) else [given] if given else []
    for one in callbacks:
        if isinstance(one, AnnotCallback):
            return callbacks, one
    callback = AnnotCallback()
    return [*callbacks, callback], callback
