"""Switch for TensorFlow's own NVTX ranges: one per operation, in the domain ``TSL``.

TensorFlow enables them for its own tracer only and offers no public switch. CUDA builds export the private function
``tsl::profiler::AnnotationStack::Enable(bool)``: 2.21 does, 2.16 and older do not. This module calls it by its mangled
name. If the library does not export it, `reason` returns an explanation and nothing changes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from annot.util.locks import fork_safe

__all__ = ["operation_ranges", "reason"]

_SYMBOL: Final = "_ZN3tsl8profiler15AnnotationStack6EnableEb"

_lock: Final = fork_safe()
_blocks = 0


def reason() -> str | None:
    """Return why TensorFlow's operations cannot have NVTX ranges, as one sentence; None: they can.

    Example:
        >>> "TensorFlow" in (reason() or "TensorFlow")
        True
    """
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        return f"TensorFlow {tf.__version__} was built without CUDA, so its operations do not emit NVTX ranges"
    if _switch() is None:
        return (
            f"TensorFlow {tf.__version__} does not export the switch for the NVTX ranges of its operations ({_SYMBOL})"
        )
    return None


@contextmanager
def operation_ranges() -> Iterator[bool]:
    """Switch on the NVTX ranges of TensorFlow's operations inside the block; blocks may nest and overlap.

    Only operations in graphs have these ranges, not eager operations.

    Returns:
        A context manager that yields whether the ranges are on. If not, `reason` returns why.

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
    """Return the function from TensorFlow's libraries; None if they do not export it."""
    for path in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_*.so*")):
        try:
            switch = getattr(ctypes.CDLL(str(path)), _SYMBOL)
        except (OSError, AttributeError):
            continue
        switch.argtypes, switch.restype = [ctypes.c_bool], None
        return switch
    return None
