"""TensorFlow's own NVTX ranges, one per operation, in the domain ``TSL``: switched on and off.

TensorFlow keeps them for its own tracer and has no public switch. Builds with CUDA export the function behind it,
``tsl::profiler::AnnotationStack::Enable(bool)`` (there in 2.21, not in 2.16 and before), which is called here by its
name in the library. It is private: where it is not there, `reason` says so and nothing is changed.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from annot.locks import fork_safe

__all__ = ["operation_ranges", "reason"]

_SYMBOL: Final = "_ZN3tsl8profiler15AnnotationStack6EnableEb"

_lock: Final = fork_safe()
_blocks = 0


def reason() -> str | None:
    """Return why TensorFlow's operations cannot have NVTX ranges here, in one sentence; None: they can.

    Example:
        >>> "TensorFlow" in (reason() or "TensorFlow")
        True
    """
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        return f"this TensorFlow {tf.__version__} was built without CUDA, and then its operations make no NVTX ranges"
    if _switch() is None:
        return f"TensorFlow {tf.__version__} does not export the switch of its operations' NVTX ranges ({_SYMBOL})"
    return None


@contextmanager
def operation_ranges() -> Iterator[bool]:
    """Let TensorFlow's operations have NVTX ranges inside the block; blocks may nest and overlap.

    Operations in graphs have them, those that run eagerly have none.

    Returns:
        A context manager that gives whether they have; if not, `reason` says why.

    Example:
        >>> with operation_ranges() as on:
        ...     on == (reason() is None)
        True
    """
    on = reason() is None
    if on:
        _count(1)
    try:
        yield on
    finally:
        if on:
            _count(-1)


def _count(blocks: int) -> None:
    global _blocks
    switch: Any = _switch()
    with _lock:
        before, _blocks = _blocks, _blocks + blocks
        if not before or not _blocks:
            switch(bool(_blocks))


@functools.cache
def _switch() -> Any:
    """The function of the library, None if it has none of this name."""
    for path in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_*.so*")):
        try:
            switch = getattr(ctypes.CDLL(str(path)), _SYMBOL)
        except (OSError, AttributeError):
            continue
        switch.argtypes, switch.restype = [ctypes.c_bool], None
        return switch
    return None
