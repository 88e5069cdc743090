"""A range around the wait for each batch of a `tf.data.Dataset`."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from annot import emit, tag
from annot.outermost import Outermost
from annot.patches import Patches
from annot.tf import owners

__all__ = ["DataWaits"]


class DataWaits:
    """Ranges ``Data`` around the wait for each element of a data set's iterator, from `install` to `remove`.

    Eager loops over a data set, `predict`, and in graphs that are traced meanwhile whatever reads from an iterator: so
    does the step of `fit` and `evaluate`, inside the range of its batch. Inside `annot.batches` there is one range for
    a wait. A loop over a data set, and not its iterator, inside a `tf.function` runs in the data set, and has none.

    Args:
        graphs: ranges in graphs too; otherwise only of what runs eagerly.
    """

    def __init__(self, *, graphs: bool = True) -> None:
        self._graphs = graphs
        self._patches = Patches()

    def install(self) -> None:
        """Patch the iterator of data sets, if TensorFlow has it where it is known to be."""
        iterator = getattr(iterator_ops, "OwnedIterator", None)
        if iterator is None:
            emit.warn_once("this TensorFlow keeps the iterator of data sets elsewhere: waits for data have no range")
            return
        for name in ("__next__", "get_next", "get_next_as_optional"):
            self._patches.replace(iterator, name, self._stand_in(getattr(iterator, name)))

    def remove(self) -> None:
        """Put everything back, in reverse order."""
        self._patches.undo()

    def _stand_in(self, original: Any) -> Any:
        @functools.wraps(original)
        def get(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._patches.live or not emit.enabled():
                return original(iterator, *args, **kwargs)
            if tf.executing_eagerly():
                with Outermost("data", _event()):
                    return original(iterator, *args, **kwargs)
            if not self._graphs:
                return original(iterator, *args, **kwargs)
            with owners.owned(owners.Owner(_event(), parent=owners.current())):
                return original(iterator, *args, **kwargs)

        return get


@functools.cache
def _event() -> Any:
    return emit.event(tag.format(tag.Tag(phase="data")), category="data")
