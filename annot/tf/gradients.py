"""The gradients of the operations: the backward range opens and closes in what is built here."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf

from annot.tf import operations
from annot.tf.operations import IN, OUT

__all__ = ["register"]

_PASSES: Final = "_annot_passes"


def register() -> None:
    """Tell TensorFlow of the gradients, once."""
    tf.RegisterGradient("AnnotStart")(_gradient_of_start)
    tf.RegisterGradient("AnnotEnd")(_gradient_of_end)
    tf.RegisterGradient("AnnotGate")(_gradient_of_gate)


@dataclass(slots=True, eq=False)
class Pass:
    """One computation of gradients through one piece of a graph, as far as it has been built."""

    token: Any = None
    key: str = ""
    """Of the range; the operation that opens it does not know it before there is one that closes it."""
    closing: Any = None
    """The operation AnnotEnd that the backward range ends with."""
    done: Any = None
    seen: set[str] = field(default_factory=set)
    """The names of the operations whose gradients were asked for."""
    independent: set[Any] = field(default_factory=set)
    """Operations that are known not to wait for `closing`, so that no path is followed twice."""

    def is_waited_for_by(self, later: Any) -> bool:
        """Whether `later` is computed from what `closing` gives; operations are numbered as they are made."""
        pending, seen = [later], {later}
        while pending:
            operation = pending.pop()
            if operation is self.closing:
                return True
            for source in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
                if source._id >= self.closing._id and source not in seen and source not in self.independent:
                    seen.add(source)
                    pending.append(source)
        self.independent |= seen
        return False


_passes_lock = threading.Lock()


def _current_pass(group: int, name: str, role: str) -> Pass:
    """Return the pass that the gradient of operation `name` belongs to.

    A pass begins at an output, and asks for no gradient twice.
    """
    with _passes_lock:
        passes = _passes_of(tf.compat.v1.get_default_graph())
        current = passes.get(group)
        if current is None or name in current.seen or (role == OUT and current.closing is not None):
            current = passes[group] = Pass()
        current.seen.add(name)
        return current


def _passes_of(graph: Any) -> dict[int, Pass]:
    """Return the present pass of each piece."""
    passes: dict[int, Pass] | None = getattr(graph, _PASSES, None)
    if passes is None:
        passes = {}
        setattr(graph, _PASSES, passes)
    return passes


def _open_backward(op: Any, grad: Any, done: Any) -> Any:
    """Open the backward range at the first output that a gradient reaches, and once the forward range is closed.

    A gradient that is a constant would be there at once. If nobody needs the outputs, only their gradient, this is
    what has the end of the forward range run, and computes the outputs that it waits for.
    """
    key, group = op.get_attr("grad_event").decode(), op.get_attr("group")
    if not key:
        return grad
    current = _current_pass(group, op.outputs[-1].name, OUT)
    if current.token is not None:
        return grad
    current.key = key
    current.token, passed = operations.start([_values(grad)], [], "", after=[done], shapes=operations.shapes_of(done))
    return _with_values(grad, passed[0])


def _close_backward(op: Any, grad: Any) -> Any:
    """Have the end of the backward range wait for this gradient, and what needs the gradient wait for that end."""
    group = op.get_attr("group")
    current = _current_pass(group, op.outputs[-1].name, IN) if group else None
    if current is None or current.token is None:  # no gradient came by the outputs
        return grad
    values = _values(grad)
    if current.closing is None:
        current.done, passed = operations.end([values], current.token, [])
        current.closing = current.done.op
        operations.set_event(current.token, current.key)
        return _with_values(grad, passed[0])
    if current.is_waited_for_by(values.op):  # a pass through the gradients of this one
        return grad
    _have_wait(current.closing, values.op)
    return _with_values(grad, operations.gate(values, current.done))


def _have_wait(closing: Any, operation: Any) -> None:
    closing._add_control_input(operation)
    with _passes_lock:
        passes = tuple(_passes_of(tf.compat.v1.get_default_graph()).values())
    for other in passes:
        if closing in other.independent and other.is_waited_for_by(operation):
            other.independent.clear()


def _values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _with_values(grad: Any, values: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return values


def _gradient_of_start(op: Any, _token: Any, *grads: Any) -> list[Any]:
    passed = [_close_backward(op, grad) for grad in grads]
    return [*passed, *[None] * (len(op.inputs) - len(passed))]


def _gradient_of_end(op: Any, _done: Any, *grads: Any) -> list[Any]:
    passed = [_open_backward(op, grad, op.outputs[0]) for grad in grads]
    return [*passed, *[None] * (len(op.inputs) - len(passed))]


def _gradient_of_gate(op: Any, grad: Any) -> list[Any]:
    role = op.get_attr("role").decode()
    if role == IN:
        grad = _close_backward(op, grad)
    elif role == OUT:
        grad = _open_backward(op, grad, op.inputs[1])
    return [grad, None]
