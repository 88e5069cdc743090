"""The training loop of a Keras model: ranges around its waits for data, and its step functions with and without ranges.

A traced step runs no Python code. Patches that are installed later have no effect on it, and a step that was traced
with ranges keeps them. So annot keeps Keras's step functions twice.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from annot.emit import client
from annot.emit.outermost import Outermost
from annot.emit.patches import Patches
from annot.labels import tag
from annot.tf import owners

_STEPS: Final = ("train_function", "test_function", "predict_function")


class DataWaits(Patches):
    """Ranges ``Data`` around the wait for each element of a data set iterator, from `install` to `undo`.

    They cover eager loops over a data set, `predict`, and reads from an iterator in graphs that are traced while this
    is installed, such as the step of `fit` and `evaluate` inside its batch range. Inside `annot.batches` each wait has
    one range. A `tf.function` that loops over a data set instead of an iterator runs the loop inside the data set, and
    its waits have no ranges. If `graphs` is False, only eager mode has ranges.
    """

    def __init__(self, *, graphs: bool = True) -> None:
        super().__init__()
        self._graphs = graphs

    def install(self) -> None:
        """Patch the private class of data set iterators, with a warning if this TensorFlow does not have it."""
        iterator = getattr(iterator_ops, "OwnedIterator", None)
        if iterator is None:
            client.warn_once("this TensorFlow has no iterator_ops.OwnedIterator: waits for data have no ranges")
            return
        for name in ("__next__", "get_next", "get_next_as_optional"):
            self.wrap(iterator, name, self._get)

    def _get(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        eager = tf.executing_eagerly()
        if not client.enabled() or not (eager or self._graphs):
            return original(*args, **kwargs)
        event = client.event(tag.format(tag.Tag(phase="data")), category="data")
        with Outermost("data", event) if eager else owners.owned(owners.Owner(event, parent=owners.current())):
            return original(*args, **kwargs)


class StepFunctions:
    """The step functions of a `keras.Model`, with and without ranges. Other layers have no step functions.

    Each is traced once. The sets can be exchanged any number of times, even during a `fit`.
    """

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
        for name in _STEPS:
            used, other = getattr(self._model, name, None), self._kept.get((name, ranges))
            if used is other:
                continue
            self._kept[name, not ranges] = used
            if other is not None:
                setattr(self._model, name, other)
            elif used is not None:  # a running `fit` looks the function up at each step
                getattr(self._model, f"make_{name}")(force=True)
        self._has_ranges = ranges
