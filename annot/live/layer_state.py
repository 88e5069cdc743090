"""Keep the state of a program while one of its layers is called between two steps, and put it back.

The kept state is what a call of a module may change: the random number generators; parameters, buffers and gradients;
the attributes of the module and of its submodules, with the lists, dicts, sets, tensors and generators in them. Hooks
of the program are taken out of the modules, since they may write anywhere. State that a forward changes elsewhere, such
as a global variable, is not kept.
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import torch

from annot.emit.patches import undo_all
from annot.live.layer_tensors import without_repeats

_DEPTH: Final = 4
"""Levels of containers and objects, that of the attributes of a module included, that are kept."""
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CODE: Final = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_SHARED: Final = {*sys.stdlib_module_names, "torch"} - {"__main__"}
"""Packages whose objects are not searched, such as loggers and threads, which other threads change."""


@contextlib.contextmanager
def kept(module: torch.nn.Module) -> Iterator[int]:
    """Put back the state of the program after the block, and yield the number of hooks that do not run in it.

    Example:
        >>> norm = torch.nn.BatchNorm1d(2)
        >>> with kept(norm):
        ...     output = norm(torch.ones(4, 2))
        >>> int(norm.num_batches_tracked)
        0
    """
    state = _State()
    try:
        hooks = state.keep(module)
        with random_state():
            yield hooks
    finally:
        state.put_back()


@contextlib.contextmanager
def random_state() -> Iterator[None]:
    """Put back the default random number generators of Python, NumPy, and PyTorch on all devices after the block."""
    numpy = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), numpy.random.get_state() if numpy is not None else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


class _State:
    """State of a module, as functions that put it back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._seen: set[int] = set()
        self._alive: list[object] = []  # so that no id is used twice

    def keep(self, module: torch.nn.Module) -> int:
        """Keep the state of a module and of all its submodules, take out their hooks, and return how many."""
        submodules, everywhere = list(module.modules()), _global_hooks()
        for hooks in everywhere:
            self._keep(hooks, 1)
        for submodule in submodules:
            self._keep(vars(submodule), _DEPTH)
        own = [vars(submodule).get(name) for submodule in submodules for name in _HOOKS]
        tensors = [tensor._backward_hooks for tensor in self._alive if isinstance(tensor, torch.Tensor)]
        return sum(map(_take_out, filter(None, [*everywhere, *own, *tensors])))

    def put_back(self) -> None:
        """Put back all that was kept. After an interrupt, the next call continues with the rest."""
        undo_all(self._undo)

    def _keep(self, value: Any, depth: int) -> None:
        kind = type(value)
        if id(value) in self._seen or issubclass(kind, (*_CODE, torch.nn.Module)):
            return
        if issubclass(kind, torch.Tensor):
            self._see(value)
            self._keep_tensor(value)
        elif depth:
            self._see(value)
            undo = _undo_of(value, kind)
            if undo is not None:
                self._undo.append(undo)
            for item in _inside(value, kind):
                self._keep(item, depth - 1)

    def _see(self, value: object) -> None:
        self._seen.add(id(value))
        self._alive.append(value)

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        """Keep the values of a tensor, its memory, its gradient, and the version that autograd compares."""
        if tensor.is_meta:
            return
        same_memory, is_inference = tensor.detach(), tensor.is_inference()
        values = without_repeats(same_memory).clone()
        version = torch.autograd.grad_mode._unsafe_preserve_version_counter(() if is_inference else (tensor,))

        def put_values() -> None:
            with version, torch.inference_mode(is_inference), torch.no_grad():
                without_repeats(same_memory).copy_(values)

        self._undo.append(put_values)
        if not tensor.is_leaf:
            return
        memory, gradient = tensor.data, tensor.grad

        def put_memory() -> None:
            if tensor.data_ptr() != memory.data_ptr() or tensor.stride() != memory.stride():
                tensor.data = memory
            if tensor.grad is not gradient:
                tensor.grad = gradient

        self._undo.append(put_memory)
        if tensor._backward_hooks:
            self._keep(tensor._backward_hooks, 1)
        self._keep(gradient, 1)


def _undo_of(value: Any, kind: type) -> Callable[[], object] | None:
    """Return a function that puts back the items of a container or the state of a generator; None for other objects."""
    if issubclass(kind, (dict, list, deque, set)):
        return _undo_of_items(value)
    if issubclass(kind, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    if issubclass(kind, torch.Generator):
        of_generator = value.get_state()
        return lambda: value.set_state(of_generator)
    return _undo_of_numpy(value, kind)


def _undo_of_numpy(value: Any, kind: type) -> Callable[[], object] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if issubclass(kind, numpy.ndarray) and value.flags.writeable:
        items = value.copy()
        return lambda: numpy.copyto(value, items)
    if issubclass(kind, numpy.random.Generator):
        state = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", state)
    if issubclass(kind, numpy.random.RandomState):
        old = value.get_state()
        return lambda: value.set_state(old)
    return None


def _undo_of_items(value: Any) -> Callable[[], None]:
    """Return a function that puts back the items unless they are the same objects: other threads may read them."""
    items: Any = dict(value) if isinstance(value, dict) else list(value)
    add = value.extend if isinstance(value, (list, deque)) else value.update

    def undo() -> None:
        if list(map(id, _flat(value))) != list(map(id, _flat(items))):
            value.clear()
            add(items)

    return undo


def _flat(items: Any) -> Iterable[Any]:
    return (*items.keys(), *items.values()) if isinstance(items, dict) else items


def _inside(value: Any, kind: type) -> Sequence[Any]:
    """Return the objects whose state is that of an object."""
    if issubclass(kind, dict):
        return list(value.values())
    if issubclass(kind, (list, tuple, deque, set)):
        return list(value)
    if kind.__module__.partition(".")[0] in _SHARED:
        return ()
    try:
        return (object.__getattribute__(value, "__dict__"),)
    except AttributeError:
        return ()


def _global_hooks() -> list[dict[int, Any]]:
    """Return the hooks that PyTorch calls for each module."""
    names = (f"_global{name}" for name in _HOOKS)
    return [hooks for name in names if (hooks := getattr(torch.nn.modules.module, name, None)) is not None]


def _take_out(hooks: dict[int, Any]) -> int:
    """Remove hooks of the program, and return how many. PyTorch's own compute weights, as in `weight_norm`."""
    of_program = [number for number, hook in hooks.items() if not _is_of_torch(hook)]
    for number in of_program:
        del hooks[number]
    return len(of_program)


def _is_of_torch(hook: Any) -> bool:
    function = getattr(hook, "func", hook)  # of a functools.partial
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"
