"""`emit_ranges` for PyTorch: installs the patches on entry and takes them away on exit."""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable

from annot import emit, native
from annot.capture import Capture
from annot.locks import fork_safe
from annot.patches import undo_all
from annot.schedule import Schedule
from annot.switched import SwitchedBlock
from annot.torch import collectives, data, greenlets, phases, profiling, replicas
from annot.torch.calls import Calls, pass_over, patched_call
from annot.torch.capture import tell_cuda
from annot.torch.choice import EVERYTHING, Choice, Selection, choose
from annot.torch.compiled import Compiled
from annot.torch.engine import Engine
from annot.torch.memory import Meter, counter_for
from annot.torch.operations import Operations
from annot.torch.optimizer import OptimizerSteps
from annot.torch.patches import Patches
from annot.torch.paths import inner, is_keras
from annot.torch.sites import Model, Sites

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EmitRanges", "emit_ranges"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the ranges of one block show."""

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

    A module's range carries its path in the model, its class, and shapes and dtypes of its input tensors. A
    backward range surrounds the autograd nodes that the module's forward made, on the thread where they run,
    nested as the modules were nested. A forward call that runs inside a backward, as activation checkpointing makes
    it, has the phase ``recompute``. A loss of `torch.nn` that is called outside the model is a layer ``Loss``.
    Outputs and gradients are the same bits with and without. If `annot.enabled` is false on entry, nothing is
    installed.

    Args:
        model: the module to instrument; modules that it gets later, inside the block, are found too.
        forward: ranges around forward calls.
        backward: ranges around the backward of each layer, and around the whole backward.
        optimizer: ranges around optimizer steps, and what goes with them; see `annot.torch.phases`.
        shapes: say shapes and dtypes in the texts.
        include: which modules have ranges: patterns on the dotted path such as ``"features.*"``, module classes, or
            several of either, as `annot.torch.choice.choose` explains; None: all.
        exclude: which have none. What a module without a range does counts to the range around it.
        depth: how many levels below the model have ranges; 0: the model alone; None: all.
        schedule: which steps have ranges, as `annot.schedule` makes it; None: all.
        memory: say how each range changed the memory in use, and its peak, in marks that `annot.memory_text`
            describes: what PyTorch has allocated on the device of the model, for a model on the CPU the resident
            memory of the process. Calls take the slower path in Python.
        ops: ranges around the functions of PyTorch that the layers call, each with the layer, its name, shapes and
            dtypes of its tensors and the values of its other arguments, as in
            ``features.0 Conv2d conv2d [8,3,32,32]f32 [16,3,3,3]f32 [16]f32 stride=1,1 … |op``. Costs some
            microseconds a call. Functions that compute nothing have none, nor has what is compiled or scripted, and
            attention and transformer encoders in evaluation, for the sake of their fast path.
        data: ranges around the wait for each batch of a DataLoader, and in its workers; see `annot.torch.data`.
        collectives: ranges around what processes send each other; see `annot.torch.collectives`.
        compiled: ranges around graphs that `torch.compile` made and, in those that it makes inside the block, around
            each kernel; such a range names the layers that the kernel works for, joined by ``+``.
        name: what the paths of this model begin with, as in ``G.0``, where several models run in one program. None: the
            paths begin below the model; but of two models whose blocks are open at the same time, perhaps paused, the
            later one, and the earlier one if it has not been called yet, have the name of their class
            (``Generator.0``; of two models of one class ``Net.0`` and ``Net#2.0``). `include`, `exclude` and `depth`
            do not see the name.

    Returns:
        A context manager; blocks may nest and overlap, also in several threads. It can be switched, see `EmitRanges`.

    Raises:
        TypeError: `model` is not a `torch.nn.Module`, or an option is of the wrong type.
        ValueError: `depth` is negative, or a pattern cannot be read.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True))
        >>> with emit_ranges(model):
        ...     model(torch.ones(2, 3)).sum().backward()
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"emit_ranges expects a torch.nn.Module, got {type(model).__qualname__}")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be what annot.schedule gives, got {type(schedule).__qualname__}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a str or None, got {name!r}")
    choice = choose(include, exclude, depth)
    options = Options(forward, backward, optimizer, shapes, choice, memory, ops, data, collectives, compiled, name)
    return EmitRanges(model, options, schedule)


class EmitRanges(SwitchedBlock):
    """The block that `emit_ranges` returns.

    `pause` and `resume` may come between a forward and its backward. A graph that was built while the block was on
    and runs while it is off has no ranges.
    """

    __slots__ = ("_collector", "_loops", "_model", "_options")

    def __init__(self, model: torch.nn.Module, options: Options, schedule: Schedule | None = None) -> None:
        super().__init__(schedule)
        self._model = model
        self._options = options
        self._collector = Capture(tell_cuda)
        self._loops: list[Any] = []

    def _enter(self, done: list[str]) -> None:
        super()._enter(done)
        if is_keras(self._model) and hasattr(self._model, "fit"):
            from annot.keras.steps import FitLoops

            self._loops.append(FitLoops(self._model))
            if emit.enabled():  # also while the block is paused, since a schedule counts the batches
                self._loops[-1].install()

    def _leave(self, done: list[str]) -> None:
        if "block" not in done and len(self._loops) >= self._entered > 0:
            self._loops[-1].remove()
            del self._loops[-1]
        super()._leave(done)

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

    def _capture(self, on: bool) -> None:
        self._collector.set(on)


class Installed:
    """The patches of this process, there while at least one block is open."""

    def __init__(self) -> None:
        self._lock = fork_safe()
        self._open: dict[EmitRanges, Model] = {}
        self._blocks: dict[EmitRanges, Model] = {}  # those of them that are not paused
        self._sites = Sites(self._on_change)
        self._calls: Any = None
        self._undo: list[Any] = []

    def open(self, block: EmitRanges, root: torch.nn.Module, options: Options) -> None:
        """Name the model of a block that has been entered; again, it does nothing."""
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
        """Forget a block that has been left; after an interrupt, the next call goes on with the rest."""
        with self._lock:
            model = self._open.get(block)
            if model is not None:
                self._sites.close(model)
                if len(self._open) == 1 and self._calls is not None:
                    self._calls.drop_notes()
                del self._open[block]

    def enter(self, block: EmitRanges, root: torch.nn.Module, options: Options) -> None:
        """Add a model, and the patches with the first one; the options of the outermost block hold."""
        with self._lock:
            first = not self._blocks
            model = self._blocks[block] = self._named(block, root, options)
            if first:
                self._install(root, options)
            self._sites.add_model(model)
        if not model.held:
            emit.warn_once(f"include, exclude and depth leave no module of {type(root).__name__} to have ranges")

    def leave(self, block: EmitRanges) -> None:
        """Take a model out again, and with the last one the patches; after an interrupt, the next call goes on."""
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

    def _install(self, model: torch.nn.Module, options: Options) -> None:
        counter = counter_for(model) if options.memory else None
        fast = native.fast() if counter is None and _left_behind is not patched_call else None
        kind = fast.Calls if fast is not None else Calls
        emission = {} if counter is None else {"meter": Meter(counter)}
        self._calls = calls = kind(self._sites, forward=options.forward, backward=options.backward, **emission)
        self._undo.append(functools.partial(greenlets.watch, None))
        greenlets.watch(calls.note_switch)
        operations = Operations(functools.partial(calls.current_site, False)) if options.ops else None
        _patch_call(self._undo, calls, operations.around if operations else None)
        if options.forward or options.backward:
            _patch_engine(self._undo, calls, ranges=options.backward)
        if options.optimizer:
            steps = OptimizerSteps()
            self._undo.append(steps.remove)
            steps.install()
        patches = Patches()
        self._undo.append(patches.undo)
        self._install_around(patches, options)
        if options.compiled:
            graphs = Compiled(calls, self._sites, forward=options.forward, backward=options.backward)
            self._undo.append(graphs.remove)
            graphs.install()

    def _install_around(self, patches: Patches, options: Options) -> None:
        """What is not a call of the model or a step of the optimizer."""
        profiling.install(patches, (patched_call, _native_call), lambda: _original_call)
        if options.optimizer:
            phases.install(patches)
            self._install_keras()
        if options.forward or options.backward:
            replicas.install(patches, self._sites)
        if options.data:
            data.install(patches)
        if options.collectives:
            collectives.install(patches)
        collectives.say_rank()

    def _install_keras(self) -> None:
        """The optimizers of Keras, which are none of PyTorch's, if Keras runs on PyTorch."""
        keras: Any = sys.modules.get("keras")
        if keras is not None and hasattr(keras, "config") and keras.config.backend() == "torch":
            from annot.keras.optimizer import OptimizerSteps as KerasOptimizerSteps

            steps = KerasOptimizerSteps(graphs=False)
            self._undo.append(steps.remove)
            steps.install()


_INSTALLED = Installed()


def _patch_call(undo: list[Any], calls: Any, around: Callable[[Any], Any] | None) -> None:
    """Put a stand-in in the place of `torch.nn.Module.__call__`; add to `undo` what undoes it.

    What `around` makes of the original is called in its place, but for what is being compiled. If somebody else has
    wrapped `__call__` meanwhile, the stand-in stays below theirs: without sites it does nothing, and a later block
    uses it where it is, rather than once more on top.
    """
    global _original_call, _inner_call, _call, _left_behind
    ours = patched_call if isinstance(calls, Calls) else _native_call
    here = torch.nn.Module.__call__
    undo.append(functools.partial(_unpatch_call, ours))
    if here is not ours and not (_left_behind is not None and here is not _original_call):
        _original_call, _left_behind = here, None
        pass_over(ours)
        torch.nn.Module.__call__ = ours  # type: ignore[method-assign]
    _inner_call = around(_original_call) if around else _original_call
    if isinstance(calls, Calls):
        calls.take_calls(_original_call, _inner_call)
        _call = _call_in_python  # the one that was left behind may be that of the C parts
    else:
        _call = calls.call


def _unpatch_call(ours: Any) -> None:
    global _inner_call, _left_behind
    _inner_call = _original_call
    if torch.nn.Module.__call__ is ours:
        torch.nn.Module.__call__ = _original_call  # type: ignore[method-assign]
    elif torch.nn.Module.__call__ is not _original_call:
        _left_behind = _left_behind or ours


# What `_native_call` needs, as globals: torch.compile recompiles when the closure of a function that it has
# traced changes, and leaving the block puts a function without one in this one's place.
_is_compiling = torch.compiler.is_dynamo_compiling
_original_call: Any = None
_inner_call: Any = None
_left_behind: Any = None
_call: Any = None


def _call_in_python(_: Any, module: Any, args: Any, kwargs: Any) -> Any:
    return patched_call(module, *args, **kwargs)


def _native_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # PyTorch's profiler reads `self`
    # torch.compile traces what it compiles through this very function, and must see the original.
    if _is_compiling():
        return _original_call(self, *args, **kwargs)
    return _call(_inner_call, self, args, kwargs)


def _patch_engine(undo: list[Any], calls: Any, *, ranges: bool) -> None:
    """Put a stand-in in the place of autograd's engine; add to `undo` what undoes it."""
    holder: Any = Variable
    engine = Engine(holder._execution_engine, calls, ranges=ranges)

    def restore() -> None:
        original = engine.retire()
        if holder._execution_engine is engine:
            holder._execution_engine = original

    undo.append(restore)
    holder._execution_engine = engine
