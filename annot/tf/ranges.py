"""`emit_ranges` for Keras on TensorFlow: installs the stand-ins on entry and takes them away on exit."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from annot import emit
from annot.capture import Capture
from annot.choice import Selection, choose
from annot.instrument import check_keras_backend
from annot.keras.optimizer import OptimizerSteps
from annot.keras.paths import SEPARATOR
from annot.keras.steps import FitLoops
from annot.locks import fork_safe
from annot.patches import undo_all
from annot.schedule import Schedule
from annot.switched import SwitchedBlock
from annot.tf import library, names, noting
from annot.tf.annotations import operation_ranges, reason
from annot.tf.capture import tell_cuda
from annot.tf.data import DataWaits
from annot.tf.functions import StepFunctions
from annot.tf.layers import Layers, Mode, Options, StandIn

__all__ = ["EmitRanges", "emit_ranges"]


def emit_ranges(
    model: keras.Layer,
    *,
    forward: bool = True,
    backward: bool = True,
    optimizer: bool = True,
    data: bool = True,
    shapes: bool = True,
    include: Selection = None,
    exclude: Selection = None,
    depth: int | None = None,
    schedule: Schedule | None = None,
    mode: Mode | None = None,
) -> EmitRanges:
    """Put a range around every forward, backward and optimizer step of `model`, layer by layer.

    `fit`, `evaluate` and `predict` have ranges around their epochs and batches, as `annot.tf.AnnotCallback` makes them.
    A layer's range carries its path, as ``mobilenetv2/block_1/conv``, its class, and shapes and dtypes of its input
    tensors. If `annot.enabled` is false on entry, nothing is installed, unless `mode` is ``"names"``.

    Outputs, gradients and weights are the same bits with and without, where TensorFlow itself gives the same bits twice
    (see `tf.config.experimental.enable_op_determinism`). Nothing is added to what TensorFlow traces, saves or
    differentiates.

    Args:
        model: a model or layer; before or after it is compiled, built or fitted. Layers that it gets later, inside the
            block, are found too.
        forward: ranges around forward calls.
        backward: ranges around the backward of each layer.
        optimizer: ranges around the updates of weights by optimizers of Keras; see `annot.keras.optimizer`.
        data: ranges around the wait for each batch of a `tf.data.Dataset`; see `annot.tf.data`.
        shapes: say shapes and dtypes in the texts.
        include: which layers have ranges: patterns on the path below the model such as ``"block_1/**"``, layer
            classes, or several of either, as `annot.choice.choose` explains; None: all.
        exclude: which have none. What a layer without a range does counts to the range around it.
        depth: how many levels below the model have ranges; 0: the model alone; None: all.
        schedule: which steps have ranges, as `annot.schedule` makes it; None: all.
        mode: ``"ops"``: operations open and close the ranges of graphs; a graph optimizer adds them after TensorFlow's
            own optimizers. ``"names"``: nothing is added to graphs; TensorFlow's own ranges of its operations are
            switched on, and the report finds the layers by their name scopes, in what `tf.profiler` writes after
            `annot.tf.save_scopes`, and for that no NVTX tool need be attached. ``"python"``: graphs have no ranges.
            None: names if there is a GPU and TensorFlow has such ranges, else ops. Eager mode has the same ranges in
            each; what XLA compiles has names in each.

    Returns:
        A context manager; blocks may nest and overlap. It can be switched, see `EmitRanges`.

    Raises:
        AnnotError: Keras runs on another backend than TensorFlow; on PyTorch, use `annot.emit_ranges`.
        TypeError: `model` is not a `keras.Layer`, or an option is of the wrong type.
        ValueError: `depth` is negative, `mode` is not known, or a pattern cannot be read.

    Example:
        >>> import keras, numpy
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        >>> with emit_ranges(model):
        ...     outputs = model(numpy.ones((2, 3)))
    """
    if not isinstance(model, keras.Layer):
        raise TypeError(f"emit_ranges expects a keras.Layer, got {type(model).__qualname__}")
    check_keras_backend(keras.config.backend())
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be what annot.schedule gives, got {type(schedule).__qualname__}")
    if mode not in (None, "names", "ops", "python"):
        raise ValueError(f'mode must be "names", "ops", "python" or None, got {mode!r}')
    choice = choose(include, exclude, depth, base=keras.Layer, base_name="keras.Layer", separator=SEPARATOR)
    return EmitRanges(
        model, Options(forward, backward, shapes, choice, mode or _chosen_mode(), optimizer, data), schedule,
        without_tool=mode == "names",
    )  # fmt: skip


def _chosen_mode() -> Mode:
    """Prefer TensorFlow's own ranges on a GPU, where each of its operations has one."""
    return "names" if tf.config.list_physical_devices("GPU") and reason() is None else "ops"


class EmitRanges(SwitchedBlock):
    """The block that `emit_ranges` returns; `pause`, `resume` and `step` may come in the middle of a `fit`.

    A step that Keras traces is traced once with ranges and once without, however often the block is switched. A
    `tf.function` of your own that was traced inside the block is yours: trace it anew to have it without.
    """

    __slots__ = ("_collector", "_functions", "_loops", "_model", "_options", "_without_tool")

    def __init__(
        self, model: keras.Layer, options: Options, schedule: Schedule | None = None, *, without_tool: bool = False
    ) -> None:
        super().__init__(schedule)
        self._without_tool = without_tool
        self._model = model
        self._options = options
        self._functions = StepFunctions(model)
        self._collector = Capture(tell_cuda)
        self._loops: list[FitLoops] = []

    def _enter(self, done: list[str]) -> None:
        super()._enter(done)
        loops = FitLoops(self._model)
        self._loops.append(loops)
        if emit.enabled():  # also while the block is paused, since a schedule counts the batches
            loops.install()

    def _leave(self, done: list[str]) -> None:
        if "block" not in done and len(self._loops) >= self._entered > 0:
            self._loops[-1].remove()
            del self._loops[-1]
        super()._leave(done)

    def _is_wanted(self) -> bool:
        return self._without_tool or super()._is_wanted()

    def _install(self) -> None:
        _INSTALLED.enter(self, self._model, self._options)
        self._functions.put(ranges=True)

    def _remove(self) -> None:
        self._functions.put(ranges=False)
        _INSTALLED.leave(self)

    def _capture(self, on: bool) -> None:
        self._collector.set(on)


class Installed:
    """What is installed in this process, there while at least one block is open."""

    def __init__(self) -> None:
        self._lock = fork_safe()
        self._layers = Layers()
        self._blocks: dict[EmitRanges, list[StandIn]] = {}
        self._undo: list[Callable[[], Any]] = []

    def enter(self, block: EmitRanges, model: keras.Layer, options: Options) -> None:
        """Add a model, and the patches with the first one."""
        with self._lock:
            first = not self._blocks
            stand_ins = self._blocks[block] = []  # first, since an interrupt may come between any two calls
            if first:
                self._install(options)
            self._layers.add_model(model, options, stand_ins)
        if not stand_ins:
            emit.warn_once(f"include, exclude and depth leave no layer of {model.name} to have ranges")

    def _install(self, options: Options) -> None:
        graphs = options.mode == "ops"
        self._undo.append(library.close_all)
        self._undo.append(functools.partial(noting.remove, self))
        noting.install(self)
        if graphs:
            obstacle = library.available()
            if obstacle is not None:
                emit.warn_once(f"{obstacle}; only what runs eagerly has ranges")
            self._undo.append(functools.partial(library.switch, self, on=False))
            library.switch(self, on=True)
        for part, wanted in (
            (OptimizerSteps(graphs=graphs), options.optimizer),
            (DataWaits(graphs=graphs), options.data),
        ):
            if wanted:
                self._undo.append(part.remove)
                part.install()
        if options.mode == "names" and emit.enabled():  # what is noted is for tf.profiler too, which needs no ranges
            self._name_operations()

    def _name_operations(self) -> None:
        """Switch TensorFlow's own ranges on, and say again which layers were traced before."""
        switched = contextlib.ExitStack()
        self._undo.append(switched.close)
        if not switched.enter_context(operation_ranges()):
            emit.warn_once(f"{reason()}; layers in graphs are found in what tf.profiler writes only")
        names.tell()

    def leave(self, block: EmitRanges) -> None:
        """Take a model out again, and with the last one the patches; after an interrupt, the next call goes on."""
        with self._lock:
            stand_ins = self._blocks.get(block)
            if stand_ins is None:
                return
            self._layers.remove(stand_ins)
            if len(self._blocks) == 1:
                undo_all(self._undo)
            del self._blocks[block]


_INSTALLED = Installed()
