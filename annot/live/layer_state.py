"""Keep the state of a program while one of its layers is called between two steps, and put it back.

The kept state is what a call of a module may change: the random number generators; parameters, buffers and gradients;
the attributes of the module and of its submodules, with the lists, dicts, sets, tensors and generators in them. Hooks of
the program are taken out of the modules, since they may write anywhere. State that a forward changes elsewhere, such as
a global variable, is not kept.
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final

import torch

from annot.emit.patches import undo_all

_DEPTH: Final = 4
"""Levels of containers and objects below the attributes of a module that are kept."""
_HOOKS: Final = tuple(
    name for name in vars(torch.nn.Module()) if name.endswith(("_hooks", "_pre_hooks")) and "state_dict" not in name
)
_GLOBAL_HOOKS: Final = tuple(
    value for name, value in vars(torch.nn.modules.module).items() if "_hooks" in name and isinstance(value, dict)
)
_SHARED: Final = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


@contextlib.contextmanager
def kept(module: torch.nn.Module) -> Iterator[list[str]]:
    """Put back the state of the program after the block, and yield what the layer does without in it, as sentences.

    Example:
        >>> norm = torch.nn.BatchNorm1d(2)
        >>> with kept(norm):
        ...     output = norm(torch.ones(4, 2))
        >>> int(norm.num_batches_tracked)
        0
    """
    state = _State()
    try:
        state.keep(module)
        with random_state():
            yield _without_hooks(module)
    finally:
        state.put_back()


@contextlib.contextmanager
def random_state() -> Iterator[None]:
    """Put back the default random number generators of Python, NumPy, and PyTorch on all devices after the block."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


class _State:
    """State of modules, with the functions that put it back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._tensors: dict[int, torch.Tensor] = {}
        self._seen: set[int] = set()

    def keep(self, module: torch.nn.Module) -> None:
        """Keep the state of a module and of all its submodules."""
        for hooks in _GLOBAL_HOOKS:
            self._keep(hooks, 1)
        for submodule in module.modules():
            self._keep(vars(submodule), _DEPTH)
        for tensor in self._tensors.values():
            self._keep_values(tensor)

    def put_back(self) -> None:
        """Put back all that was kept. After an interrupt, the next call continues with the rest."""
        undo_all(self._undo)

    def _keep(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self._keep_tensor(value, depth)
        elif depth and id(value) not in self._seen and not isinstance(value, (*_SHARED, torch.nn.Module)):
            self._seen.add(id(value))
            undo = _undo_of(value)
            if undo is not None:
                self._undo.append(undo)
            for item in _inside(value):
                self._keep(item, depth - 1)

    def _keep_tensor(self, tensor: torch.Tensor, depth: int) -> None:
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = tensor
        if tensor.is_leaf:
            gradient, storage = tensor.grad, tensor.data
            if gradient is not None:
                self._keep_tensor(gradient, depth)
            self._undo.append(lambda: _put_leaf(tensor, storage, gradient))
        hooks = tensor._backward_hooks
        if hooks:
            self._keep(hooks, depth)
            hooks.clear()

    def _keep_values(self, tensor: torch.Tensor) -> None:
        """Keep the values of a tensor, and its version, which autograd compares before a backward."""
        if tensor.is_meta:
            return
        values = tensor.detach().clone()
        versioned = [] if tensor.is_inference() else [tensor]

        def put() -> None:
            with torch.autograd._unsafe_preserve_version_counter(tuple(versioned)):  # type: ignore[no-untyped-call]
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.detach().copy_(values)

        self._undo.append(put)
