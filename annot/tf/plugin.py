"""The graph optimizer through which TensorFlow hands over each graph after its own passes.

TensorFlow's plug-in interface (tensorflow/c/experimental/grappler/grappler.h) calls it at the end of every round of
optimization, and makes two rounds for a graph. Ranges come in after the second, for a third party's operations in the
first would keep TensorFlow from its own optimizations in the second.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, Final

from annot import native, own
from annot.locks import fork_safe
from annot.tf import noting
from annot.tf.owners import Owner, interrupts, thread
from annot.tf.rewrite import count_nodes, padded, rewrite

__all__ = ["Optimizer", "RewriteFunction"]

RewriteFunction: Final = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_MIN_NODES: Final = 4
"""TensorFlow makes no second round for a smaller graph (grappler/optimizers/meta_optimizer.cc)."""
_IS_CUT: Final = "a session that is fed tensors other than placeholders runs without ranges"


class Optimizer:
    """Rewrites the graphs that TensorFlow optimizes while a block is open.

    Args:
        library: the shared library of annot/native/tf_ops.c.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._lock = fork_safe()
        self._rounds: dict[int, int] = {}  # by optimizer: the graph that waits for its second round
        self._memory = ctypes.CDLL(None)
        self._memory.malloc.argtypes, self._memory.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        library.annot_tf_range.argtypes, library.annot_tf_range.restype = [ctypes.c_void_p], ctypes.c_int64
        self.function = RewriteFunction(functools.partial(native.fast().caught, interrupts, self._optimize))
        self.close_all = library.annot_tf_close_all
        self.users: set[object] = set()
        self._events: set[Any] = set()  # kept alive for the library

    def switch(self, user: object, on: bool) -> None:
        """Have graphs that are optimized from now on get ranges as long as there is a user; it may run again."""
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
        # The user's program goes on without ranges if annot fails.
        made = own.attempt(self._rewritten, message, otherwise=None, note="a graph of TensorFlow has no ranges")
        if made is None:
            return 0
        if small:  # nothing comes in yet: the graph is to have a second round
            made = padded(message, _MIN_NODES)
        result[0] = self._memory.malloc(len(made))
        if not result[0]:
            return 0
        ctypes.memmove(result[0], made, len(made))
        return len(made)

    def _rewritten(self, message: bytes) -> bytes | None:
        if thread.is_cut:
            raise ValueError(_IS_CUT)
        graphs = list(noting.graphs.items())
        graphs.sort(key=lambda one: one[0] is thread.running)  # the one that runs comes last
        return rewrite(message, [one for _, one in graphs], self._number_of, _output_types)

    def _number_of(self, owner: Owner) -> int:
        self._events.add(owner.event)
        return int(self._library.annot_tf_range(id(owner.event)))


def _output_types(name: str) -> list[int] | None:
    """Return the types of the outputs of an operation in the graph of a session, as TensorFlow numbers them."""
    for graph in (thread.running, *reversed(list(noting.graphs))):
        if graph is not None and not getattr(graph, "building_function", True):
            with contextlib.suppress(KeyError):
                outputs = graph.get_operation_by_name(name).outputs
                return [output.dtype.base_dtype.as_datatype_enum for output in outputs]
    return None
