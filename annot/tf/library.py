"""The shared library of annot's operation and graph optimizer: found or compiled, and loaded into TensorFlow once."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import load_library

from annot import emit, native
from annot.tf import sizes
from annot.tf.plugin import Optimizer

__all__ = ["Loaded", "available", "close_all", "compiled", "load", "tensorflow_library", "use"]

_SOURCE: Final = Path(native.__file__).parent / "tf_ops.c"
_COMPILERS: Final = ("cc", "gcc", "clang")
_FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_COMPILE_SECONDS: Final = 60
_lock: Final = threading.Lock()

_SizeFunction: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int)


class Loaded:
    """The library, loaded into TensorFlow.

    Args:
        how: ``prebuilt`` or ``compiled``.
        library: the library.
        tensorflow: that of TensorFlow's C API.
    """

    def __init__(self, how: str, library: ctypes.CDLL, tensorflow: ctypes.CDLL) -> None:
        self.how = how
        self.close_all = library.annot_tf_close_all
        self.switch = library.annot_tf_switch
        self.optimizer = Optimizer(library, tensorflow)


@functools.cache
def load() -> Loaded | str:
    """Register the operation and the graph optimizer with TensorFlow; return them, or one sentence why not."""
    try:
        tensorflow = tensorflow_library()
        if tensorflow is None:
            return "TensorFlow's C API was not found, so graphs cannot have ranges"
        if native.fast() is None:
            return "annot's parts in C are switched off or missing, so graphs of TensorFlow cannot have ranges"
        how, path = _library()
        if path is None:
            return "annot's library for TensorFlow is missing and there is no C compiler, so graphs cannot have ranges"
        other = _other_plugin(path)
        if other is not None:
            return f"TensorFlow has the graph optimizer of {other}, and takes only one, so graphs cannot have ranges"
        return _register(how, path, tensorflow)
    except (OSError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        return f"annot's operation cannot be registered with this TensorFlow: {error}"


def available() -> str | None:
    """Return None if graphs can have ranges here, else one sentence why not."""
    if tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer"):
        return "TensorFlow's graph optimizers are off (disable_meta_optimizer), so graphs cannot have ranges"
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def use() -> Callable[[], None]:
    """Have graphs that TensorFlow optimizes from now on get ranges; return what ends it."""
    loaded = load()
    if isinstance(loaded, str):
        return lambda: None
    optimizer = loaded.optimizer
    with _lock:
        optimizer.users += 1
        loaded.switch(1)

    def end() -> None:
        with _lock:
            optimizer.users -= 1
            if not optimizer.users:
                loaded.switch(0)

    return end


def close_all() -> int:
    """Close all ranges that operations have open; return how many."""
    return int(loaded.close_all()) if load.cache_info().currsize and isinstance(loaded := load(), Loaded) else 0


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
            if hasattr(library, "TF_NewKernelBuilder") and hasattr(library, "TF_GetFetchNodesList"):
                return library
    return None


# ---------------------------------------------------------------- the library in C


def _library() -> tuple[str, Path | None]:
    path = native.tf_library()
    if path is not None:
        return "prebuilt", path
    try:
        return "compiled", compiled(_cache_folder())
    except OSError:
        return "compiled", None


def _register(how: str, path: Path, tensorflow: ctypes.CDLL) -> Loaded:
    library = ctypes.CDLL(str(path))
    library.annot_tf_register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SizeFunction]
    library.annot_tf_register.restype = ctypes.c_char_p
    start, end = native.fast().range_functions()
    refused = library.annot_tf_register(tensorflow._handle, start, end, _size)
    if refused:
        raise RuntimeError(f"it refused {refused.decode()}")
    load_library.load_pluggable_device_library(str(path))
    loaded = Loaded(how, library, tensorflow)
    library.annot_tf_rewrite.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    thread_state = ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.c_void_p)
    library.annot_tf_rewrite(ctypes.cast(loaded.optimizer.function, ctypes.c_void_p), thread_state)
    atexit.register(library.annot_tf_rewrite, None, None)  # no call may reach Python when it is gone
    return loaded


def compiled(folder: Path) -> Path | None:
    """Return the library, compiled from the source that comes with annot; None if there is no compiler.

    The file's name holds a hash of the source. Of several processes that need it at the same time one compiles, the
    others wait for it, and none ever sees a file that is not complete.

    Args:
        folder: where compiled libraries are kept; it is made if need be.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    digest = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    path = folder / f"tf_ops-{os.uname().machine}-{digest}.so"
    if path.exists():
        return path
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "tf_ops.lock"):
        if not path.exists():
            _compile(compiler, path)
    return path if path.exists() else None


def _compile(compiler: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(made), "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            emit.warn_once(f"annot's operations for TensorFlow could not be compiled: {error}")
            return
        if done.returncode == 0:
            made.replace(path)
        else:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            emit.warn_once(f"annot's operations for TensorFlow could not be compiled: {compiler} says: {said}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file, or dying, unlocks it
        yield


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "annot"


def _sized(address: int, numbers: Any, count: int) -> int:
    event = ctypes.cast(address, ctypes.py_object).value
    return id(sizes.sized(event, sizes.shapes_among(numbers[:count])))


_size: Final = _SizeFunction(_sized)
"""What the C part calls; it has to outlive every graph."""
