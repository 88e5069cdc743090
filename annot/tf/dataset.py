"""Ranges around the wait for each batch of a `tf.data.Dataset`."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from annot.emit import client
from annot.emit.outermost import Outermost
from annot.emit.patches import Patches
from annot.labels import tag
from annot.tf import owners

__all__ = ["DataWaits"]


class DataWaits:
    """Ranges ``Data`` around the wait for each element of a data set iterator, from `install` to `remove`.

    They cover eager loops over a data set, `predict`, and reads from an iterator in graphs that are traced while this
    is installed, such as the step of `fit` and `evaluate` inside its batch range. Inside `annot.batches` each wait has
    one range. A `tf.function` that loops over a data set instead of an iterator runs the loop inside the data set, and
    its waits have no ranges. If `graphs` is False, only eager mode has ranges.
    """

    def __init__(self, *, graphs: bool = True) -> None:
        self._graphs = graphs
        self._patches = Patches()

    def install(self) -> None:
        """Patch the private class of data set iterators, with a warning if this TensorFlow does not have it."""
        iterator = getattr(iterator_ops, "OwnedIterator", None)
        if iterator is None:
            client.warn_once("this TensorFlow has no iterator_ops.OwnedIterator: waits for data have no ranges")
            return
        for name in ("__next__", "get_next", "get_next_as_optional"):
            self._patches.wrap(iterator, name, self._get)

    def remove(self) -> None:
        """Undo the patches, in reverse order."""
        self._patches.undo()

    def _get(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        eager = tf.executing_eagerly()
        if not client.enabled() or not (eager or self._graphs):
            return original(*args, **kwargs)
        with Outermost("data", _event()) if eager else owners.owned(owners.Owner(_event(), parent=owners.current())):
            return original(*args, **kwargs)


@functools.cache
def _event() -> Any:
    return client.event(tag.format(tag.Tag(phase="data")), category="data")
