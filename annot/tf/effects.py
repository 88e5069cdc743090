"""Operations that open and close a range beside what a graph does: for what acts on data sets and variables.

They run because they are stateful, as reading from a data set and assigning to a variable are. The pure operations of
`annot.tf.ops` stand in the way of tensors instead, and vanish where nothing needs those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from annot.tf import operations, ops
from annot.tf.retrace import keep_from_xla

__all__ = ["enter", "leave", "possible"]


def possible() -> bool:
    """Return whether the current graph is one that runs its stateful operations by itself, and not for XLA."""
    graph: Any = tf.compat.v1.get_default_graph()
    return bool(graph.building_function) and not ops.in_xla() and ops.available() is None


def enter(event: Any, handles: Sequence[Any] = (), *, after: Sequence[Any] = ()) -> Any:
    """Open the range of `event`, in a graph.

    Args:
        event: of `annot.emit.event`.
        handles: of resources, such as iterators. TensorFlow runs whatever works on a resource in the order in which
            it was built: the range opens when all earlier work on them is done, and before later work.
        after: tensors and operations that the range waits for.

    Returns:
        The token for `leave`.
    """
    return _apply("AnnotEnter", after, deps=list(handles), event=operations.key_of(event)).outputs[0]


def leave(token: Any, handles: Sequence[Any] = (), *, after: Sequence[Any] = ()) -> None:
    """Close the range of `token`; the other arguments say when, as for `enter`."""
    _apply("AnnotLeave", after, token=token, deps=list(handles))


def _apply(name: str, after: Sequence[Any], **arguments: Any) -> Any:
    keep_from_xla()
    with tf.name_scope("annot"), tf.control_dependencies(list(after)):
        return op_def_library._apply_op_helper(name, **arguments)[2]
