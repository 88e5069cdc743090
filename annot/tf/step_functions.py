"""Two sets of the step functions that Keras caches for training, test and prediction: with and without ranges.

A traced step runs no Python code. Patches that are installed later have no effect on it, and a step that was traced
with ranges keeps them. Each set is traced once. The sets can be exchanged any number of times, even during a `fit`.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["StepFunctions"]

_NAMES: Final = ("train_function", "test_function", "predict_function")


class StepFunctions:
    """The step functions of one model, with and without ranges. A layer that is not a model has none."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: dict[tuple[str, bool], Any] = {}
        self._compiled: object = None
        self._has_ranges = False

    def put(self, ranges: bool) -> None:
        """Use the step functions with or without ranges. A new `compile` of the model drops both sets.

        If an interrupt stops this, the next call finishes the rest.
        """
        if not ranges and not self._has_ranges:
            return
        self._has_ranges = True
        compiled = getattr(self._model, "_compile_config", None)
        if compiled is not self._compiled:
            self._kept, self._compiled = {}, compiled
        for name in _NAMES:
            used, other = getattr(self._model, name, None), self._kept.get((name, ranges))
            if used is other:
                continue
            self._kept[name, not ranges] = used
            if other is not None:
                setattr(self._model, name, other)
            elif used is not None:  # a running `fit` looks the function up at each step
                getattr(self._model, f"make_{name}")(force=True)
        self._has_ranges = ranges
