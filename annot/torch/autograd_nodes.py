"""Reader for the thread that created a node of an autograd graph.

Sequence numbers count per thread, so a number alone does not identify a node. PyTorch stores the thread in each node
(``torch::autograd::Node::thread_id_``) but does not expose it to Python. `find_layout` locates it: it creates nodes
with known numbers, depths and thread, and searches their memory for these values. The search reads through
``/proc/self/mem``, where a wrong address raises an error instead of a crash. Nodes of the user are only read after the
search has succeeded.
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

from annot.torch.internals import internal

_WORD: Final = 8
_HEAD: Final = object.__basicsize__
_NODE_WORDS: Final = 16
_NUMBER, _DEPTH, _THREAD = 0, 1, 3  # sequence_nr_, topological_nr_, has_parent_, thread_id_ are consecutive members
_Function: Final[Any] = internal("torch._C._FunctionBase")


class Layout(NamedTuple):
    """Byte offsets from the Python object of a node to the id of the thread that created it."""

    cpp: int  # of the pointer to the C++ node, in the Python object of a node implemented in C++
    python: int  # of the same pointer in the Python object of a `torch.autograd.Function` node
    number: int  # of the sequence number in the C++ node
    thread: int  # of the thread id in the C++ node


def _find_current_thread() -> Callable[[], int]:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.PyDLL("libtorch_cpu.so", os.RTLD_NOLOAD)
        function = library._ZN2at14RecordFunction15currentThreadIdEv
        function.restype = ctypes.c_uint64
        return function
    return int


current_thread: Final = _find_current_thread()
"""Return PyTorch's unique id of this thread, or 0 if this build does not export it."""


def is_node(node: object) -> bool:
    """Return whether an object is a node of autograd, rather than an imitation of one."""
    return isinstance(getattr(type(node), "_sequence_nr", None), MethodDescriptorType)


@functools.cache
def find_layout() -> Layout | None:
    """Return the layout of nodes, or None if the search fails, as on platforms without ``/proc``."""
    layouts: list[Layout] = []

    def search() -> None:
        with contextlib.suppress(Exception), torch.inference_mode(False), torch.enable_grad():
            layouts.append(_search())

    # On a new thread: each node uses up a sequence number of its thread.
    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    return layouts[0] if layouts else None


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def _search() -> Layout:
    """Return the only layout that fits all nodes of a chain. Raise ValueError if there is none."""
    x = torch.ones((), device="cpu", requires_grad=True)
    nodes = []
    for step in (torch.neg, torch.neg, _Identity.apply, torch.neg, _Identity.apply, torch.neg):
        x = step(x)
        nodes.append(x.grad_fn)
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        pointers = [_pointers(memory, node, depth) for depth, node in enumerate(nodes, 1)]
    finally:
        os.close(memory)
    in_cpp = set.intersection(*(pairs for node, pairs in zip(nodes, pointers, strict=True) if not _is_python(node)))
    in_python = set.intersection(*(pairs for node, pairs in zip(nodes, pointers, strict=True) if _is_python(node)))
    (cpp, word), *_ = in_cpp
    (python,) = {pointer for pointer, start in in_python if start == word}
    return Layout(cpp, python, (word + _NUMBER) * _WORD, (word + _THREAD) * _WORD)


def _is_python(node: Any) -> bool:
    return isinstance(node, _Function)


def _pointers(memory: int, node: Any, depth: int) -> set[tuple[int, int]]:
    """Return all pairs (offset in the Python object, word in the C++ node) that fit the known members of a node."""
    members = {_NUMBER: node._sequence_nr(), _DEPTH: depth, _THREAD: current_thread()}
    end = _Function.__basicsize__ if _is_python(node) else _HEAD + _WORD
    pairs = set()
    for offset in range(_HEAD, end, _WORD):
        (pointer,) = _read(memory, id(node) + offset, 1)
        words = _read(memory, pointer, _NODE_WORDS)
        for word in range(_NODE_WORDS - _THREAD):
            if all(words[word + member] == value for member, value in members.items()):
                pairs.add((offset, word))
    return pairs


def _read(memory: int, address: int, words: int) -> tuple[int, ...]:
    try:
        return struct.unpack(f"={words}Q", os.pread(memory, words * _WORD, address))
    except (OSError, OverflowError, struct.error):  # the address is not mapped
        return (0,) * words


def make_reader() -> Callable[[Any], int]:
    """Return a function from a node to the id of the thread that created it. The id is 0 if it is unknown."""
    layout = find_layout()
    if layout is None:
        return lambda _: 0
    # A view of the whole address space: reading an item takes a third of the time of a ctypes pointer.
    memory = memoryview((ctypes.c_ubyte * (1 << 52)).from_address(0)).cast("B").cast("Q")
    cpp, python, _, thread = (offset // _WORD for offset in layout)

    def made_on(node: Any) -> int:
        pointer = python if isinstance(node, _Function) else cpp
        return memory[(memory[(id(node) >> 3) + pointer] >> 3) + thread]

    return made_on
