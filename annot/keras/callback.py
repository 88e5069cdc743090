"""Keras: a callback that puts ranges around epochs and batches, whatever the backend."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, Final

import keras
import wrapt

from annot import emit, loop
from annot.open_ranges import OpenRanges
from annot.patches import Patches

__all__ = ["AnnotCallback", "close_operations"]

_FUNCTIONS: Final = {
    "": "train_function",
    "validate": "test_function",
    "test": "test_function",
    "predict": "predict_function",
}
"""By the stage: the attribute of a model that holds what runs a batch."""


class AnnotCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Ranges for `fit`, `evaluate` and `predict` of a Keras model: epochs, and the batches in them.

    Training has ``Epoch 0 |epoch`` and ``Batch 12 |step``. The validation of an epoch has ``Epoch validate 0`` and
    ``Batch validate 3``; `evaluate` on its own and `predict` have the words ``test`` and ``predict`` there, and the
    number 0 for the epoch. A batch is the run of the compiled step, without the other callbacks; with
    ``steps_per_execution=4`` four batches run as one, whose number is that of the first.

    Neither how Keras dispatches the ends of batches nor any result changes. A step that fails closes all ranges; what
    an exception of another callback leaves open is closed when the callback is used again, by `close`, or when it is
    thrown away. If `annot.enabled` is false, nothing is done. A data set of unknown length ends in a batch in which
    there is only the wait that finds no more data.

    Example:
        >>> import annot.tf, keras, numpy
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = numpy.ones((8, 3))
        >>> history = model.fit(x, x[:, 0], verbose=0, callbacks=[annot.tf.AnnotCallback()])
    """

    # What Keras 2 (`tf_keras`) asks of a callback: it takes part in batches, and needs no logs as numbers.
    _supports_tf_logs = True
    _chief_worker_only = None

    def __init__(self) -> None:
        super().__init__()
        self._ranges = OpenRanges()
        # The model; asked for `model` amid a step, Keras on JAX would put the state from before the step back.
        self._owner: Any = SimpleNamespace()
        self._epoch: int | None = None
        self._next: tuple[int, str] | None = None  # the batch that was announced and whose step did not run yet
        self._patches = Patches()

    def __reduce__(self) -> Any:
        return type(self), ()

    def _implements_train_batch_hooks(self) -> bool:
        return True

    _implements_test_batch_hooks = _implements_predict_batch_hooks = _implements_train_batch_hooks

    def set_model(self, model: Any) -> None:
        """Take a model, for whose `fit`, `evaluate` or `predict` Keras begins to use this callback."""
        self.close()
        super().set_model(model)
        self._owner = model

    def close(self) -> None:
        """End all ranges that are open, and give the model its function back."""
        self._ranges.close()
        self._epoch = self._next = None
        self._patches.undo()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch of training."""
        self._epoch = epoch
        self._begin_epoch("")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the epoch of training."""
        self._end("")
        self._epoch = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Prepare for a batch of training."""
        self._announce(batch, "")

    def on_train_end(self, logs: Any = None) -> None:
        """End training."""
        self.close()

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin the validation of an epoch, or a test."""
        self._begin_epoch(self._test_stage)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Prepare for a batch of the validation or test."""
        self._announce(batch, self._test_stage)

    def on_test_end(self, logs: Any = None) -> None:
        """End the validation or test."""
        self._end(self._test_stage)

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begin to predict."""
        self._begin_epoch("predict")

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Prepare for a batch to predict."""
        self._announce(batch, "predict")

    def on_predict_end(self, logs: Any = None) -> None:
        """End predicting."""
        self._end("predict")

    @property
    def _test_stage(self) -> str:
        return "test" if self._epoch is None else "validate"

    def _begin_epoch(self, stage: str) -> None:
        if emit.enabled():
            self._ranges.begin("epoch", self._epoch or 0, stage)

    def _end(self, stage: str) -> None:
        self._next = None
        self._patches.undo()
        self._ranges.end("step", stage)
        self._ranges.end("epoch", stage)

    def _announce(self, number: int, stage: str) -> None:
        """Have the batch begin with its step; with a model whose step cannot be found, at once.

        The end of a batch cannot be taken from Keras: it calls that on another thread, later, or else has every
        batch wait for the device.
        """
        self._ranges.end("step", stage)
        self._patches.undo()
        if not (emit.enabled() or loop.followers.of_batches):
            return
        function = vars(self._owner).get(_FUNCTIONS[stage])
        if function is None or (stage in ("test", "validate") and not isinstance(self._owner, keras.Model)):
            self._ranges.begin("step", number, stage)  # Keras 2 takes the function once, before its batches
            return
        self._patches.replace(self._owner, _FUNCTIONS[stage], wrapt.FunctionWrapper(function, self._run_step))
        self._next = number, stage

    def _run_step(self, function: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if self._next is None:
            return function(*args, **kwargs)
        (number, stage), self._next = self._next, None
        self._patches.undo()  # before the end of the batch, where a schedule may exchange the functions
        self._ranges.begin("step", number, stage)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            close_operations()
            if not _says_end_of_data(error):
                self.close()
            raise
        finally:
            self._ranges.end("step", stage)


def close_operations() -> None:
    """End the ranges that the operations of a failed step have left open."""
    library: Any = sys.modules.get("annot.tf.library")
    if library is not None:
        library.close_all()


def _says_end_of_data(error: BaseException) -> bool:
    tensorflow: Any = sys.modules.get("tensorflow")
    return isinstance(error, StopIteration) or (
        tensorflow is not None and isinstance(error, tensorflow.errors.OutOfRangeError)
    )
