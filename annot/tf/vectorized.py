"""What `tf.vectorized_map` and jacobians do with annot's operations: run each once for all iterations.

Without this they would run the gradient of a whole layer in a loop instead.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

__all__ = ["register"]


def register() -> None:
    """Tell TensorFlow, where it has a place to tell it."""
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.ops.parallel_for.pfor import RegisterPFor

        for name in ("AnnotStart", "AnnotEnd", "AnnotGate"):
            RegisterPFor(name)(_convert)


def _convert(pfor_input: Any) -> list[Any]:
    from tensorflow.python.ops.parallel_for.pfor import wrap

    op = pfor_input.op
    # A token is one for all iterations, and so are shapes; the tensors are stacked or not.
    inputs = [_of_all(one, tensor) for one, tensor in zip(pfor_input.inputs, op.inputs, strict=True)]
    outputs = (
        tf.compat.v1.get_default_graph()
        .create_op(
            op.type,
            inputs,
            [output.dtype for output in op.outputs],
            attrs={name: value for name, value in op.node_def.attr.items() if not name.startswith("_")},
            op_def=op.op_def,
        )
        .outputs
    )
    if op.type == "AnnotGate":
        return [wrap(outputs[0], pfor_input.inputs[0].is_stacked)]
    stacked = [one.is_stacked for one in pfor_input.inputs]
    return [wrap(outputs[0], False), *map(wrap, outputs[1:], stacked)]


def _of_all(wrapped: Any, tensor: Any) -> Any:
    """Return the converted input; of a token or shape that a loop has stacked, the first."""
    return wrapped.t[0] if tensor.dtype == tf.int32 and wrapped.is_stacked else wrapped.t
