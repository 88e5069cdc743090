"""Steps of a Keras program on TensorFlow, and hooks for changes of it."""

from __future__ import annotations

import functools
import hashlib
import time
import weakref
from typing import Any, Final

import keras
import tensorflow as tf

from annot.emit.patches import Patches
from annot.live.environment import leave_environment
from annot.live.keras_losses import Losses
from annot.live.keras_steps import Steps
from annot.live.request import Request, Result
from annot.live.session import Session
from annot.util.weak_keys import WeakKeys

_REPLACED: Final = "_annot_replaced"
"""Attribute of a data set with the one that is iterated over instead. A cache must be the same in each epoch."""


def start(request: Request) -> Session | None:
    """Start a session when Keras has been imported; None: its backend is not TensorFlow, or this is Keras 2."""
    if not hasattr(keras, "KerasTensor") or keras.config.backend() != "tensorflow":
        return None
    if request.seed is not None:
        keras.utils.set_random_seed(request.seed)
    return KerasSession(request)


class KerasSession(Session):
    """Measurements of the steps of a Keras program on TensorFlow.

    A step of training is a batch of `fit` or `train_on_batch`, a call of a `tf.function` that updates weights, or an
    update in eager mode. The first model, function or optimizer that trains counts. If none has trained by then,
    batches of `predict` and `evaluate` and calls of models count.

    A change is a function of the session. It registers functions with the methods ``on_…``. If such a function raises
    an exception, the change counts as skipped.
    """

    framework = "keras"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.patches = Patches()
        """Patches of changes, undone at the end."""
        self._steps = Steps(self)
        self._losses = Losses(request.losses)
        self._called = 0
        self._source: weakref.ref[Any] | None = None
        self._optimizer: weakref.ref[Any] | None = None
        self._model: weakref.ref[Any] | None = None
        self._models: WeakKeys[Any, bool] = WeakKeys()
        self._compiled: WeakKeys[Any, Any] = WeakKeys()
        self._steps.install()

    # ---------------------------------------------------------------- for changes

    on_model = functools.partialmethod(Session.on, "model")
    """Call a function with each outermost model before its first call or batch."""
    on_loop = functools.partialmethod(Session.on, "loop")
    """Call a function with a model and the name of its method that runs batches, such as ``fit``: once after each
    `compile` of the model, before Keras builds the step functions."""
    on_optimizer = functools.partialmethod(Session.on, "optimizer")
    """Call a function with the first optimizer before its first update, which may be in a graph."""
    on_data = functools.partialmethod(Session.on, "data")
    """Call a function with each data set before its first iteration, and with whether Keras has made it, from arrays or
    from a generator; it returns the data set to use, or None."""

    # ---------------------------------------------------------------- steps

    def starts(self) -> None:
        """Note when an execution starts."""
        self._called = time.perf_counter_ns()
        self.begin()

    def executed(self, source: Any, steps: int, *, trains: bool) -> None:
        """Count an execution if it is one of those to measure.

        Raises:
            StepsMeasured: all steps are measured.
        """
        if trains:
            counting = self._source() if self._source is not None else None
            if counting is not None and counting is not source:
                return
            if self._source is None:
                self.restart(self._called or None)
                self.result.trains = True
            self._source = weakref.ref(source)
        elif self._source is not None:
            return
        done = len(self.result.step_ns) + steps
        if done >= self.request.losses > len(self.result.losses):
            self.result.losses = self._losses.read()
        self.end_step(steps)

    def calls(self, model: Any) -> None:
        """Run the hooks of a model before its first call."""
        if self._models.get(model):
            return
        self._models[model] = True
        self._model = weakref.ref(model)
        self.happens("model", model)

    def loops(self, model: Any, method: str) -> None:
        """Run the hooks of a model that runs batches. `compile` drops its step functions."""
        leave_environment()  # before Keras starts processes that load data
        self.calls(model)
        compiled = getattr(model, "_compile_config", None)
        if self._compiled.get(model, self) is compiled:
            return
        self._compiled[model] = compiled
        self.happens("loop", model, method)

    def updates(self, optimizer: Any, loss: Any) -> None:
        """Keep the loss of an update by the first optimizer."""
        first = self._optimizer
        if first is None:
            first = self._optimizer = weakref.ref(optimizer)
            self.happens("optimizer", optimizer)
        is_first = first() is optimizer
        if self.request.losses and loss is not None and is_first:
            self._losses.keep(loss, optimizer.scale_loss(1.0))

    def draws(self) -> None:
        """Note that steps draw random numbers."""
        self.result.draws = True

    def iterates(self, dataset: Any, *, keras_made: bool) -> Any:
        """Return the data set to iterate over, the same one each time."""
        if not self._changes["data"]:
            return dataset
        if _REPLACED not in vars(dataset):
            replaced = dataset
            for name, change in self._changes["data"]:
                changed = self.try_change(name, change, replaced, keras_made)
                replaced = replaced if changed is None else changed
            vars(dataset)[_REPLACED] = replaced
        return vars(dataset)[_REPLACED]

    # ---------------------------------------------------------------- what TensorFlow says

    def finish(self) -> Result:
        """Return the result at the end of the program."""
        if len(self.result.step_ns) < self.request.losses:
            self.result.losses = self._losses.read()
        self._steps.undo()
        self.patches.undo()
        return super().finish()

    def wait(self) -> None:
        """Wait until all devices have completed all work."""
        tf.test.experimental.sync_devices()

    def device(self) -> str:
        """Return ``cuda`` if TensorFlow uses a GPU."""
        return "cuda" if _gpus() else "cpu"

    def peak_bytes(self) -> int:
        """Return the most memory that tensors have used on the first GPU, or the resident memory of the process."""
        gpus = _gpus()
        return int(tf.config.experimental.get_memory_info(gpus[0])["peak"]) if gpus else super().peak_bytes()

    def compiled_graphs(self) -> int:
        """Return the number of graphs that eager calls have traced."""
        return self._steps.traced

    def hash_parameters(self) -> str:
        """Return the SHA-256 of the weights of the last model, or of the variables of the first optimizer."""
        model = self._model() if self._model is not None else None
        optimizer = self._optimizer() if self._optimizer is not None else None
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        variables = model.weights if model is not None else getattr(inner, "_trainable_variables", ())
        digest = hashlib.sha256()
        for variable in variables:
            digest.update(keras.ops.convert_to_numpy(variable.value).tobytes())
        return digest.hexdigest()


def _gpus() -> list[str]:
    """Return the names of the GPUs, such as ``GPU:0``."""
    return [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
