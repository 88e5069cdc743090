"""Ranges around epochs and batches of `fit`, `evaluate` and `predict` without a callback from the user."""

from __future__ import annotations

import inspect
from typing import Any, Final

import keras

from annot.emit.patches import Patches
from annot.keras.callback import AnnotCallback

LOOPS: Final = ("fit", "evaluate", "predict")
"""Methods of a model that loop over batches."""


class FitLoops(Patches):
    """Wrappers around `fit`, `evaluate` and `predict` of one model, from `install` to `undo`.

    Each wrapper adds an `AnnotCallback` unless the call has one, and closes its ranges when the call returns or raises.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def install(self) -> None:
        """Wrap the methods. A method in the `__dict__` of the model itself stays as it is."""
        for name in LOOPS:
            original = getattr(self._model, name, None)
            if callable(original) and name not in vars(self._model):
                self.wrap(self._model, name, call)


def call(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `fit`, `evaluate` or `predict` with an `AnnotCallback` added, if one can be added.

    A subclass may define `fit` with ``*args, **kwargs``, as in KerasHub. A `CallbackList` comes from Keras's own `fit`,
    which already has the callback. The signature of Keras's function gives the position of the callbacks in ``*args``.
    """
    parameters = inspect.signature(original).parameters
    named = "callbacks" in parameters
    if not named and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return original(*args, **kwargs)
    keras_function = getattr(keras.Model, original.__name__, original)
    order = [*parameters] if named else [*inspect.signature(keras_function).parameters][1:]
    place = order.index("callbacks") if "callbacks" in order else len(args)
    given = args[place] if place < len(args) else kwargs.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        return original(*args, **kwargs)
    callbacks = list(given) if isinstance(given, list | tuple) else [given] if given else []
    callback = next((candidate for candidate in callbacks if isinstance(candidate, AnnotCallback)), None)
    if callback is None:
        callback = AnnotCallback()
        callbacks.append(callback)
    if place < len(args):
        args = (*args[:place], callbacks, *args[place + 1 :])
    else:
        kwargs["callbacks"] = callbacks
    try:
        return original(*args, **kwargs)
    finally:
        callback.close()
