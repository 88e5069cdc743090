"""`emit_ranges` for PyTorch: installs the patches on entry and takes them away on exit."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable

from annot import emit, native
from annot.torch.calls import Calls, pass_over, patched_call
from annot.torch.compiled import Compiled
from annot.torch.engine import Engine
from annot.torch.optimizer import OptimizerSteps
from annot.torch.sites import Sites

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["EmitRanges", "emit_ranges"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the ranges of one block show."""

    forward: bool = True
    backward: bool = True
    optimizer: bool = True
    shapes: bool = True
    compiled: bool = True


def emit_ranges(
    model: torch.nn.Module,
    *,
    forward: bool = True,
    backward: bool = True,
    optimizer: bool = True,
    shapes: bool = True,
    compiled: bool = True,
) -> EmitRanges:
    """Put a range around every forward, backward and optimizer step of `model`, layer by layer.

    A module's range carries its path in the model, its class, and shapes and dtypes of its input tensors. A
    backward range surrounds the autograd nodes that the module's forward made, on the thread where they run,
    nested as the modules were nested. Outputs and gradients are the same bits with and without. If `annot.enabled`
    is false on entry, nothing is installed.

    Args:
        model: the module to instrument; modules that it gets later, inside the block, are found too.
        forward: ranges around forward calls.
        backward: ranges around the backward of each layer, and around the whole backward.
        optimizer: ranges around optimizer steps.
        shapes: say shapes and dtypes in the texts.
        compiled: ranges around graphs that `torch.compile` made and, in those that it makes inside the block, around
            each kernel; such a range names the layers that the kernel works for, joined by ``+``.

    Returns:
        A context manager; blocks may nest and overlap, also in several threads.

    Raises:
        TypeError: `model` is not a `torch.nn.Module`.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True))
        >>> with emit_ranges(model):
        ...     model(torch.ones(2, 3)).sum().backward()
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"emit_ranges expects a torch.nn.Module, got {type(model).__qualname__}")
    return EmitRanges(model, Options(forward, backward, optimizer, shapes, compiled))


class EmitRanges:
    """The block that `emit_ranges` returns."""

    __slots__ = ("_added", "_model", "_options")

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        self._model = model
        self._options = options
        self._added: list[list[int] | None] = []

    def __enter__(self) -> EmitRanges:
        self._added.append(_INSTALLED.enter(self._model, self._options) if emit.enabled() else None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        added = self._added.pop()
        if added is not None:
            _INSTALLED.leave(added)


class Installed:
    """The patches of this process, there while at least one block is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._sites = Sites(self._on_change)
        self._calls: Any = None
        self._undo: list[Any] = []

    def enter(self, model: torch.nn.Module, options: Options) -> list[int]:
        """Add a model, and the patches with the first one; the options of the outermost block hold."""
        with self._lock:
            if self._blocks == 0:
                self._install(options)
            self._blocks += 1
            return self._sites.add_model(_original(model), shapes=options.shapes)

    def leave(self, added: list[int]) -> None:
        """Take a model out again, and with the last one the patches, in reverse order."""
        with self._lock:
            self._sites.remove(added)
            self._blocks -= 1
            if self._blocks == 0:
                while self._undo:
                    self._undo.pop()()
                self._sites.clear()

    def _on_change(self) -> None:
        if self._calls is not None:
            self._calls.forget()

    def _install(self, options: Options) -> None:
        fast = native.fast()
        kind = fast.Calls if fast is not None else Calls
        self._calls = calls = kind(self._sites, forward=options.forward, backward=options.backward)
        try:
            self._undo.append(_patch_call(calls))
            if options.backward:
                self._undo.append(_patch_engine(calls))
            if options.optimizer:
                steps = OptimizerSteps()
                self._undo.append(steps.remove)
                steps.install()
            if options.compiled:
                graphs = Compiled(calls, self._sites, forward=options.forward, backward=options.backward)
                self._undo.append(graphs.remove)
                graphs.install()
        except BaseException:
            while self._undo:
                self._undo.pop()()
            raise


_INSTALLED = Installed()


def _original(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model that `torch.compile` wrapped, or the model itself: the paths are those of the former."""
    return getattr(model, "_orig_mod", model)


def _patch_call(calls: Any) -> Any:
    """Put a stand-in in the place of `torch.nn.Module.__call__`; return what undoes it.

    If somebody else has wrapped `__call__` meanwhile, the stand-in stays below theirs: without sites it does
    nothing, and a later block uses it where it is, rather than once more on top.
    """
    global _original_call, _call, _left_behind
    ours = patched_call if isinstance(calls, Calls) else _native_call
    here = torch.nn.Module.__call__
    if here is not ours and not (_left_behind and here is not _original_call):
        _original_call, _left_behind = here, False
        pass_over(ours)
        torch.nn.Module.__call__ = ours  # type: ignore[method-assign]
    if isinstance(calls, Calls):
        calls.take_calls(_original_call)
    else:
        _call = calls.call

    def undo() -> None:
        global _left_behind
        if torch.nn.Module.__call__ is ours:
            torch.nn.Module.__call__ = _original_call  # type: ignore[method-assign]
        else:
            _left_behind = True

    return undo


# What `_native_call` needs, as globals: torch.compile recompiles when the closure of a function that it has
# traced changes, and leaving the block puts a function without one in this one's place.
_is_compiling = torch.compiler.is_dynamo_compiling
_original_call: Any = None
_left_behind = False
_call: Any = None


def _native_call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    # torch.compile traces what it compiles through this very function, and must see the original.
    if _is_compiling():
        return _original_call(module, *args, **kwargs)
    return _call(_original_call, module, args, kwargs)


def _patch_engine(calls: Any) -> Any:
    """Put a stand-in in the place of autograd's engine; return what undoes it."""
    holder: Any = Variable
    engine = Engine(holder._execution_engine, calls)
    holder._execution_engine = engine

    def undo() -> None:
        original = engine.retire()
        if holder._execution_engine is engine:
            holder._execution_engine = original

    return undo
