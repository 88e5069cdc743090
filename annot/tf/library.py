"""The shared library of annot's operation and graph optimizer, loaded into TensorFlow once."""

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
from annot.tf import sizes
from annot.tf.plugin import Optimizer

__all__ = ["available", "close_all", "load", "switch", "tensorflow_library"]

_SizeFunction: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int)


@functools.cache
def load() -> Optimizer | str:
    """Register the operation and the graph optimizer with TensorFlow; return them, or one sentence why not."""
    try:
        tensorflow = tensorflow_library()
        if tensorflow is None:
            return "TensorFlow's C API was not found, so graphs cannot have ranges"
        path = native.tf_library()
        if native.fast() is None or path is None:
            return "annot's C parts are switched off or missing, so graphs of TensorFlow cannot have ranges"
        other = _other_plugin(path)
        if other is not None:
            return f"TensorFlow has the graph optimizer of {other}, and takes only one, so graphs cannot have ranges"
        return _register(path, tensorflow)
    except (OSError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        return f"annot's operation cannot be registered with this TensorFlow: {error}"


def available() -> str | None:
    """Return None if graphs can have ranges here, else one sentence why not."""
    if tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer"):
        return "TensorFlow's graph optimizers are off (disable_meta_optimizer), so graphs cannot have ranges"
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def switch(user: object, on: bool) -> None:
    """Have graphs that TensorFlow optimizes from now on get ranges, as long as one user has it on."""
    loaded = load()
    if not isinstance(loaded, str):
        loaded.switch(user, on)


def close_all() -> int:
    """Close all ranges that operations have open; return how many."""
    return int(loaded.close_all()) if load.cache_info().currsize and not isinstance(loaded := load(), str) else 0


def _other_plugin(own: Path) -> str | None:
    """Return the file of another library that is loaded as a graph optimizer; TensorFlow aborts on the second."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in maps if ".so" in line}
    for path in sorted(mapped):
        with contextlib.suppress(OSError):
            if path != str(own) and hasattr(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW), "TF_InitGraph"):
                return path
    return None


def tensorflow_library() -> ctypes.CDLL | None:
    """Return TensorFlow's library that holds the C API for kernels, which `import tensorflow` has loaded."""
    folder = Path(tf.sysconfig.get_lib())
    # Which of them holds the C API has changed over the releases.
    for name in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(folder / name), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if hasattr(library, "TF_NewKernelBuilder"):
                return library
    return None


# ---------------------------------------------------------------- the library in C


def _register(path: Path, tensorflow: ctypes.CDLL) -> Optimizer:
    library = ctypes.CDLL(str(path))
    library.annot_tf_register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SizeFunction]
    library.annot_tf_register.restype = ctypes.c_char_p
    start, end = native.fast().range_functions()
    refused = library.annot_tf_register(tensorflow._handle, start, end, _size)
    if refused:
        raise RuntimeError(f"it refused {refused.decode()}")
    load_library.load_pluggable_device_library(str(path))
    optimizer = Optimizer(library)
    library.annot_tf_rewrite.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    thread_state = ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.c_void_p)
    library.annot_tf_rewrite(ctypes.cast(optimizer.function, ctypes.c_void_p), thread_state)
    atexit.register(library.annot_tf_rewrite, None, None)  # no call may reach Python when it is gone
    return optimizer


def _sized(address: int, numbers: Any, count: int) -> int:
    event = ctypes.cast(address, ctypes.py_object).value
    return id(sizes.sized(event, sizes.shapes_among(numbers[:count])))


_size: Final = _SizeFunction(_sized)
"""What the C part calls; it has to outlive every graph."""
