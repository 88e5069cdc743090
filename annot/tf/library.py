"""Finds or makes the shared library with annot's operations, and registers them with TensorFlow, once a process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from annot import emit, native
from annot.tf import sizes

__all__ = ["Loaded", "close_all", "compiled", "know", "load", "tensorflow_library"]

_SOURCE: Final = Path(native.__file__).parent / "tf_ops.c"
_COMPILERS: Final = ("cc", "gcc", "clang")
_FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_COMPILE_SECONDS: Final = 60

StartFunction: Final = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
EndFunction: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
SizeFunction: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int)


class Loaded:
    """The operations, registered.

    Args:
        road: ``prebuilt``, ``compiled`` or ``ctypes``.
        know: takes the key of an event, as it stands in an operation's attribute, and the event.
        close_all: closes all ranges that are open and returns how many.
    """

    def __init__(self, road: str, know: Any, close_all: Any) -> None:
        self.road = road
        self.know = know
        self.close_all = close_all


@functools.cache
def load() -> Loaded | str:
    """Register the operations with TensorFlow; return what they are reached through, or one sentence why not."""
    try:
        tensorflow = tensorflow_library()
        if tensorflow is None:
            return "TensorFlow's C API was not found, so annot's operations cannot be registered"
        if native.fast() is not None:
            road, path = _library()
            if path is not None:
                return _register(road, ctypes.CDLL(str(path)), tensorflow)
        return _register_from_python(tensorflow)
    except (OSError, AttributeError, RuntimeError) as error:
        return f"annot's operations cannot be registered with this TensorFlow: {error}"


def know(key: str, event: Any) -> None:
    """Have operations whose attribute is `key` open the range of `event`."""
    loaded = load()
    if isinstance(loaded, Loaded) and _known.get(key) is not event:
        _known[key] = event  # which keeps it alive for the C table
        loaded.know(key, event)


def close_all() -> int:
    """Close all ranges that operations have open; return how many."""
    return int(loaded.close_all()) if load.cache_info().currsize and isinstance(loaded := load(), Loaded) else 0


_known: dict[str, Any] = {}


def tensorflow_library() -> ctypes.CDLL | None:
    """Return TensorFlow's library that holds the C API for kernels, which `import tensorflow` has loaded."""
    import tensorflow as tf

    folder = Path(tf.sysconfig.get_lib())
    # Which of them holds the C API has changed over the releases.
    for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2", "python/_pywrap_tensorflow_internal.so"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(folder / name), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if hasattr(library, "TF_NewKernelBuilder"):
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


def _register(road: str, library: ctypes.CDLL, tensorflow: ctypes.CDLL) -> Loaded:
    library.annot_tf_register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, SizeFunction]
    library.annot_tf_register.restype = ctypes.c_char_p
    start, end = native.fast().range_functions()
    refused = library.annot_tf_register(tensorflow._handle, start, end, _size)
    if refused:
        raise RuntimeError(f"it refused {refused.decode()}")
    library.annot_tf_know.argtypes = [ctypes.c_char_p, ctypes.c_void_p]

    def tell(key: str, event: Any) -> None:
        library.annot_tf_know(key.encode("utf-8", "replace"), id(event))

    return Loaded(road, tell, library.annot_tf_close_all)


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


_size: Final = SizeFunction(_sized)
"""What the C part calls; it has to outlive every graph."""


# ---------------------------------------------------------------- without it


def _register_from_python(tensorflow: ctypes.CDLL) -> Loaded:
    from annot.tf.by_ctypes import Operations

    operations = Operations(tensorflow)
    operations.register()
    return Loaded("ctypes", operations.know, operations.close_all)
