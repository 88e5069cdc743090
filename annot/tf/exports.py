"""What leaves the process must not hold annot's operations: a model that is exported is traced without ranges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras
from tensorflow.python.saved_model import save

__all__ = ["install"]


def install(suspended: AbstractContextManager[Any]) -> Callable[[], None]:
    """Have everything that writes a SavedModel, or converts a model to TFLite, run inside `suspended`.

    Returns:
        What undoes it.
    """
    undo: list[Callable[[], None]] = []
    for owner, name in _entries():
        undo.append(_surround(owner, name, suspended))

    def undo_all() -> None:
        while undo:
            undo.pop()()

    return undo_all


def _entries() -> Iterator[tuple[Any, str]]:
    """Yield what traces a model to export it; a conversion to TFLite saves the model first.

    Not `tf.saved_model.save` itself, which other modules of TensorFlow bind when they are imported later.
    """
    yield keras.Model, "export"
    if hasattr(save, "save_and_return_nodes"):
        yield save, "save_and_return_nodes"
    archive = getattr(getattr(keras, "export", None), "ExportArchive", None)
    if archive is not None:
        for name in ("add_endpoint", "write_out"):
            yield next(cls for cls in type(archive()).__mro__ if name in vars(cls)), name


def _surround(owner: Any, name: str, suspended: AbstractContextManager[Any]) -> Callable[[], None]:
    original = vars(owner)[name]

    @functools.wraps(original)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with suspended:
            return original(*args, **kwargs)

    setattr(owner, name, inside)

    def undo() -> None:
        if vars(owner).get(name) is inside:
            setattr(owner, name, original)

    return undo
