"""Notes the owner of each operation that TensorFlow creates or records, and nothing else.

Nothing is added to what a program computes:

- an operation of a graph is noted with the owner of the thread that creates it, by its name;
- the gradient tape keeps the type of an operation as the string that it was given. A string that carries the owner
  comes back when the tape asks for the gradient, in eager mode and in graphs, and says whose backward this is.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import session
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import backprop, imperative_grad, record
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util

from annot.patches import Patches
from annot.tf import owners

__all__ = ["Made", "graphs", "install", "output_types", "running"]


class Made:
    """An operation as it was created.

    Args:
        owner: its owner; None for none.
        kind: its type.
        inputs: names of its input tensors.
        for_gradient: whether a computation of gradients has created it.
        place: which graph it is in.
    """

    __slots__ = ("for_gradient", "inputs", "kind", "owner", "place")

    def __init__(
        self, owner: owners.Owner | None, kind: str, inputs: tuple[str, ...], for_gradient: bool = False, place: int = 0
    ) -> None:
        self.owner, self.kind, self.inputs, self.for_gradient, self.place = owner, kind, inputs, for_gradient, place


graphs: Final[WeakKeyDictionary[Any, dict[str, Made]]] = WeakKeyDictionary()
"""The operations of each graph by name; later graphs come last."""
_graphs_lock: Final = threading.Lock()


def output_types(name: str) -> list[int]:
    """Return the types of an operation's outputs, as TensorFlow numbers them, in the last graph that has it."""
    for graph, made in reversed(list(graphs.items())):
        if name in made and not getattr(graph, "building_function", True):
            return [output.dtype.as_datatype_enum for output in graph.get_operation_by_name(name).outputs]
    return []


def _note(operation: Any) -> None:
    graph = operation.graph
    made = graphs.get(graph)
    if made is None:
        with _graphs_lock:
            made = graphs.setdefault(graph, {})
    inputs = tuple([tensor.name for tensor in operation.inputs])
    made[operation.name] = Made(owners.current(), operation.type, inputs, owners.thread.through is not None, id(graph))


def _creating(original: Any) -> Any:
    @functools.wraps(original)
    def create(graph: Any, *args: Any, **kwargs: Any) -> Any:
        operation = original(graph, *args, **kwargs)
        if _patches.live:
            _note(operation)
        return operation

    return create


def running() -> Any:
    """Return the graph whose function or session this thread runs, which TensorFlow may optimize; None: not known."""
    return owners.thread.running


def _calling(original: Any) -> Any:
    """A function that was traced is called, or a session runs."""

    @functools.wraps(original)
    def call(caller: Any, *args: Any, **kwargs: Any) -> Any:
        before, owners.thread.running = owners.thread.running, caller.graph
        try:
            return original(caller, *args, **kwargs)
        finally:
            owners.thread.running = before

    return call


# ---------------------------------------------------------------- gradients


class _Owned(str):
    """The type of an operation, with its owner."""

    owner: owners.Owner


def _type_with_owner(operation: str) -> str:
    owner = owners.current()
    if owner is None:
        return operation
    named = _Owned(operation)
    named.owner = owner
    return named


def _executing(original: Any) -> Any:
    def execute(context: Any, operation: str, *args: Any) -> Any:
        if owners.thread.owner is not None or owners.thread.started:
            operation = _type_with_owner(operation)
        return original(context, operation, *args)

    return execute


def _recording(original: Any) -> Any:
    def record_gradient(operation: str, *args: Any) -> Any:
        return original(_type_with_owner(operation), *args)

    return record_gradient


def _gradient(operation: Any, *args: Any) -> Any:
    """Take the place of the function that TensorFlow's tape asks for the gradient of an operation."""
    if type(operation) is not _Owned:
        return backprop._gradient_function(operation, *args)
    return _in_backward_of(operation.owner, str(operation), lambda: backprop._gradient_function(str(operation), *args))


def _in_backward_of(owner: owners.Owner | None, operation: str, compute: Callable[[], Any]) -> Any:
    through = owners.thread.through
    if owner is None or through is None or not _patches.live:
        return compute()
    backward = owner.backward(through)
    if tf.executing_eagerly():
        through.enter(backward, operation)
    with owners.owned(backward):
        return compute()


def _recording_operation(original: Any) -> Any:
    """Custom gradients and functions come with a function of their own for the backward."""

    @functools.wraps(original)
    def record_operation(
        op_type: Any, output_tensors: Any, input_tensors: Any, backward_function: Any, forward_function: Any = None
    ) -> Any:
        owner, function = owners.current(), backward_function
        if owner is not None and op_type not in owners.READS and callable(function):
            backward_function = functools.partial(_own_backward, owner, str(op_type), function)
        return original(op_type, output_tensors, input_tensors, backward_function, forward_function)

    return record_operation


def _own_backward(owner: owners.Owner, operation: str, function: Callable[..., Any], *grads: Any) -> Any:
    return _in_backward_of(owner, operation, lambda: function(*grads))


def _computing(original: Any) -> Any:
    """A tape, or TensorFlow's symbolic differentiation, computes gradients."""

    @functools.wraps(original)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if not _patches.live:
            return original(*args, **kwargs)
        outer, owner = owners.thread.through, owners.thread.owner
        owners.thread.through = through = owners.Pass(owners.current())
        try:
            return original(*args, **kwargs)
        finally:
            through.close()
            owners.thread.through, owners.thread.owner = outer, owner

    return compute


def _differentiating(original: Any) -> Any:
    @functools.wraps(original)
    def compile_gradient(scope: Any, operation: Any, function: Any, gradient: Any) -> Any:
        made = graphs.get(operation.graph, {}).get(operation.name) or _copied(operation)
        owner = made.owner if made else None
        return _in_backward_of(owner, operation.type, lambda: original(scope, operation, function, gradient))

    return compile_gradient


def _copied(operation: Any) -> Made | None:
    """Return the operation of which TensorFlow has made a copy, as it does with the bodies of loops."""
    for made in reversed(list(graphs.values())):
        one = made.get(operation.name)
        if one is not None and one.kind == operation.type:
            return one
    return None


# ---------------------------------------------------------------- replicas


def _merging(original: Any) -> Any:
    """A replica's thread has another one do its work, as an optimizer does to update all replicas' weights."""

    @functools.wraps(original)
    def merge_call(context: Any, function: Any, args: Any = (), kwargs: Any = None) -> Any:
        owner = owners.current()
        if owner is None:
            return original(context, function, args, kwargs)

        @functools.wraps(function)
        def merged(*args: Any, **kwargs: Any) -> Any:
            with owners.owned(owner):
                return function(*args, **kwargs)

        return original(context, merged, args, kwargs)

    return merge_call


# ---------------------------------------------------------------- installation

_patches: Patches = Patches()
_users = 0
_users_lock: Final = threading.Lock()

_PATCHED: Final = (
    (ops.Graph, "_create_op_internal", _creating),
    (atomic_function.AtomicFunction, "call_flat", _calling),
    (session.BaseSession, "run", _calling),
    (pywrap_tfe, "TFE_Py_FastPathExecute", _executing),
    (pywrap_tfe, "TFE_Py_RecordGradient", _recording),
    (record, "record_operation", _recording_operation),
    (imperative_grad, "imperative_grad", _computing),
    (gradients_util, "_GradientsHelper", _computing),
    (gradients_util, "_MaybeCompile", _differentiating),
    (distribute_lib.ReplicaContext, "merge_call", _merging),
)


def install() -> Callable[[], None]:
    """Note owners from now on; return what ends it. Blocks that overlap share one installation."""
    global _users, _patches
    with _users_lock:
        _users += 1
        if _users == 1:
            _patches = Patches()
            for place, name, make in _PATCHED:
                if hasattr(place, name):
                    _patches.replace(place, name, make(getattr(place, name)))
            pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient)
    return remove


def remove() -> None:
    """End one installation; with the last one TensorFlow is as it was before."""
    global _users
    with _users_lock:
        _users -= 1
        if _users == 0:
            _patches.undo()
            pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
