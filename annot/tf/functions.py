"""The functions that Keras makes of a training, test and prediction step and keeps: one set with ranges, one without.

A step that Keras has traced runs no Python, so what is installed later would have no effect, and what was traced with
ranges would keep them. Each set is traced once, however often the two are exchanged, also in the middle of a `fit`.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["StepFunctions"]

_NAMES: Final = ("train_function", "test_function", "predict_function")


class StepFunctions:
    """The set of a model that is not in use.

    Args:
        model: a model; a layer that is none has no such functions.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: dict[str, Any] = {}
        self._compiled: object = None

    def exchange(self) -> None:
        """Put the other set in use; what was made before the model was compiled anew is not used again."""
        model = self._model
        compiled = getattr(model, "_compile_config", None)
        kept = self._kept if compiled is self._compiled else {}
        self._kept, self._compiled = {}, compiled
        for name in _NAMES:
            used = getattr(model, name, None)
            other = kept.get(name)
            self._kept[name] = used
            if other is not None:
                setattr(model, name, other)
            elif used is not None:  # a `fit` that is running looks it up at each step
                getattr(model, f"make_{name}")(force=True)
