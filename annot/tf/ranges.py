"""`emit_ranges` for Keras on TensorFlow: install the wrappers on entry and remove them on exit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow as tf

from annot.emit import client, search
from annot.emit.layer_filter import Selection, choose
from annot.emit.machine import say_machine
from annot.emit.patches import undo_all
from annot.emit.pausable import SwitchedBlock
from annot.emit.schedule import Schedule
from annot.keras import check_keras_backend
from annot.keras.fit_loops import FitLoops
from annot.keras.layer_paths import SEPARATOR
from annot.keras.optimizer import OptimizerSteps
from annot.tf import cuda, library, name_scopes, operation_owners, owners
from annot.tf.layer_calls import Layers, LayerWrapper, Options
from annot.tf.training_loop import DataWaits, StepFunctions
from annot.util.locks import fork_safe


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
    mode: Literal["names", "ops"] | None = None,
) -> EmitRanges:
    """Put ranges around the forward and backward of each layer of `model`, and around optimizer steps.

    `fit`, `evaluate` and `predict` have ranges around their epochs and batches, as with `annot.tf.AnnotCallback`. The
    range of a layer has its path, such as ``mobilenetv2/block_1/conv``, its class, and shapes and dtypes of its input
    tensors. If `annot.enabled` is false on entry, nothing is installed, unless `mode` is ``"names"``.

    Outputs, gradients and weights are bitwise the same with and without ranges wherever TensorFlow is deterministic
    (see `tf.config.experimental.enable_op_determinism`). Where TensorFlow promises no order, results with ranges are
    among those without. The graphs that TensorFlow traces, saves and differentiates do not change.

    Args:
        model: a model or layer, before or after `compile`, `build` or `fit`. Layers that are added inside the block
            also have ranges.
        forward: emit ranges around forward calls.
        backward: emit ranges around the backward of each layer.
        optimizer: emit ranges around weight updates by Keras optimizers; see `annot.keras.optimizer`.
        data: emit ranges around the wait for each batch of a `tf.data.Dataset`; see `annot.tf.training_loop`.
        shapes: write shapes and dtypes into the labels.
        include: layers with ranges: patterns on the path below the model such as ``"block_1/**"``, layer classes, or a
            collection of both, as `annot.emit.layer_filter.choose` explains; None: all.
        exclude: layers without ranges. Their time belongs to the enclosing range.
        depth: number of levels below the model with ranges; 0: the model only; None: all.
        schedule: the steps with ranges, from `annot.schedule`; None: all.
        mode: the way to emit ranges in graphs. Eager mode has the same ranges in every mode. None: ``"names"`` if there
            is a GPU and TensorFlow can emit such ranges, or if ``"ops"`` is unavailable, else ``"ops"``.
            ``"ops"``: a graph optimizer adds operations that open and close ranges, after TensorFlow's own optimizers.
            ``"names"``: graphs do not change. TensorFlow's own ranges around operations are switched on, and the report
            finds the layers by their name scopes. This mode also works without an NVTX tool, for `tf.profiler`.

    Returns:
        A context manager; blocks may nest and overlap. `EmitRanges` can be paused and resumed.

    Raises:
        AnnotError: the Keras backend is not TensorFlow. On PyTorch, use `annot.emit_ranges`.
        TypeError: `model` is not a `keras.Layer`, or an option has the wrong type.
        ValueError: `depth` is negative, `mode` is unknown, or a pattern is invalid.

    Example:
        >>> import keras, numpy
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        >>> with emit_ranges(model):
        ...     outputs = model(numpy.ones((2, 3)))
    """
    if not isinstance(model, keras.Layer):
        raise TypeError(f"emit_ranges expects a keras.Layer, got {type(model).__qualname__}")
    check_keras_backend(keras.config.backend())
    if mode not in (None, "names", "ops"):
        raise ValueError(f'mode must be "names", "ops" or None, got {mode!r}')
    choice = choose(include, exclude, depth, base=keras.Layer, base_name="keras.Layer", separator=SEPARATOR)
    search.end()
    operations = mode == "ops" or (mode is None and _adds_operations())
    options = Options(forward, backward, shapes, choice, operations, optimizer, data)
    return EmitRanges(model, options, schedule, without_tool=mode == "names")


def found_block(model: keras.Layer) -> EmitRanges:
    """Return a block for a model that annot has found. It does not end the search as `emit_ranges` does."""
    return EmitRanges(model, Options(operations=_adds_operations()))


def _adds_operations() -> bool:
    return not tf.config.list_physical_devices("GPU") or cuda.without_ranges() is not None


class EmitRanges(SwitchedBlock):
    """The context manager that `emit_ranges` returns. `pause`, `resume` and `step` also work during a `fit`.

    Keras traces each step function at most twice, with and without ranges, however often the block is switched. The
    block does not switch your own `tf.function`: retrace it to add or remove ranges.
    """

    __slots__ = ("_functions", "_model", "_options", "_without_tool")

    def __init__(
        self, model: keras.Layer, options: Options, schedule: Schedule | None = None, *, without_tool: bool = False
    ) -> None:
        super().__init__(cuda.tell_cuda, schedule)
        self._model, self._options, self._without_tool = model, options, without_tool
        self._functions = StepFunctions(model)

    def _fit_loops(self) -> FitLoops:
        return FitLoops(self._model)

    def _is_wanted(self) -> bool:
        return self._without_tool or super()._is_wanted()

    def _install(self) -> None:
        _INSTALLED.enter(self, self._model, self._options)
        self._functions.put(ranges=True)

    def _remove(self) -> None:
        self._functions.put(ranges=False)
        _INSTALLED.leave(self)


class Installed:
    """The patches that all open blocks of this process share."""

    def __init__(self) -> None:
        self._lock = fork_safe()
        self._layers = Layers()
        self._blocks: dict[EmitRanges, list[LayerWrapper]] = {}
        self._undo: list[Callable[[], Any]] = []

    def enter(self, block: EmitRanges, model: keras.Layer, options: Options) -> None:
        """Add the layers of a model. The first block installs the patches."""
        with self._lock:
            first = not self._blocks
            wrappers = self._blocks[block] = []  # first, since an interrupt may come between any two calls
            if first:
                self._install(options)
            self._layers.add(model.name, model, options, wrappers)
        if not wrappers:
            client.warn_once(f"{model.name} has no ranges: include, exclude and depth exclude all of its layers")

    def _install(self, options: Options) -> None:
        graphs, problem = options.operations, None
        self._undo.append(library.close_all)
        self._undo.append(functools.partial(operation_owners.remove, self))
        operation_owners.install(self)
        if graphs:
            problem = library.available()
            self._undo.append(functools.partial(library.switch, self, on=False))
            library.switch(self, on=True)
        for patch, wanted in (
            (OptimizerSteps(owners.gradients_first if graphs else None), options.optimizer),
            (DataWaits(graphs=graphs), options.data),
        ):
            if wanted:
                self._undo.append(patch.undo)
                patch.install()
        if (problem or not graphs) and client.enabled():  # the recorded scopes alone suffice for tf.profiler
            self._name_operations(problem)
        say_machine("TensorFlow", tf.__version__)

    def _name_operations(self, problem: str | None) -> None:
        """Switch TensorFlow's own ranges on, and repeat the marks of the layers that were traced before."""
        missing = cuda.without_ranges()
        if missing is None:
            self._undo.append(functools.partial(cuda.switch_ranges, on=False))
            cuda.switch_ranges(on=True)
        if problem or missing:
            shown = "TensorFlow's own ranges" if missing is None else "Only tf.profiler traces"
            client.warn_once(f"{problem or missing}. {shown} show the layers of graphs")
        name_scopes.repeat_marks()

    def leave(self, block: EmitRanges) -> None:
        """Remove the layers of a model. The last block also removes the patches.

        If an interrupt stops this, the next call finishes the rest.
        """
        with self._lock:
            wrappers = self._blocks.get(block)
            if wrappers is None:
                return
            self._layers.remove(wrappers)
            if len(self._blocks) == 1:
                undo_all(self._undo)
            del self._blocks[block]


_INSTALLED = Installed()
