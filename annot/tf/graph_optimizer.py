"""The graph optimizer plug-in that adds ranges to each graph after TensorFlow's own passes.

TensorFlow's plug-in interface (tensorflow/c/experimental/grappler/grappler.h) calls it at the end of each optimization
round, and each graph has two rounds. The plug-in adds ranges after the second round. Unknown operations added after the
first would block TensorFlow's own optimizations in the second.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, Final

from annot import native
from annot.emit import guard
from annot.tf import operation_owners
from annot.tf.graph_rewrite import count_nodes, padded, rewrite
from annot.tf.owners import Owner, interrupts, thread
from annot.util.locks import fork_safe

__all__ = ["Optimizer", "RewriteFunction"]

RewriteFunction: Final = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_MIN_NODES: Final = 4
"""TensorFlow skips the second round of smaller graphs (grappler/optimizers/meta_optimizer.cc)."""
_IS_CUT: Final = "the session is fed a tensor that is not a placeholder"


class Optimizer:
    """Adds ranges to the graphs that TensorFlow optimizes while there is a user.

    Args:
        library: the shared library of annot/native/tf_ops.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._lock = fork_safe()
        self._rounds: dict[int, int] = {}  # optimizer -> graph that waits for its second round
        self._memory = ctypes.CDLL(None)
        self._memory.malloc.argtypes, self._memory.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        library.annot_tf_range.argtypes, library.annot_tf_range.restype = [ctypes.c_void_p], ctypes.c_int64
        self.function = RewriteFunction(functools.partial(native.emitter().caught, interrupts, self._optimize))
        self.close_all = library.annot_tf_close_all
        self.users: set[object] = set()
        self._events: set[Any] = set()  # keeps the events alive for the library

    def switch(self, user: object, on: bool) -> None:
        """Add or remove a user. Graphs that are optimized while there is a user have ranges. Calls may repeat."""
        with self._lock:
            (self.users.add if on else self.users.discard)(user)
            self._library.annot_tf_switch(bool(self.users))

    def _optimize(self, optimizer: int, graph: Any, length: int, item: int, result: Any) -> int:
        if not graph:
            with self._lock:
                self._rounds.pop(optimizer, None)
            return 0
        return self._second_round(optimizer, graph, length, item, result)

    def _second_round(self, optimizer: int, graph: Any, length: int, item: int, result: Any) -> int:
        message = ctypes.string_at(graph, length)
        with self._lock:
            first = self._rounds.pop(optimizer, None) != item
            small = first and count_nodes(message) < _MIN_NODES
            if first and (self.users or not small):
                self._rounds[optimizer] = item
        if not self.users or (first and not small):
            return 0
        # If annot fails, the user's program continues without ranges.
        made = guard.attempt(self._rewritten, message, otherwise=None, note="a TensorFlow graph has no ranges")
        if made is None:
            return 0
        if small:  # only padding in this round, so that the graph gets a second one
            made = padded(message, _MIN_NODES)
        result[0] = self._memory.malloc(len(made))
        if not result[0]:
            return 0
        ctypes.memmove(result[0], made, len(made))
        return len(made)

    def _rewritten(self, message: bytes) -> bytes | None:
        if thread.is_cut:
            raise ValueError(_IS_CUT)
        graphs = list(operation_owners.graphs.items())
        graphs.sort(key=lambda one: one[0] is thread.running)  # the running graph last
        return rewrite(message, [one for _, one in graphs], self._number_of, _output_types)

    def _number_of(self, owner: Owner) -> int:
        self._events.add(owner.event)
        return int(self._library.annot_tf_range(id(owner.event)))


def _output_types(name: str) -> list[int] | None:
    """Return the DataType numbers of the outputs of an operation in a session's graph; None if it is unknown."""
    for graph in (thread.running, *reversed(list(operation_owners.graphs))):
        if graph is not None and not getattr(graph, "building_function", True):
            with contextlib.suppress(KeyError):
                outputs = graph.get_operation_by_name(name).outputs
                return [output.dtype.base_dtype.as_datatype_enum for output in outputs]
    return None
