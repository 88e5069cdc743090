"""Steps of a Keras program on TensorFlow: batches of `fit`, calls of the program's own functions, updates, model calls.

A call that runs inside no other one is an execution: of a step function of a model, of a `tf.function`, of an
optimizer, or of a model. An execution that updates weights trains. An execution that only calls a model is inference.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

import keras
import tensorflow as tf
from tensorflow.python.framework import random_seed

from annot.emit.patches import Patches, subclasses
from annot.util.weak_keys import WeakKeys

LOOPS: Final = ("fit", "evaluate", "predict")
"""Methods of a model that loop over batches."""
_METHODS: Final = (*LOOPS, "train_on_batch", "test_on_batch", "predict_on_batch")
_STEP_FUNCTIONS: Final = {"train_function": True, "test_function": False, "predict_function": False}
"""Attributes of a model that hold its step functions, and whether they train."""
_FUNCTION: Final = type(tf.function(lambda: None))


class Listener(Protocol):
    """Receiver of the steps."""

    def starts(self) -> None:
        """An execution of a step function, a `tf.function` or a model starts."""

    def executed(self, source: Any, steps: int, *, trains: bool) -> None:
        """An execution is complete. `source` is the model, the function or the optimizer."""

    def calls(self, model: Any) -> None:
        """A model is called, inside no other model."""

    def loops(self, model: Any, method: str) -> None:
        """A method of a model that runs batches is called."""

    def updates(self, optimizer: Any, loss: Any) -> None:
        """An optimizer is called. `loss` is what was differentiated since the last call, or None."""

    def draws(self) -> None:
        """An execution draws random numbers, or will draw some with each run of the graph that it traces."""

    def iterates(self, dataset: Any, *, keras_made: bool) -> Any:
        """Return the data set to iterate over instead of `dataset`."""


class _Execution:
    """What an execution does. A graph that was traced before shows nothing when it runs."""

    __slots__ = ("infers", "trains")

    def __init__(self) -> None:
        self.trains = False
        self.infers = False


class _Thread(threading.local):
    """State of one thread."""

    def __init__(self) -> None:
        self.execution: _Execution | None = None
        self.calling = False
        """Whether a model is called."""
        self.listening = False
        """Whether the listener handles a data set."""
        self.data: Literal["program", "fit", "keras", "validation"] = "program"
        """Origin of the data sets that are iterated over: the loop of the program, or what a method of a model has got.
        Keras makes them from arrays and generators."""
        self.loss: Any = None
        """What was differentiated last."""


class Steps(Patches):
    """Patches that tell a listener about each step, from `install` to `undo`."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._thread = _Thread()
        self._open: list[_Execution] = []  # of all threads
        self._trains: WeakKeys[Any, bool] = WeakKeys()
        self._left: WeakKeys[Any, float] = WeakKeys()  # number of batches that an iterator still has
        self.traced = 0
        """Number of graphs that eager calls of functions have traced."""

    def install(self) -> None:
        """Patch Keras and TensorFlow."""
        for name, trains in _STEP_FUNCTIONS.items():
            self.replace(keras.Model, name, self._step_function(name, trains))
        self.wrap(keras.Model, "__call__", self._call_model)
        for name in _METHODS:
            self.wrap(keras.Model, name, self._run_method)
        self.wrap(_FUNCTION, "__call__", self._call_function)
        self.wrap(tf.GradientTape, "gradient", self._differentiate)
        self.wrap(tf.data.Dataset, "__iter__", self._iterate)
        self.wrap(keras.random.SeedGenerator, "next", self._draw)
        self.wrap(random_seed, "get_seed", self._draw)  # functions of tf.random
        base = keras.optimizers.Optimizer
        for cls in dict.fromkeys((*base.__mro__, *subclasses(base))):
            if "apply" in vars(cls):
                self.wrap(cls, "apply", self._update)

    def _execute(
        self, call: Callable[[], Any], source: Any, trains: bool | None = None, steps: Callable[[], int] = lambda: 1
    ) -> Any:
        """Run an execution. `trains` is None if it shows in what it calls."""
        thread = self._thread
        if thread.execution is not None or not tf.executing_eagerly():
            return call()
        count = steps()
        execution = thread.execution = _Execution()
        self._open.append(execution)
        try:
            result = call()
        finally:
            thread.execution = None
            self._open.remove(execution)
        if trains is None:
            trains = self._kind(source, execution)
        if trains is not None:
            self._listener.executed(source, count, trains=trains)
        return result

    def _kind(self, function: Any, execution: _Execution) -> bool | None:
        """Return whether a function trains; None: it neither trains nor calls a model."""
        if execution.trains or (execution.infers and not self._trains.get(function)):
            self._trains[function] = execution.trains
        return self._trains.get(function)  # type: ignore[no-any-return]

    def _current(self) -> _Execution:
        """Return the execution that the code of this thread belongs to.

        A distribution strategy traces the code of each replica in a thread of its own.
        """
        waiting = self._open[-1:] if not tf.executing_eagerly() else []
        return self._thread.execution or next(iter(waiting), _Execution())

    # ---------------------------------------------------------------- models

    def _step_function(self, name: str, trains: bool) -> property:
        """Return a property that gives the step function of a model, which tells the listener about its calls.

        The model, its subclass or other patches may exchange the function at any time.
        """

        def get(model: Any) -> Any:
            function = vars(model).get(name)
            return None if function is None else _Counted(function, functools.partial(self._run_batches, model, trains))

        def put(model: Any, function: Any) -> None:
            vars(model)[name] = function.function if isinstance(function, _Counted) else function

        return property(get, put, lambda model: vars(model).pop(name, None))

    def _run_batches(self, model: Any, trains: bool, function: Callable[[Any], Any], data: Any) -> Any:
        if not self.live:
            return function(data)
        if self._thread.execution is None:
            self._listener.starts()
        return self._execute(lambda: function(data), model, trains, lambda: self._count(model, data))

    def _count(self, model: Any, data: Any) -> int:
        """Return the number of batches that a call of a step function takes from `data`."""
        most = int(model.steps_per_execution)
        if isinstance(data, list):
            return len(data)
        if most == 1 or inspect.isgenerator(data):  # train_on_batch has a generator of one batch
            return 1
        left = self._left.get(data) or _length(model, data)
        self._left[data] = max(0, left - most)
        return int(min(most, left))

    def _call_model(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        thread = self._thread
        # A call with a symbolic tensor builds a larger model.
        if thread.calling or any(isinstance(value, keras.KerasTensor) for value in keras.tree.flatten((args, kwargs))):
            return original(model, *args, **kwargs)
        thread.calling = True
        try:
            self._listener.calls(model)
            self._current().infers = True
            if thread.execution is None:
                self._listener.starts()
            return self._execute(lambda: original(model, *args, **kwargs), model, trains=False)
        finally:
            thread.calling = False

    def _run_method(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        self._listener.loops(model, original.__name__)
        thread, before = self._thread, self._thread.data
        if original.__name__ in LOOPS:
            data = args[0] if args else kwargs.get("x")
            is_data_set = isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset))
            thread.data = "validation" if before != "program" else "fit" if is_data_set else "keras"
        try:
            return original(model, *args, **kwargs)
        finally:
            thread.data = before

    # ---------------------------------------------------------------- the program's own loops

    def _call_function(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            return original(function, *args, **kwargs)
        if self._thread.execution is None:
            self._listener.starts()
        before = function.experimental_get_tracing_count()
        try:
            return self._execute(lambda: original(function, *args, **kwargs), function)
        finally:
            self.traced += function.experimental_get_tracing_count() - before

    def _update(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._current().trains = True
        self._listener.updates(optimizer, self._thread.loss)
        self._thread.loss = None  # an optimizer inside this one, as in a LossScaleOptimizer, has no loss
        return self._execute(lambda: original(optimizer, *args, **kwargs), optimizer, trains=True)

    def _differentiate(self, original: Any, tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        self._thread.loss = target
        return original(tape, target, *args, **kwargs)

    def _draw(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._open:
            self._listener.draws()
        return original(*args, **kwargs)

    # ---------------------------------------------------------------- data

    def _iterate(self, original: Any, dataset: Any) -> Any:
        thread = self._thread
        if thread.listening or thread.data == "validation" or not tf.executing_eagerly():
            return original(dataset)
        thread.listening = True
        try:
            dataset = self._listener.iterates(dataset, keras_made=thread.data == "keras")
        finally:
            thread.listening = False
        return original(dataset)


class _Counted:
    """Step function of a model whose calls are counted."""

    __slots__ = ("_run", "function")

    def __init__(self, function: Any, run: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self._run = run

    def __call__(self, data: Any) -> Any:
        return self._run(self.function, data)


def _length(model: Any, iterator: Any) -> float:
    """Return the number of batches of an iterator; infinite if it is unknown.

    Keras makes data sets of unknown length from arrays. It tells the number of batches to the callbacks.
    """
    dataset = getattr(iterator, "_dataset", None)
    length = int(tf.data.experimental.cardinality(dataset)) if dataset is not None else tf.data.UNKNOWN_CARDINALITY
    if length == tf.data.UNKNOWN_CARDINALITY:
        history = getattr(model, "history", None)
        length = (getattr(history, "params", None) or {}).get("steps") or 0
    return length if length > 0 else math.inf
