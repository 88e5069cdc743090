"""The graph optimizer plug-in that adds ranges to each graph after TensorFlow's own passes.

Its shared library, annot/native/tf_ops, is loaded once per process. TensorFlow's plug-in interface
(tensorflow/c/experimental/grappler/grappler.h) calls it at the end of each optimization round, and each graph has two
rounds. The plug-in adds ranges after the second round. Unknown operations added after the first would block
TensorFlow's own optimizations in the second, and it would remove operations that close ranges.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import load_library

from annot import native
from annot.emit import client, guard
from annot.tf import dynamic_sizes, graph_config, operation_owners
from annot.tf.graph_rewrite import rewrite
from annot.tf.owners import Owner, interrupts, thread
from annot.util.locks import fork_safe

_SizeFunction: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int)


@functools.cache
def load() -> Optimizer | str:
    """Register the operation and the graph optimizer with TensorFlow; return the optimizer, or why it failed."""
    try:
        path = native.tf_library()
        if native.emitter() is None or path is None:
            raise RuntimeError("annot's C extensions are disabled or not built")
        other = _other_plugin(path)
        if other is not None:
            raise RuntimeError(f"TensorFlow supports one graph optimizer plug-in, and it has loaded {other}")
        return _register(path, _tensorflow_library())
    except (OSError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        return f"TensorFlow graphs cannot have ranges: {error}"


def available() -> str | None:
    """Return why graphs cannot have ranges, as one sentence; None: they can."""
    loaded = load()
    return graph_config.without_optimizers(graph_config.current()) or (loaded if isinstance(loaded, str) else None)


def switch(user: object, on: bool) -> None:
    """Switch ranges on or off for a user. Graphs that TensorFlow optimizes have ranges while a user has them on."""
    loaded = load()
    if isinstance(loaded, str):
        return
    if on and available() is None:
        graph_config.warn(graph_config.current())
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


def _tensorflow_library() -> ctypes.CDLL:
    """Return the library, loaded by `import tensorflow`, that exports the C API for kernels."""
    folder = Path(tf.sysconfig.get_lib())
    # The library with the C API depends on the release.
    for name in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(folder / name), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if hasattr(library, "TF_NewKernelBuilder"):
                return library
    raise RuntimeError("the library with TensorFlow's C API was not found")


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
    atexit.register(guard.attempt, optimizer.warn_of_missed, otherwise=None)
    atexit.register(library.annot_tf_rewrite, None, None)  # no callback after Python has shut down
    return optimizer


def _sized(address: int, numbers: Any, count: int) -> int:
    event = ctypes.cast(address, ctypes.py_object).value
    return id(dynamic_sizes.sized(event, dynamic_sizes.shapes_among(numbers[:count])))


_size: Final = _SizeFunction(_sized)
"""The callback of the C library. It has to outlive every graph."""


# ---------------------------------------------------------------- the graph optimizer

_RewriteFunction: Final = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_VisitFunction: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
_IS_CUT: Final = "the session is fed a tensor that is not a placeholder"
_MISSED: Final = (
    "functions with layers that ran without ranges: at least {}. TensorFlow optimizes them on threads of its own, "
    "such as the body of `for batch in dataset` in a tf.function. Write `for batch in iter(dataset)` there"
)


class Optimizer:
    """Adds ranges, by the library of annot/native/tf_ops, to graphs that TensorFlow optimizes while there is a user."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._lock = fork_safe()
        self._rounds: dict[int, int] = {}  # optimizer -> graph that waits for its second round
        self._memory = ctypes.CDLL(None)
        self._memory.malloc.argtypes, self._memory.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        library.annot_tf_range.argtypes, library.annot_tf_range.restype = [ctypes.c_void_p], ctypes.c_int64
        self.function = _RewriteFunction(functools.partial(native.emitter().caught, interrupts, self._optimize))
        self.close_all = library.annot_tf_close_all
        self.users: set[object] = set()
        self._missed: set[frozenset[int]] = set()  # for each, the ids of the traced graphs that call its layers
        self._events: set[Any] = set()  # keeps the events alive for the library

    def switch(self, user: object, on: bool) -> None:
        """Add or remove a user. Graphs that are optimized while there is a user have ranges. Calls may repeat."""
        with self._lock:
            (self.users.add if on else self.users.discard)(user)
            self._library.annot_tf_switch(bool(self.users))
            if not self.users:  # the library now reports neither graphs nor the end of their optimizers
                self._rounds.clear()
        if not on:
            guard.attempt(self.warn_of_missed, otherwise=None)

    def warn_of_missed(self) -> None:
        """Warn of functions with layers that TensorFlow optimized on threads of its own, once per number.

        Such a thread must not wait for Python, so the C library keeps a copy of the graph. Equal functions count once.
        """
        copies: list[bytes] = []
        self._library.annot_tf_visit_missed(_VisitFunction(lambda *copy: copies.append(ctypes.string_at(*copy))))
        functions = set(filter(None, map(_graphs_with_layers, copies)))
        if not functions <= self._missed:
            self._missed |= functions
            client.warn_once(_MISSED.format(len(self._missed)))

    def _optimize(self, optimizer: int, graph: Any, length: int, item: int, result: Any) -> int:
        with self._lock:
            first = self._rounds.pop(optimizer, None) != item
            if not graph or not self.users:
                return 0
            if first:
                self._rounds[optimizer] = item
        message = ctypes.string_at(graph, length)
        small = graph_pb2.GraphDef.FromString(message) if first else None
        least = graph_config.least_nodes(graph_config.current())
        if small is not None and len(small.node) >= least:
            return 0
        # If annot fails, the user's program continues without ranges.
        made = guard.attempt(self._rewritten, message, otherwise=None, note="a TensorFlow graph has no ranges")
        if made is None:
            return 0
        if small is not None:  # TensorFlow skips the second round of a small graph. There it removes these nodes
            for i in range(least):
                small.node.add(name=f"annot/padding_{i}", op="NoOp", device=small.node[0].device)
            made = bytes(small.SerializeToString())
        result[0] = self._memory.malloc(len(made))
        if not result[0]:
            return 0
        ctypes.memmove(result[0], made, len(made))
        return len(made)

    def _rewritten(self, message: bytes) -> bytes | None:
        if thread.is_cut:
            raise ValueError(_IS_CUT)
        # Other graphs may have the same names, also those of graphs that are not recorded.
        graphs = operation_owners.traced_in(thread.running)
        made = rewrite(message, graphs, self._number_of, _output_types)
        if made is not None and graph_config.has_clusters(message):
            client.warn_once(graph_config.CLUSTERS)
            return None
        return made

    def _number_of(self, owner: Owner) -> int:
        self._events.add(owner.event)
        return int(self._library.annot_tf_range(id(owner.event)))


def _output_types(name: str) -> list[int] | None:
    """Return the DataType numbers of the outputs of an operation in the session's graph; None if it is unknown."""
    if not getattr(thread.running, "building_function", True):
        with contextlib.suppress(KeyError):
            outputs = thread.running.get_operation_by_name(name).outputs
            return [output.dtype.base_dtype.as_datatype_enum for output in outputs]
    return None


def _graphs_with_layers(message: bytes) -> frozenset[int]:
    """Return the ids of the traced graphs whose ranges an optimized graph would have."""
    ids: set[int] = set()

    def number_of(owner: Owner) -> int:
        ids.add(owner.graph_id)
        return 0

    rewrite(message, [graph for _, graph in operation_owners.graphs.items()], number_of, lambda _: None)
    return frozenset(ids - {0})  # 0: the joint owner of a fused operation
