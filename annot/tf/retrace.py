"""A function that was traced with annot's operations is traced once more where XLA compiles what calls it.

TensorFlow keeps one trace for both, and XLA has no kernels for the operations: the program would fail that runs
without them.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

__all__ = ["in_xla", "keep_from_xla"]

_XLA: Final = "annot: compiled by XLA"


def in_xla() -> bool:
    """Return whether the current graph is being traced for XLA, where annot's operations have no kernels."""
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


@functools.cache
def keep_from_xla() -> None:
    """Have `tf.function` tell traces for XLA from others, from now on; to be called before an operation is used.

    It stays, as the traced functions do that hold operations. Where a release of TensorFlow keeps its traces in
    another way, nothing is changed.
    """
    try:
        from tensorflow.python.eager.polymorphic_function import function_context
        from tensorflow.python.eager.polymorphic_function.function_context import EagerContext, make_function_context
    except ImportError:
        return
    if "xla_context_id" not in EagerContext._fields:
        return

    @functools.wraps(make_function_context)
    def make(*args: Any, **kwargs: Any) -> Any:
        context = make_function_context(*args, **kwargs)
        eager = getattr(context, "context", None)
        if not in_xla() or not isinstance(eager, EagerContext) or eager.xla_context_id:
            return context
        return context._replace(context=eager._replace(xla_context_id=_XLA))

    function_context.make_function_context = make
