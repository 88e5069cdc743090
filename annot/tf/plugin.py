"""The graph optimizer through which TensorFlow hands over each graph after its own passes.

TensorFlow's plug-in interface (tensorflow/c/experimental/grappler/grappler.h) calls it at the end of every round of
optimization, and makes two rounds for a graph. Ranges come in after the second, for a third party's operations in the
first would keep TensorFlow from its own optimizations in the second.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any, Final

from annot import emit
from annot.tf import noting
from annot.tf.owners import Owner
from annot.tf.rewrite import padded, rewrite

__all__ = ["Optimizer", "RewriteFunction"]

RewriteFunction: Final = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_MIN_NODES: Final = 4
"""TensorFlow makes no second round for a smaller graph (grappler/optimizers/meta_optimizer.cc)."""
_NODE_FIELD: Final = 0x0A
"""The tag of `node` in a GraphDef (tensorflow/core/framework/graph.proto)."""


class Optimizer:
    """Rewrites the graphs that TensorFlow optimizes while a block is open.

    Args:
        library: the shared library of annot/native/tf_ops.c.
        tensorflow: that of TensorFlow's C API.
    """

    def __init__(self, library: ctypes.CDLL, tensorflow: ctypes.CDLL) -> None:
        self._library = library
        self._tensorflow = tensorflow
        handle, handles = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        sizes = ctypes.POINTER(ctypes.c_size_t)
        tensorflow.TF_NewStatus.restype, tensorflow.TF_DeleteStatus.argtypes = handle, [handle]
        tensorflow.TF_GetFetchNodesListSize.argtypes = [handle, ctypes.POINTER(ctypes.c_int), sizes, handle]
        tensorflow.TF_GetFetchNodesList.argtypes = [
            handle, handles, sizes, ctypes.c_int, handle, ctypes.c_size_t, handle,
        ]  # fmt: skip
        self._lock = threading.Lock()
        self._rounds: dict[int, int] = {}  # by optimizer: the graph that waits for its second round
        self._memory = ctypes.CDLL(None)
        self._memory.malloc.argtypes, self._memory.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        library.annot_tf_range.argtypes, library.annot_tf_range.restype = [ctypes.c_void_p], ctypes.c_int64
        self.function = RewriteFunction(self._optimize)
        self.users = 0
        self._events: set[Any] = set()  # kept alive for the library

    def _optimize(self, optimizer: int, graph: Any, length: int, item: int, result: Any) -> int:
        try:
            if not graph:
                with self._lock:
                    self._rounds.pop(optimizer, None)
                return 0
            return self._second_round(optimizer, graph, length, item, result)
        except Exception as error:  # the user's program goes on without ranges
            with contextlib.suppress(RuntimeWarning):
                emit.warn_once(f"a graph of TensorFlow has no ranges: {type(error).__name__}: {error}")
            return 0

    def _second_round(self, optimizer: int, graph: Any, length: int, item: int, result: Any) -> int:
        message = ctypes.string_at(graph, length)
        with self._lock:
            first = self._rounds.pop(optimizer, None) != item
            small = first and not _has_nodes(message, _MIN_NODES)
            if first and (self.users or not small):
                self._rounds[optimizer] = item
        if not self.users or (first and not small):
            return 0
        graphs = list(noting.graphs.items())
        graphs.sort(key=lambda one: one[0] is noting.running())  # the one that runs comes last
        made = rewrite(message, [one for _, one in graphs], self._number_of, lambda: self._fetches(item))
        if made is not None and small:
            made = padded(message, _MIN_NODES)
        if made is None:
            return 0
        result[0] = self._memory.malloc(len(made))
        if not result[0]:
            return 0
        ctypes.memmove(result[0], made, len(made))
        return len(made)

    def _number_of(self, owner: Owner) -> int:
        self._events.add(owner.event)
        return int(self._library.annot_tf_range(id(owner.event)))

    def _fetches(self, item: int) -> dict[str, list[int]]:
        """Return the nodes that a session fetches, with the types of their outputs."""
        count, size, status = ctypes.c_int(), ctypes.c_size_t(), self._tensorflow.TF_NewStatus()
        try:
            self._tensorflow.TF_GetFetchNodesListSize(item, ctypes.byref(count), ctypes.byref(size), status)
            texts, lengths = (ctypes.c_void_p * count.value)(), (ctypes.c_size_t * count.value)()
            storage = ctypes.create_string_buffer(size.value)
            self._tensorflow.TF_GetFetchNodesList(item, texts, lengths, count, storage, size, status)
            names = [ctypes.string_at(text, length).decode() for text, length in zip(texts, lengths, strict=True)]
        finally:
            self._tensorflow.TF_DeleteStatus(status)
        return {name: noting.output_types(name) for name in (one.partition(":")[0] for one in names)}


def _has_nodes(message: bytes, count: int) -> bool:
    """Return whether a GraphDef has at least so many nodes."""
    at = 0
    while count and at < len(message) and message[at] == _NODE_FIELD:
        length, shift, at = 0, 0, at + 1
        while True:
            length |= (message[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 0x80:
                break
        at, count = at + length, count - 1
    return not count
