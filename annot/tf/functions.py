"""The functions that Keras makes of a training, test and prediction step and keeps: one set with ranges, one without.

A step that Keras has traced runs no Python, so what is installed later would have no effect, and what was traced with
ranges would keep them. Each set is traced once, however often the two are exchanged, also in the middle of a `fit`.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["StepFunctions"]

_NAMES: Final = ("train_function", "test_function", "predict_function")


class StepFunctions:
    """Both sets of a model.

    Args:
        model: a model; a layer that is none has no such functions.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: dict[tuple[str, bool], Any] = {}
        self._compiled: object = None
        self._has_ranges = False

    def put(self, ranges: bool) -> None:
        """Put the set with or without ranges in use; what was made before the model was compiled anew is dropped.

        After an interrupt, the next call goes on with the rest.
        """
        if not ranges and not self._has_ranges:
            return
        self._has_ranges = True
        compiled = getattr(self._model, "_compile_config", None)
        if compiled is not self._compiled:
            self._kept, self._compiled = {}, compiled
        for name in _NAMES:
            self._put(name, ranges)
        self._has_ranges = ranges

    def _put(self, name: str, ranges: bool) -> None:
        used = getattr(self._model, name, None)
        other = self._kept.get((name, ranges))
        if used is other:
            return
        self._kept[name, not ranges] = used
        if other is not None:
            setattr(self._model, name, other)
        elif used is not None:  # a `fit` that is running looks it up at each step
            getattr(self._model, f"make_{name}")(force=True)
