"""`emit_ranges` for PyTorch: installs the patches on entry and removes them on exit."""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import dataclass
from typing import Any, Final

import torch

from annot import native
from annot.emit import client, guard, layer_filter, search
from annot.emit.layer_filter import EVERYTHING, Choice, Selection
from annot.emit.loop import OpenRanges
from annot.emit.machine import say_machine
from annot.emit.patches import undo_all
from annot.emit.pausable import NO_CUDA, SwitchedBlock
from annot.emit.schedule import Schedule
from annot.labels.tag import Phase
from annot.torch import collectives, data_loader, dynamo, greenlets, internals, module_calls, optimizer, process_marks
from annot.torch.autograd_engine import Engine
from annot.torch.compiled import Compiled
from annot.torch.found_models import FoundModels
from annot.torch.memory import Meter, counter_for
from annot.torch.module_calls import FOR_C, Calls, patched_call
from annot.torch.module_paths import inner, is_keras
from annot.torch.module_sites import Model, Sites
from annot.torch.operations import Operations
from annot.torch.patches import Patches
from annot.util.locks import fork_safe

_LACKS: Final = (
    "PyTorch {} differs from the releases that annot supports: it lacks {}. Layers, backwards and optimizer steps have "
    "no ranges"
)
choose: Final = functools.partial(layer_filter.choose, base=torch.nn.Module, base_name="torch.nn.Module")
"""`annot.emit.layer_filter.choose` for dotted paths and subclasses of `torch.nn.Module`."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `emit_ranges`."""

    forward: bool = True
    backward: bool = True
    optimizer: bool = True
    shapes: bool = True
    choice: Choice = EVERYTHING
    memory: bool = False
    ops: bool = False
    data: bool = True
    collectives: bool = True
    compiled: bool = True
    name: str | None = None


def emit_ranges(
    model: torch.nn.Module,
    *,
    forward: bool = True,
    backward: bool = True,
    optimizer: bool = True,
    shapes: bool = True,
    include: Selection = None,
    exclude: Selection = None,
    depth: int | None = None,
    schedule: Schedule | None = None,
    memory: bool = False,
    ops: bool = False,
    data: bool = True,
    collectives: bool = True,
    compiled: bool = True,
    name: str | None = None,
) -> EmitRanges:
    """Put a range around every forward, backward and optimizer step of `model`, layer by layer.

    The range of a module contains its path in the model, its class, and shapes and dtypes of its input tensors. A
    backward range covers the autograd nodes that the forward of the module created, on the thread where they run, with
    the nesting of the modules. A forward call inside a backward, as in activation checkpointing, has the phase
    ``recompute``. A loss of `torch.nn` that is called outside the model is the layer ``Loss``. Outputs and gradients
    are bitwise identical with and without ranges. If `annot.enabled` is false on entry, nothing is installed.

    Args:
        model: the module to instrument. Modules that are added to it inside the block have ranges too.
        forward: ranges around forward calls.
        backward: ranges around the backward of each layer, and around the whole backward.
        optimizer: ranges around optimizer steps and related functions, see `annot.torch.optimizer`.
        shapes: show shapes and dtypes.
        include: modules that have ranges: patterns on the dotted path such as ``"features.*"``, module classes, or an
            iterable of these, see `annot.emit.layer_filter.choose`. None: all.
        exclude: modules without ranges. Their time belongs to the enclosing range.
        depth: maximum depth below the model. 0: only the model. None: unlimited.
        schedule: steps that have ranges, made by `annot.schedule`. None: all.
        memory: mark the change and the peak of the memory in use (bytes) during each range, in the format of
            `annot.labels.marks`: the memory allocated by PyTorch on the device of the model, or the resident
            memory of the process for a model on the CPU. Module calls use the slower Python implementation.
        ops: ranges around the PyTorch functions that the layers call, each with the layer, the name of the function,
            shapes and dtypes of its tensors and the values of its other arguments, as in
            ``features.0 Conv2d conv2d [8,3,32,32]f32 [16,3,3,3]f32 [16]f32 stride=1,1 … |op``. The overhead is a few
            microseconds per call. There are no such ranges around functions that compute nothing, in compiled or
            scripted code, and in attention and transformer encoders in evaluation mode, which keep their fast path.
        data: ranges around the wait for each batch of a DataLoader, and in its workers, see `annot.torch.data_loader`.
        collectives: ranges around collectives and messages between processes, see `annot.torch.collectives`.
        compiled: ranges around graphs of `torch.compile` and, in graphs compiled inside the block, around each kernel.
            The range of a kernel names its layers, joined by ``+``.
        name: prefix of the paths of this model, as in ``G.0``, for programs with several models. None: paths start
            below the model. But if two models are open or paused at the same time, the later one gets its class name
            as prefix, and so does the earlier one if it has not been called yet (``Generator.0``, and ``Net.0`` and
            ``Net#2.0`` for two models of one class). `include`, `exclude` and `depth` apply to paths without the name.

    Returns:
        A context manager. Blocks may nest and overlap, also across threads. A block can be paused, see `EmitRanges`.

    Raises:
        TypeError: `model` is not a `torch.nn.Module`, or an option has the wrong type.
        ValueError: `depth` is negative, or a pattern is invalid.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True))
        >>> with emit_ranges(model):
        ...     model(torch.ones(2, 3)).sum().backward()
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"emit_ranges expects a torch.nn.Module, got {type(model).__qualname__}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a str or None, got {name!r}")
    choice = choose(include, exclude, depth)
    options = Options(forward, backward, optimizer, shapes, choice, memory, ops, data, collectives, compiled, name)
    search.end()
    return EmitRanges(model, options, schedule)


def find_models() -> None:
    """Emit ranges of every model that the program calls, until it makes a block of `emit_ranges` itself."""
    if client.enabled():
        _INSTALLED.find_models()


class EmitRanges(SwitchedBlock):
    """Context manager that `emit_ranges` returns.

    `pause` and `resume` may come between a forward and its backward. A backward that runs while the block is paused
    has no ranges.
    """

    __slots__ = ("_model", "_options")

    def __init__(self, model: torch.nn.Module, options: Options, schedule: Schedule | None = None) -> None:
        super().__init__(_tell_cuda, schedule)
        self._model = model
        self._options = options

    def _fit_loops(self) -> Any:
        if not (is_keras(self._model) and hasattr(self._model, "fit")):
            return None
        from annot.keras.fit_loops import FitLoops

        return FitLoops(self._model)

    def _update(self) -> None:
        if self._entered and self._is_wanted():
            _INSTALLED.open(self, self._model, self._options)
        super()._update()
        if not self._entered:
            _INSTALLED.close(self)

    def _install(self) -> None:
        _INSTALLED.enter(self, self._model, self._options)

    def _remove(self) -> None:
        _INSTALLED.leave(self)


class TrainerRanges(OpenRanges):
    """Open ranges of a trainer: layers of its model, epochs and batches.

    `options` are those of `annot.torch.emit_ranges`. A copy or a pickle has the options, but no open ranges.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._options = options

    def __reduce__(self) -> Any:
        return TrainerRanges, (self._options,)

    def enter(self, model: torch.nn.Module) -> None:
        """Close all open ranges, and emit ranges of a model until `close`."""
        self.close()
        self._enter("model", emit_ranges(model, **self._options))

    def begin(self, phase: Phase, number: int, stage: str = "") -> None:
        """Open the range of an epoch or batch if a model is entered. An open one of the same stage closes first."""
        self.end(phase, stage)
        if self._open:
            super().begin(phase, number, stage)


class Installed:
    """Patches of this process, installed while at least one block is open and not paused."""

    def __init__(self) -> None:
        self._lock = fork_safe()
        self._open: dict[EmitRanges, Model] = {}
        self._blocks: dict[EmitRanges, Model] = {}  # open blocks that are not paused
        self._sites = Sites(self._on_change)
        self._calls: Any = None
        self._undo: list[Any] = []

    def find_models(self) -> None:
        """Install the patches, and add the models that are called. `annot.emit.search.end` undoes both."""
        with self._lock:
            models = FoundModels(self._sites)
            self._undo += [self._sites.clear, models.close]
            search.on_end(self._end_search)
            self._install(Options(), None)
            self._sites.search(models.find)

    def _end_search(self) -> None:
        with self._lock:
            self._sites.search(None)
            undo_all(self._undo)

    def open(self, block: EmitRanges, root: torch.nn.Module, options: Options) -> None:
        """Name the model of an entered block. Repeated calls have no effect."""
        with self._lock:
            self._named(block, root, options)

    def _named(self, block: EmitRanges, root: torch.nn.Module, options: Options) -> Model:
        model = self._open.get(block)
        if model is None:
            model = Model(weakref.ref(inner(root)), options.choice, options.shapes, options.name)
            self._open[block] = model
        self._sites.open(model)
        return model

    def close(self, block: EmitRanges) -> None:
        """Forget a block that was left. After an interrupt, the next call continues with the rest."""
        with self._lock:
            model = self._open.get(block)
            if model is not None:
                self._sites.close(model)
                if len(self._open) == 1 and self._calls is not None:
                    self._calls.drop_notes()
                del self._open[block]

    def enter(self, block: EmitRanges, root: torch.nn.Module, options: Options) -> None:
        """Add a model. The first one installs the patches, and its options apply to all nested blocks."""
        with self._lock:
            first = not self._blocks
            model = self._blocks[block] = self._named(block, root, options)
            if first:
                self._install(options, counter_for(root) if options.memory else None)
            self._sites.add_model(model)
        if not model.held:
            client.warn_once(
                f"include, exclude and depth exclude every module of {type(root).__name__}: no layer has ranges"
            )

    def leave(self, block: EmitRanges) -> None:
        """Remove a model, and the patches with the last one. After an interrupt, the next call continues."""
        with self._lock:
            model = self._blocks.get(block)
            if model is None:
                return
            self._sites.remove(model)
            if len(self._blocks) == 1:
                undo_all(self._undo)
                self._sites.clear()
            del self._blocks[block]

    def _on_change(self) -> None:
        if self._calls is not None:
            self._calls.forget()

    def _install(self, options: Options, counter: Any) -> None:
        if internals.missing():
            client.warn_once(_LACKS.format(torch.__version__, ", ".join(internals.missing())))
            return
        dynamo.skip_own_code()
        fast = native.emitter() if counter is None and module_calls.left_behind() is not patched_call else None
        kind = Calls
        if fast is not None:
            fast.bind(FOR_C)
            kind = fast.Calls
        emission = {} if counter is None else {"meter": Meter(counter)}
        self._calls = calls = kind(self._sites, forward=options.forward, backward=options.backward, **emission)
        self._undo.append(functools.partial(greenlets.watch, None))
        greenlets.watch(calls.note_switch)
        operations = Operations(functools.partial(calls.current_site, False)) if options.ops else None
        module_calls.install(self._undo, calls, operations.around if operations else None)
        if options.forward or options.backward:
            self._install_patch(Engine(calls, ranges=options.backward))
        if options.optimizer:
            self._install_patch(optimizer.OptimizerSteps())
        patches = Patches()
        self._undo.append(patches.undo)
        self._install_around(patches, options)
        if options.compiled:
            self._install_patch(Compiled(calls, self._sites, forward=options.forward, backward=options.backward))

    def _install_around(self, patches: Patches, options: Options) -> None:
        """Install the patches other than module calls, the engine and optimizer steps."""
        module_calls.hide_from_profiler(patches)
        if options.optimizer:
            optimizer.install(patches)
            self._install_keras()
        if options.forward or options.backward:
            patches.wrap(torch.nn.Module, "_replicate_for_data_parallel", self._replicate)
        if options.data:
            data_loader.install(patches)
        if options.collectives:
            collectives.install(patches)
        process_marks.say_rank()
        process_marks.say_threads()
        say_machine("PyTorch", str(torch.__version__))

    def _install_keras(self) -> None:
        """Patch the optimizers of Keras if its backend is PyTorch. They do not derive from `torch.optim.Optimizer`."""
        keras: Any = sys.modules.get("keras")
        if keras is not None and hasattr(keras, "config") and keras.config.backend() == "torch":
            from annot.keras.optimizer import OptimizerSteps as KerasOptimizerSteps

            self._install_patch(KerasOptimizerSteps())

    def _install_patch(self, patch: Any) -> None:
        self._undo.append(patch.undo)  # first: a signal handler may raise between any two calls
        patch.install()

    def _replicate(self, original: Any, module: torch.nn.Module) -> Any:
        """Give each replica that DataParallel makes for a forward a copy of the site of its module."""
        replica = original(module)
        self._sites.add_replica(replica, module)
        return replica


_INSTALLED = Installed()


def _tell_cuda(what: str) -> None:
    """Call ``cudaProfilerStart`` (``start``) or ``cudaProfilerStop`` (``stop``). A failure is a warning."""
    if not torch.cuda.is_available():
        client.warn_once(NO_CUDA)
        return
    note = f"capture=True: the CUDA profiler did not {what}"
    guard.attempt(getattr(torch.cuda.profiler, what), otherwise=None, note=note)
