"""Functions with layers that TensorFlow optimizes on threads of its own, where annot adds no ranges.

Such a thread must not wait for Python (annot/native/tf_ops/graphs.c). The C library keeps a copy of these graphs.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from annot.emit import client
from annot.tf import operation_owners
from annot.tf.graph_rewrite import rewrite
from annot.tf.owners import Owner

__all__ = ["MissedGraphs"]

_VisitFunction: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
_MISSED: Final = (
    "functions with layers that ran without ranges: at least {}. TensorFlow optimizes them on threads of its own, "
    "such as the body of `for batch in dataset` in a tf.function. Write `for batch in iter(dataset)` there"
)


class MissedGraphs:
    """Counts the functions. `visit` passes each kept graph to a function and forgets it."""

    def __init__(self, visit: Any) -> None:
        self._visit = visit
        self._functions: set[frozenset[int]] = set()
        """For each, the ids of the traced graphs that call its layers. Equal functions count once."""

    def warn(self) -> None:
        """Warn of the functions so far, once per number."""
        copies: list[bytes] = []
        self._visit(_VisitFunction(lambda *copy: copies.append(ctypes.string_at(*copy))))
        functions = set(filter(None, map(_graphs_with_layers, copies)))
        if not functions <= self._functions:
            self._functions |= functions
            client.warn_once(_MISSED.format(len(self._functions)))


def _graphs_with_layers(message: bytes) -> frozenset[int]:
    """Return the ids of the traced graphs whose ranges an optimized graph would have."""
    ids: set[int] = set()

    def number_of(owner: Owner) -> int:
        ids.add(owner.graph_id)
        return 0

    rewrite(message, [graph for _, graph in operation_owners.graphs.items()], number_of, lambda _: None)
    return frozenset(ids - {0})  # 0: the joint owner of a fused operation
