"""The operations of the shared library, put into the current graph one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import execute

from annot.tf import library

__all__ = [
    "IN",
    "OUT",
    "end",
    "gate",
    "is_handle",
    "is_passed",
    "key_of",
    "set_event",
    "shape_of",
    "shapes_of",
    "start",
]

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
        shapes: of `shape_of`, for the sizes that the text of the range leaves open.

    Returns:
        The token, a scalar of type int32, and the tensors.
    """
    # By control edges: as inputs they would lead a gradient to tensors that need none.
    with tf.control_dependencies(list(waited)):
        token, *passed = _apply(
            "AnnotStart", [*tensors, *after, *shapes], tensors,
            {"event": key.encode(), "group": group, "A": len(after), "S": len(shapes), **_kind(tensors)},
        )  # fmt: skip
    return token, passed


def set_event(token: Any, key: str) -> None:
    """Have the operation `start` that gave this token open another range than it was made for."""
    token.op._set_attr("event", _attribute(key.encode()))


def end(
    tensors: list[Any], token: Any, waited: Sequence[Any], group: int = 0, grad_key: str = ""
) -> tuple[Any, list[Any]]:
    """Close the range of `token`; as for `start`. The first result is there once the range is closed."""
    # As inputs, for an operation with a control edge to somewhere is not fused with the one before it.
    with tf.control_dependencies([tensor for tensor in waited if not is_passed(tensor)]):
        deps = [tensor for tensor in waited if is_passed(tensor)]
        done, *passed = _apply(
            "AnnotEnd", [*tensors, token, *deps], tensors,
            {"grad_event": grad_key.encode(), "group": group, "D": [one.dtype for one in deps], **_kind(tensors)},
        )  # fmt: skip
    return done, passed


def gate(tensor: Any, token: Any, group: int = 0, role: str = "", grad_key: str = "") -> Any:
    """Return `tensor` such that it is there once `token`, of `start` or `end`, is."""
    attributes = {"grad_event": grad_key.encode(), "group": group, "role": role.encode(), "T": tensor.dtype}
    return _apply("AnnotGate", [tensor, token], [tensor, token], attributes)[0]


def _kind(tensors: Sequence[Any]) -> dict[str, Any]:
    return {"N": len(tensors), "T": tensors[0].dtype if tensors else tf.float32}  # of no tensor it must be said too


def shape_of(tensor: Any) -> Any:
    """Return the shape of a tensor of a graph, which is known when it runs: a vector of type int32."""
    (shape,) = _create("Shape", [tensor], {"T": tensor.dtype, "out_type": tf.int32})
    return shape


def _apply(name: str, inputs: list[Any], passed: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    """Put an operation into the current graph, and on the tapes that watch what it passes through.

    What else comes in has no gradient.
    """
    results = _create(name, inputs, attributes)
    told = itertools.chain.from_iterable((name, attributes[name]) for name in _ATTRIBUTES[name])
    execute.record_gradient(name, tuple(passed), tuple(told), results)
    return results


def _create(name: str, inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    # TensorFlow's own wrappers look at each argument anew, which takes longer than what they do.
    values = {name: _attribute(value) for name, value in attributes.items()}
    graph = tf.compat.v1.get_default_graph()
    return list(graph.create_op(name, inputs, None, name=f"annot/{name}", attrs=values).outputs)


def _attribute(value: Any) -> Any:
    if isinstance(value, bytes):
        return tf.compat.v1.AttrValue(s=value)
    if isinstance(value, int):
        return tf.compat.v1.AttrValue(i=value)
    if isinstance(value, list):
        kinds = [kind.as_datatype_enum for kind in value]
        return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(type=kinds))
    return tf.compat.v1.AttrValue(type=value.as_datatype_enum)


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
