"""Load the shared library with annot's operation and graph optimizer into TensorFlow, once per process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import load_library

from annot import native
from annot.tf import dynamic_sizes
from annot.tf.graph_optimizer import Optimizer

__all__ = ["available", "close_all", "load", "switch", "tensorflow_library"]

_SizeFunction: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int)


@functools.cache
def load() -> Optimizer | str:
    """Register the operation and the graph optimizer with TensorFlow; return the optimizer, or why it failed."""
    try:
        tensorflow = tensorflow_library()
        if tensorflow is None:
            return "TensorFlow graphs cannot have ranges: the library with TensorFlow's C API was not found"
        path = native.tf_library()
        if native.emitter() is None or path is None:
            return "TensorFlow graphs cannot have ranges: annot's C extensions are disabled or not built"
        other = _other_plugin(path)
        if other is not None:
            return (
                "TensorFlow graphs cannot have ranges: TensorFlow supports one graph optimizer plug-in, and it has "
                f"loaded {other}"
            )
        return _register(path, tensorflow)
    except (OSError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        return f"TensorFlow graphs cannot have ranges: annot's operation cannot be registered: {error}"


def available() -> str | None:
    """Return why graphs cannot have ranges, as one sentence; None: they can."""
    if tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer"):
        return "TensorFlow graphs cannot have ranges: its graph optimizers are off (disable_meta_optimizer)"
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def switch(user: object, on: bool) -> None:
    """Switch ranges on or off for a user. Graphs that TensorFlow optimizes have ranges while a user has them on."""
    loaded = load()
    if not isinstance(loaded, str):
        loaded.switch(user, on)


def close_all() -> int:
    """Close all ranges that operations have opened; return their number."""
    return int(loaded.close_all()) if load.cache_info().currsize and not isinstance(loaded := load(), str) else 0


def _other_plugin(own: Path) -> str | None:
    """Return the path of another loaded graph optimizer plug-in; TensorFlow aborts on a second one."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in maps if ".so" in line}
    for path in sorted(mapped):
        with contextlib.suppress(OSError):
            if path != str(own) and hasattr(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW), "TF_InitGraph"):
                return path
    return None


def tensorflow_library() -> ctypes.CDLL | None:
    """Return the library, loaded by `import tensorflow`, that exports the C API for kernels."""
    folder = Path(tf.sysconfig.get_lib())
    # The library with the C API depends on the release.
    for name in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(folder / name), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if hasattr(library, "TF_NewKernelBuilder"):
                return library
    return None


# ---------------------------------------------------------------- the C library


def _register(path: Path, tensorflow: ctypes.CDLL) -> Optimizer:
    library = ctypes.CDLL(str(path))
    library.annot_tf_register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SizeFunction]
    library.annot_tf_register.restype = ctypes.c_char_p
    start, end = native.emitter().range_functions()
    refused = library.annot_tf_register(tensorflow._handle, start, end, _size)
    if refused:
        raise RuntimeError(f"TensorFlow lacks or rejects {refused.decode()}")
    load_library.load_pluggable_device_library(str(path))
    optimizer = Optimizer(library)
    library.annot_tf_rewrite.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    thread_state = ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.c_void_p)
    library.annot_tf_rewrite(ctypes.cast(optimizer.function, ctypes.c_void_p), thread_state)
    atexit.register(library.annot_tf_rewrite, None, None)  # no callback after Python has shut down
    return optimizer


def _sized(address: int, numbers: Any, count: int) -> int:
    event = ctypes.cast(address, ctypes.py_object).value
    return id(dynamic_sizes.sized(event, dynamic_sizes.shapes_among(numbers[:count])))


_size: Final = _SizeFunction(_sized)
"""The callback of the C library. It has to outlive every graph."""
