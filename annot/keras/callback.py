"""A Keras callback that puts ranges around epochs and batches, on every backend."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, Final

import keras
import wrapt

from annot.emit import client, loop
from annot.emit.loop import OpenRanges
from annot.emit.patches import Patches

_FUNCTIONS: Final = {
    "": "train_function",
    "validate": "test_function",
    "test": "test_function",
    "predict": "predict_function",
}
"""The model attribute that holds the step function, by stage."""


class AnnotCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Ranges around the epochs and batches of `fit`, `evaluate` and `predict` of a Keras model.

    Training has ``Epoch 0 |epoch`` and ``Batch 12 |step``. The validation of an epoch has ``Epoch validate 0`` and
    ``Batch validate 3``. A separate `evaluate` has the word ``test``, `predict` has the word ``predict``, and both have
    epoch 0. A batch range covers the compiled step without the other callbacks. With ``steps_per_execution=4``, four
    batches run as one range, numbered by the first.

    The callback changes neither the results nor how Keras dispatches the ends of batches. A failing step closes all
    ranges. Ranges that an exception in another callback leaves open are closed by `close`, when the callback is used
    again, or when it is deleted. If `annot.enabled` is false, the callback does nothing. With a data set of unknown
    length, the last batch of an epoch holds only the wait that finds the end of the data.

    Example:
        >>> import annot.tf, keras, numpy
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = numpy.ones((8, 3))
        >>> history = model.fit(x, x[:, 0], verbose=0, callbacks=[annot.tf.AnnotCallback()])
    """

    # Keras 2 (`tf_keras`) reads these: the callback accepts logs as tensors, and runs on every worker.
    _supports_tf_logs = True
    _chief_worker_only = None

    def __init__(self) -> None:
        super().__init__()
        self._ranges = OpenRanges()
        # The model. Reading `self.model` during a step makes Keras on JAX restore the state from before the step.
        self._owner: Any = SimpleNamespace()
        self._epoch: int | None = None
        self._next: tuple[int, str] | None = None  # the announced batch, until its step runs
        self._patches = Patches()

    def __reduce__(self) -> Any:
        return type(self), ()

    def _implements_train_batch_hooks(self) -> bool:
        return True

    _implements_test_batch_hooks = _implements_predict_batch_hooks = _implements_train_batch_hooks

    def set_model(self, model: Any) -> None:
        """Set the model. Keras calls this at the start of `fit`, `evaluate` and `predict`."""
        self.close()
        super().set_model(model)
        self._owner = model

    def close(self) -> None:
        """End all open ranges and restore the step function of the model."""
        self._ranges.close()
        self._epoch = self._next = None
        self._patches.undo()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the range of a training epoch."""
        self._epoch = epoch
        self._begin_epoch("")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the range of the training epoch."""
        self._end("")
        self._epoch = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Prepare the range of a training batch."""
        self._announce(batch, "")

    def on_train_end(self, logs: Any = None) -> None:
        """End all ranges of the training."""
        self.close()

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin the range of a validation or test."""
        self._begin_epoch(self._test_stage)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Prepare the range of a validation or test batch."""
        self._announce(batch, self._test_stage)

    def on_test_end(self, logs: Any = None) -> None:
        """End the ranges of the validation or test."""
        self._end(self._test_stage)

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begin the range of a prediction."""
        self._begin_epoch("predict")

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Prepare the range of a prediction batch."""
        self._announce(batch, "predict")

    def on_predict_end(self, logs: Any = None) -> None:
        """End the ranges of the prediction."""
        self._end("predict")

    @property
    def _test_stage(self) -> str:
        return "test" if self._epoch is None else "validate"

    def _begin_epoch(self, stage: str) -> None:
        if client.enabled():
            self._ranges.begin("epoch", self._epoch or 0, stage)

    def _end(self, stage: str) -> None:
        self._next = None
        self._patches.undo()
        self._ranges.end("step", stage)
        self._ranges.end("epoch", stage)

    def _announce(self, number: int, stage: str) -> None:
        """Begin the range of a batch when its step runs; begin it now if the model has no known step function.

        The callbacks for the ends of batches are not used. Keras calls them later on another thread, or else makes
        every batch wait for the device.
        """
        self._ranges.end("step", stage)
        self._patches.undo()
        if not (client.enabled() or loop.followers.of_batches):
            return
        function = vars(self._owner).get(_FUNCTIONS[stage])
        if function is None or (stage in ("test", "validate") and not isinstance(self._owner, keras.Model)):
            self._ranges.begin("step", number, stage)  # Keras 2 looks the function up once, before its batches
            return
        self._patches.replace(self._owner, _FUNCTIONS[stage], wrapt.FunctionWrapper(function, self._run_step))
        self._next = number, stage

    def _run_step(self, function: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if self._next is None:
            return function(*args, **kwargs)
        (number, stage), self._next = self._next, None
        self._patches.undo()  # before the batch ends: a schedule may exchange the step functions there
        self._ranges.begin("step", number, stage)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            close_operations()
            if not _is_end_of_data(error):
                self.close()
            raise
        finally:
            self._ranges.end("step", stage)


def close_operations() -> None:
    """Close the ranges that operations of a failed step left open."""
    library: Any = sys.modules.get("annot.tf.library")
    if library is not None:
        library.close_all()


def _is_end_of_data(error: BaseException) -> bool:
    tensorflow: Any = sys.modules.get("tensorflow")
    return isinstance(error, StopIteration) or (
        tensorflow is not None and isinstance(error, tensorflow.errors.OutOfRangeError)
    )
