"""Keras models that are found when they are first called or trained, for `annot run --layers`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import keras

from annot.emit import guard
from annot.emit.patches import Patches
from annot.keras import fit_loops
from annot.util.weak_keys import WeakKeys

_CALLS: Final = ("__call__", "train_on_batch", "test_on_batch", "predict_on_batch")
_MOST: Final = 8
"""Maximum number of models with an open block, because a block keeps its model alive. Later models close the first."""


class FoundModels(Patches):
    """Ranges of the outermost models of each thread, from `install` to `undo`.

    Args:
        make_block: returns the block of `emit_ranges` of a model. None: annot finds the layers of the models by other
            means, and only their loops over batches get ranges.
    """

    def __init__(self, make_block: Callable[[Any], AbstractContextManager[Any]] | None) -> None:
        super().__init__()
        self._make_block = make_block
        self._blocks: deque[AbstractContextManager[Any]] = deque()
        self._seen: WeakKeys[Any, bool] = WeakKeys()  # a model whose block was closed is not found again
        self._thread = threading.local()

    def install(self) -> None:
        """Patch the methods of all models."""
        for name in (*fit_loops.LOOPS, *(_CALLS if self._make_block is not None else ())):
            self.wrap(keras.Model, name, self._call)

    def undo(self) -> None:
        """Undo the patches, and leave the blocks."""
        super().undo()
        while self._blocks:
            self._blocks[-1].__exit__(None, None, None)
            self._blocks.pop()

    def _call(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        method = original.__get__(model)
        if getattr(self._thread, "is_inside", False):
            return method(*args, **kwargs)
        # A call with a symbolic tensor builds a larger model.
        if self._make_block is not None and not any(isinstance(arg, keras.KerasTensor) for arg in args):
            guard.attempt(self._find, model, otherwise=None, note="a model runs without ranges")
        self._thread.is_inside = True
        try:
            if original.__name__ in fit_loops.LOOPS:
                return fit_loops.call(method, *args, **kwargs)
            return method(*args, **kwargs)
        finally:
            self._thread.is_inside = False

    def _find(self, model: Any) -> None:
        if self._make_block is None or self._seen.get(model):
            return
        block = self._make_block(model)
        block.__enter__()
        self._seen[model] = True
        self._blocks.append(block)
        if len(self._blocks) > _MOST:
            self._blocks.popleft().__exit__(None, None, None)
