"""Operations that open and close a range beside what a graph does: for what acts on data sets and variables.

They run because they are stateful, as reading from a data set and assigning to a variable are. The pure operations of
`annot.tf.ops` stand in the way of tensors instead, and vanish where nothing needs those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from annot.tf import ops

__all__ = ["enter", "leave", "possible"]


def possible() -> bool:
    """Return whether the current graph is one that runs its stateful operations by itself, and not for XLA."""
    graph: Any = tf.compat.v1.get_default_graph()
    return bool(graph.building_function) and not ops.in_xla() and ops.available() is None


def enter(event: Any, deps: Sequence[Any] = ()) -> Any:
    """Open the range of `event`, in a graph, once `deps` are there.

    Args:
        event: of `annot.emit.event`.
        deps: tensors. TensorFlow runs whatever works on the same resource in the order in which it was built: with a
            handle among them, the range opens after all earlier work on that resource.

    Returns:
        The token for `leave`: what is built under a control dependency on it runs inside the range.
    """
    return _apply("AnnotEnter", deps=list(deps), event=ops.key(event)).outputs[0]


def leave(token: Any, deps: Sequence[Any] = (), *, after: Sequence[Any] = ()) -> None:
    """Close the range of `token` once `deps`, and the tensors and operations in `after`, are there."""
    with tf.control_dependencies(list(after)):
        _apply("AnnotLeave", token=token, deps=list(deps))


def _apply(name: str, **arguments: Any) -> Any:
    with tf.name_scope("annot"):
        return op_def_library._apply_op_helper(name, **arguments)[2]
