"""Operations that open and close ranges while TensorFlow runs, with their gradients.

In a graph, `begin` and `finish` put operations around a piece of it:

    tensors ─► AnnotStart ─► first tensor ─► …the work… ─► first output ─► AnnotEnd ─► first output
                  └ token ─► AnnotGate ─► others ─►        other outputs ─┘    └ done ─► AnnotGate ─► others
                  └───────────────── token ────────────────────────────► AnnotEnd

No operation passes two tensors through, because TensorFlow makes up zeros for the gradients that are missing at an
operation with several outputs: a gradient that is None in the plain program stays None. The range of the backward
work opens where the first gradient reaches an output, and closes where the gradients of all gated tensors are there;
which of them will come is not known until the last has come, so each is added to what the closing operation waits for.

In eager mode Python itself opens and closes ranges, also from the tape.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_library
from tensorflow.python.ops import control_flow_util

from annot.tf import eager, library

__all__ = ["Token", "available", "begin", "close_open_ranges", "finish", "gate", "in_xla"]

_SEPARATOR: Final = "\x1f"
_ROLE_IN: Final = "in"
_ROLE_OUT: Final = "out"
_PASSES: Final = "_annot_passes"
_groups = itertools.count(1)


@dataclass(slots=True, eq=False)
class Token:
    """What `begin` opened, for `finish`; in a graph it belongs to the place there, else to one range."""

    graph: Any = None
    """The graph that `begin` worked in; None in eager mode, and where there is no range."""
    tensor: Any = None
    """The scalar of type int64 that stands for the range while the graph runs."""
    operation: Any = None
    group: int = 0
    grad_key: str = ""
    eager: eager.Span | None = None


def available() -> str | None:
    """Return None if operations can be used in graphs here, else one sentence why not."""
    loaded = library.load()
    return loaded if isinstance(loaded, str) else None


def in_xla() -> bool:
    """Return whether the current graph is being traced for XLA, where annot's operations have no kernels."""
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def begin(
    tensors: Sequence[Any], event: Any, grad_event: Any | None = None, deps: Sequence[Any] = ()
) -> tuple[list[Any], Token]:
    """Open the range of `event` around what is computed from the tensors that come back.

    Args:
        tensors: any tensors, of any shape and dtype: the inputs of the work, and the weights that it reads. Those
            that can have no gradient and handles of resources come back as they are or behind an identity.
        event: of `annot.emit.event`; None for no range.
        grad_event: the range of the backward work; None for none.
        deps: tensors that the range waits for too.

    Returns:
        The tensors to work with, and what `finish` needs. Under XLA, and where `available` is not None, they are the
        very tensors that came in, and there is no range.
    """
    if tf.executing_eagerly():
        span = eager.Span(event, grad_event)
        return [span.gate_input(tensor) for tensor in tensors], Token(eager=span)
    if in_xla() or available() is not None:
        return list(tensors), Token()
    place = _first_passed(tensors)
    waited = [*(tensor for i, tensor in enumerate(tensors) if i != place), *deps]
    first = [] if place is None else [tensors[place]]
    grad_key = "" if grad_event is None else _key(grad_event)
    group = next(_groups) if grad_key else 0
    token, passed, operation = _start(first, waited, _key(event), group)
    made = Token(token.graph, token, operation, group, grad_key)
    return [passed[0] if i == place else gate(tensor, made) for i, tensor in enumerate(tensors)], made


def gate(tensor: Any, token: Token) -> Any:
    """Return `tensor` such that it is ready once the range is open, and its gradient before the backward range closes.

    Args:
        tensor: an input or weight of the work that `begin` was not given.
        token: of `begin`.
    """
    if token.eager is not None:
        return token.eager.gate_input(tensor)
    if token.graph is None or tf.compat.v1.get_default_graph() is not token.graph or _is_handle(tensor):
        return tensor
    if not _is_passed(tensor):
        with tf.control_dependencies([token.operation]):
            return tf.identity(tensor)
    return _gate(tensor, token.tensor, token.group, _ROLE_IN)


def finish(tensors: Sequence[Any], token: Token) -> list[Any]:
    """Close the range that `begin` opened once all `tensors` are there.

    Args:
        tensors: the outputs of the work.
        token: of `begin`; a second `finish` changes nothing.

    Returns:
        The tensors to go on with.
    """
    if token.eager is not None:
        return token.eager.finish(tensors)
    if token.graph is None:
        return list(tensors)
    inside = tf.compat.v1.get_default_graph() is token.graph
    group, grad_key = (token.group, token.grad_key) if inside else (0, "")
    open_token, token.graph = token.tensor, None
    places = [i for i, tensor in enumerate(tensors) if not _is_handle(tensor)]
    place = next((i for i in places if _is_passed(tensors[i])), places[0] if places else None)
    first = [] if place is None else [tensors[place]]
    done, passed = _end(first, open_token, [t for i, t in enumerate(tensors) if i != place], group, grad_key)
    return [
        passed[0] if i == place else tensor if i not in places else _gate(tensor, done, group, _ROLE_OUT, grad_key)
        for i, tensor in enumerate(tensors)
    ]


def close_open_ranges() -> int:
    """Close the ranges that a step which failed left open; return how many.

    Example:
        >>> close_open_ranges()
        0
    """
    return library.close_all() + eager.close_leftovers()


# ---------------------------------------------------------------- the operations


def _start(tensors: list[Any], waited: Sequence[Any], key: str, group: int = 0) -> tuple[Any, list[Any], Any]:
    with tf.control_dependencies([tensor for tensor in waited if not _is_passed(tensor)]):
        deps = [tensor for tensor in waited if _is_passed(tensor)]
        token, passed = _apply("AnnotStart", tensors=tensors, deps=deps, event=key, group=group)
    return token, passed, token.op


def _end(
    tensors: list[Any], token: Any, waited: Sequence[Any], group: int = 0, grad_key: str = ""
) -> tuple[Any, list[Any]]:
    with tf.control_dependencies([tensor for tensor in waited if not _is_passed(tensor)]):
        deps = [tensor for tensor in waited if _is_passed(tensor)]
        done, passed = _apply("AnnotEnd", tensors=tensors, token=token, deps=deps, group=group, grad_event=grad_key)
    return done, passed


def _gate(tensor: Any, token: Any, group: int = 0, role: str = "", grad_key: str = "") -> Any:
    return _apply("AnnotGate", tensor=tensor, token=token, group=group, role=role, grad_event=grad_key)[0]


def _apply(name: str, **arguments: Any) -> Any:
    """Put an operation into the current graph, and on the tapes that watch it, as TensorFlow's own wrappers do."""
    tensors = arguments.get("tensors")
    if tensors is not None and not tensors:
        arguments["T"] = tf.float32
    with tf.name_scope("annot"):
        _, _, operation, outputs = op_def_library._apply_op_helper(name, **arguments)
    results = list(operation.outputs)
    execute.record_gradient(name, tuple(operation.inputs), _attributes(operation), results)
    return (results[0], results[1:]) if tensors is not None else results


def _attributes(operation: Any) -> tuple[Any, ...]:
    names = {"AnnotGate": ("group", "role", "grad_event"), "AnnotEnd": ("group", "grad_event"), "AnnotStart": ("group",)}
    return tuple(itertools.chain.from_iterable((name, operation.get_attr(name)) for name in names[operation.type]))


def _is_handle(tensor: Any) -> bool:
    return tensor.dtype in (tf.resource, tf.variant)


def _is_passed(tensor: Any) -> bool:
    """Whether a tensor goes through operations; the others, which a GPU's host may hold, are only waited for."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _first_passed(tensors: Sequence[Any]) -> int | None:
    return next((i for i, tensor in enumerate(tensors) if _is_passed(tensor)), None)


def _key(event: Any) -> str:
    """Return what an operation says of its range, which is how its kernel finds the event."""
    if event is None:
        return ""
    text = event.text.replace("\0", " ").encode("utf-8", "replace").decode()
    key = _SEPARATOR.join((text, event.domain, str(event.category), f"{event.color:#010x}"))
    library.know(key, event)
    return key


# ---------------------------------------------------------------- gradients


@dataclass(slots=True, eq=False)
class Pass:
    """One computation of gradients through one piece of a graph, as far as it has been built."""

    token: Any = None
    closing: Any = None
    """The operation AnnotEnd that the backward range ends with."""
    done: Any = None
    seen: set[str] = field(default_factory=set)
    """The names of the operations whose gradients were asked for."""


_passes_lock = threading.Lock()


def _current_pass(group: int, name: str, role: str) -> Pass:
    """Return the pass that the gradient of operation `name` belongs to.

    A pass begins at an output, and asks for no gradient twice.
    """
    graph = tf.compat.v1.get_default_graph()
    with _passes_lock:
        passes: dict[int, Pass] | None = getattr(graph, _PASSES, None)
        if passes is None:
            passes = {}
            setattr(graph, _PASSES, passes)
        current = passes.get(group)
        if current is None or name in current.seen or (role == _ROLE_OUT and current.closing is not None):
            current = passes[group] = Pass()
        current.seen.add(name)
        return current


def _open_backward(op: Any, grad: Any) -> Any:
    """Open the backward range at the first output that a gradient reaches."""
    key, group = op.get_attr("grad_event").decode(), op.get_attr("group")
    if not key:
        return grad
    current = _current_pass(group, op.outputs[-1].name, _ROLE_OUT)
    if current.token is not None:
        return grad
    current.token, passed, _ = _start([_values(grad)], [], key)
    return _with_values(grad, passed[0])


def _close_backward(op: Any, grad: Any) -> Any:
    """Have the end of the backward range wait for this gradient, and what needs the gradient wait for that end."""
    group = op.get_attr("group")
    current = _current_pass(group, op.outputs[-1].name, _ROLE_IN) if group else None
    if current is None or current.token is None:  # no gradient came by the outputs
        return grad
    values = _values(grad)
    if current.closing is None:
        current.done, passed = _end([values], current.token, [])
        current.closing = current.done.op
        return _with_values(grad, passed[0])
    if _depends_on(values.op, current.closing):  # a pass through the gradients of this one
        return grad
    current.closing._add_control_input(values.op)
    return _with_values(grad, _gate(values, current.done))


def _values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _with_values(grad: Any, values: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return values


def _depends_on(later: Any, earlier: Any) -> bool:
    """Whether `later` is computed from what `earlier` gives; operations are numbered as they are made."""
    pending, seen = [later], {later}
    while pending:
        for source in _sources(pending.pop()):
            if source is earlier:
                return True
            if source._id > earlier._id and source not in seen:
                seen.add(source)
                pending.append(source)
    return later is earlier


def _sources(operation: Any) -> list[Any]:
    return [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]


@tf.RegisterGradient("AnnotStart")
def _gradient_of_start(op: Any, _token: Any, *grads: Any) -> list[Any]:
    passed = [_close_backward(op, grad) for grad in grads]
    return [*passed, *[None] * (len(op.inputs) - len(passed))]


@tf.RegisterGradient("AnnotEnd")
def _gradient_of_end(op: Any, _done: Any, *grads: Any) -> list[Any]:
    passed = [_open_backward(op, grad) for grad in grads]
    return [*passed, *[None] * (len(op.inputs) - len(passed))]


@tf.RegisterGradient("AnnotGate")
def _gradient_of_gate(op: Any, grad: Any) -> list[Any]:
    role = op.get_attr("role").decode()
    if role == _ROLE_IN:
        grad = _close_backward(op, grad)
    elif role == _ROLE_OUT:
        grad = _open_backward(op, grad)
    return [grad, None]
