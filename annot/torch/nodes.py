"""Which thread made a node of an autograd graph.

Sequence numbers count per thread, so a number alone does not identify a node. PyTorch stores the thread in each node
(``torch::autograd::Node::thread_id_``) but does not expose it to Python. `find_layout` locates it: it makes nodes whose
numbers, depths and thread are known, and searches their memory for these values. No node is read before that search
has succeeded, and the search reads through ``/proc/self/mem``, where a wrong address is an error and not a crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import threading
from collections.abc import Callable
from types import MethodDescriptorType
from typing import Any, Final, NamedTuple

import torch

__all__ = ["Layout", "current_thread", "find_layout", "is_node", "make_reader"]

_WORD: Final = 8
_HEAD: Final = object.__basicsize__
_NODE_WORDS: Final = 16
_NUMBER, _DEPTH, _THREAD = 0, 1, 3  # sequence_nr_, topological_nr_, has_parent_, thread_id_ are consecutive members
_Function: Final = torch._C._FunctionBase


class Layout(NamedTuple):
    """Byte offsets, from the Python object of a node to the thread that made it."""

    cpp: int
    """Of the pointer to the node, in the object of a node that is implemented in C++."""
    python: int
    """The same for a node of a `torch.autograd.Function`."""
    number: int
    """Of the sequence number, in the node."""
    thread: int
    """Of the thread id, in the node."""


def _find_current_thread() -> Callable[[], int]:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.PyDLL("libtorch_cpu.so", os.RTLD_NOLOAD)
        function = library._ZN2at14RecordFunction15currentThreadIdEv
        function.restype = ctypes.c_uint64
        return function
    return int


current_thread: Final = _find_current_thread()
"""Return the id that PyTorch gives to this thread and to no other; 0 if this build does not export it."""


def is_node(node: object) -> bool:
    """Return whether an object is a node of autograd, and not one that only looks like it."""
    return isinstance(getattr(type(node), "_sequence_nr", None), MethodDescriptorType)


@functools.cache
def find_layout() -> Layout | None:
    """Return where nodes store their thread; None if the search fails, as on platforms without ``/proc``."""
    found: list[Layout] = []

    def search() -> None:
        with contextlib.suppress(Exception), torch.inference_mode(False), torch.enable_grad():
            found.append(_search())

    # On a thread of its own, because each node takes a sequence number of its thread.
    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    return found[0] if found else None


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def _search() -> Layout:
    """Return the layout that all nodes of a chain agree on; raise ValueError if there is none."""
    x = torch.ones((), device="cpu", requires_grad=True)
    nodes = []
    for step in (torch.neg, torch.neg, _Identity.apply, torch.neg, _Identity.apply, torch.neg):
        x = step(x)
        nodes.append(x.grad_fn)
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        found = [_pointers(memory, node, depth) for depth, node in enumerate(nodes, 1)]
    finally:
        os.close(memory)
    (cpp, word), *_ = set.intersection(*(one for node, one in zip(nodes, found, strict=True) if not _is_python(node)))
    both = set.intersection(*(one for node, one in zip(nodes, found, strict=True) if _is_python(node)))
    (python,) = {pointer for pointer, place in both if place == word}
    return Layout(cpp, python, (word + _NUMBER) * _WORD, (word + _THREAD) * _WORD)


def _is_python(node: Any) -> bool:
    return isinstance(node, _Function)


def _pointers(memory: int, node: Any, depth: int) -> set[tuple[int, int]]:
    """Return (offset in the Python object, word in the node) where number, depth and thread of the node stand."""
    known = {_NUMBER: node._sequence_nr(), _DEPTH: depth, _THREAD: current_thread()}
    end = _Function.__basicsize__ if _is_python(node) else _HEAD + _WORD
    found = set()
    for offset in range(_HEAD, end, _WORD):
        (pointer,) = _read(memory, id(node) + offset, 1)
        words = _read(memory, pointer, _NODE_WORDS)
        for word in range(_NODE_WORDS - _THREAD):
            if all(words[word + place] == value for place, value in known.items()):
                found.add((offset, word))
    return found


def _read(memory: int, address: int, words: int) -> tuple[int, ...]:
    try:
        return struct.unpack(f"={words}Q", os.pread(memory, words * _WORD, address))
    except (OSError, OverflowError, struct.error):  # no memory at this address
        return (0,) * words


def make_reader() -> Callable[[Any], int]:
    """Return a function from a node to the id of the thread that made it, 0 if that is not known."""
    layout = find_layout()
    if layout is None:
        return lambda _: 0
    # A view of the whole address space: one item costs a third of what ctypes takes for a pointer.
    memory = memoryview((ctypes.c_ubyte * (1 << 52)).from_address(0)).cast("B").cast("Q")
    cpp, python, _, thread = (offset // _WORD for offset in layout)

    def made_on(node: Any) -> int:
        place = python if isinstance(node, _Function) else cpp
        return memory[(memory[(id(node) >> 3) + place] >> 3) + thread]

    return made_on
