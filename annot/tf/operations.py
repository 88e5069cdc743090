"""The operations of the shared library, put into the current graph one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_library

from annot.tf import library

__all__ = ["IN", "OUT", "end", "gate", "is_handle", "is_passed", "key_of", "shapes_of", "start"]

IN: Final = "in"
"""The role of a gate that an input or weight of the work goes through."""
OUT: Final = "out"
"""The role of a gate that an output of the work goes through."""

_SEPARATOR: Final = "\x1f"
_ATTRIBUTES: Final = {
    "AnnotStart": ("group",),
    "AnnotEnd": ("group", "grad_event"),
    "AnnotGate": ("group", "role", "grad_event"),
}
"""What the gradients ask of an operation."""


def start(
    tensors: list[Any],
    waited: Sequence[Any],
    key: str,
    group: int = 0,
    after: Sequence[Any] = (),
    shapes: Sequence[Any] = (),
) -> tuple[Any, list[Any]]:
    """Open a range.

    Args:
        tensors: none, or the one that passes through.
        waited: what else is to be there first.
        key: of `key_of`.
        group: which piece of the graph this is, for the gradients; 0 for none.
        after: what `end` returned first for the ranges that are to be closed before.
        shapes: of `annot.tf.sizes.shape_tensors`, for the sizes that the text of the range leaves open.

    Returns:
        The token, a scalar of type int32, and the tensors.
    """
    # By control edges: as inputs they would lead a gradient to tensors that need none.
    with tf.control_dependencies(list(waited)):
        token, *passed = _apply(
            "AnnotStart", tensors=tensors, event=key, group=group, after=list(after), shapes=list(shapes)
        )
    return token, passed


def end(
    tensors: list[Any], token: Any, waited: Sequence[Any], group: int = 0, grad_key: str = ""
) -> tuple[Any, list[Any]]:
    """Close the range of `token`; as for `start`. The first result is there once the range is closed."""
    # As inputs, for an operation with a control edge to somewhere is not fused with the one before it.
    with tf.control_dependencies([tensor for tensor in waited if not is_passed(tensor)]):
        deps = [tensor for tensor in waited if is_passed(tensor)]
        done, *passed = _apply("AnnotEnd", tensors=tensors, token=token, deps=deps, group=group, grad_event=grad_key)
    return done, passed


def gate(tensor: Any, token: Any, group: int = 0, role: str = "", grad_key: str = "") -> Any:
    """Return `tensor` such that it is there once `token`, of `start` or `end`, is."""
    return _apply("AnnotGate", tensor=tensor, token=token, group=group, role=role, grad_event=grad_key)[0]


def _apply(name: str, **arguments: Any) -> list[Any]:
    """Put an operation into the current graph, and on the tapes that watch it, as TensorFlow's own wrappers do."""
    if arguments.get("tensors") == []:
        arguments["T"] = tf.float32  # of no tensor, but it must be said
    with tf.name_scope("annot"):
        _, _, operation, _ = op_def_library._apply_op_helper(name, **arguments)
    results = list(operation.outputs)
    passed = arguments.get("tensors", operation.inputs)  # what else comes in has no gradient
    execute.record_gradient(name, tuple(passed), _attributes(operation), results)
    return results


def _attributes(operation: Any) -> tuple[Any, ...]:
    names = _ATTRIBUTES[operation.type]
    return tuple(itertools.chain.from_iterable((name, operation.get_attr(name)) for name in names))


def shapes_of(done: Any) -> list[Any]:
    """Return the shapes that `start` was given for the range whose `end` returned `done` first."""
    end = done.op
    if end.type != "AnnotEnd":
        return []
    start = end.inputs[len(end.outputs) - 1].op
    if start.type != "AnnotStart":
        return []
    return list(start.inputs[len(start.inputs) - start.get_attr("S") :])


def is_handle(tensor: Any) -> bool:
    """Whether a tensor stands for something else; of such a one only the original is known well enough."""
    return tensor.dtype in (tf.resource, tf.variant)


def is_passed(tensor: Any) -> bool:
    """Whether a tensor goes through operations; the others, which a GPU's host may hold, are only waited for."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def key_of(event: Any) -> str:
    """Return what an operation says of its range, which is how its kernel finds the event; None: nothing."""
    if event is None:
        return ""
    text = event.text.replace("\0", " ").encode("utf-8", "replace").decode()
    key = _SEPARATOR.join((text, event.domain, str(event.category), f"{event.color:#010x}"))
    library.know(key, event)
    return key
