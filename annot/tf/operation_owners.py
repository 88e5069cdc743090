"""Record the owner of each operation that TensorFlow creates or that its gradient tape records.

The computation of the program does not change:

- an operation in a graph is recorded by name, with the owner of the thread that creates it
- the gradient tape keeps the operation type as the string object that it gets. annot passes a `str` subclass with the
  owner. The tape passes it back when it computes the gradient, in eager mode and in graphs, which gives the owner of
  the backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import ref

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import session
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import backprop, imperative_grad, record
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util

from annot.emit import guard
from annot.emit.patches import Patches
from annot.tf import graph_config, owners
from annot.util.locks import fork_safe
from annot.util.weak_keys import WeakKeys


@dataclass(slots=True)
class Operation:
    """An operation as it was created; `kind` is its type."""

    owner: owners.Owner | None
    kind: str
    inputs: tuple[str, ...]
    """Names of its input tensors."""
    for_gradient: bool = False
    """Whether a computation of gradients created it."""


class Traced:
    """The operations of a traced graph of TensorFlow. It keeps only a weak reference to the graph."""

    def __init__(self, graph: Any) -> None:
        self.operations: dict[str, Operation] = {}
        """The operations by name."""
        self.graph_id = id(graph)
        """As in `Owner.graph_id`."""
        self._graph = ref(graph)

    def called(self, name: str, branch: str) -> Traced | None:
        """Return the graph that an operation calls in a branch; None: unknown.

        The branch of a function is the empty string; the branches of a `Case` are ``0``, ``1`` and so on.
        """
        graph: Any = self._graph()
        attributes = graph.get_operation_by_name(name).node_def.attr  # read now: TensorFlow changes them for gradients
        branches = {key: attributes[name].func for key, name in _BRANCHES.items() if name in attributes}
        if "branches" in attributes:
            branches = {str(i): function for i, function in enumerate(attributes["branches"].list.func)}
        called = _functions.get(branches[branch].name, lambda: None)() if branch in branches else None
        return None if called is None else graphs.get(called)


CONTROL_FLOW: Final = frozenset({"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While"})
CALLS: Final = CONTROL_FLOW | {"PartitionedCall", "StatefulPartitionedCall"}
"""The types of operations that call other graphs."""
_BRANCHES: Final = {"": "f", "then": "then_branch", "else": "else_branch", "body": "body", "cond": "cond"}
"""The attributes that name the called functions, by branch."""
_functions: Final[dict[str, ref[Any]]] = {}
"""The graph of each function, by name of the function."""
graphs: Final[WeakKeys[Any, Traced]] = WeakKeys()
"""The operations of each graph, oldest graph first."""


def traced_in(graph: Any) -> list[Traced]:
    """Return what is recorded of the functions that a graph may call, and of the graph itself, which comes last."""
    called = (_functions.get(name, lambda: None)() for name in getattr(graph, "_functions", ()))
    recorded = (graphs.get(candidate) for candidate in (*called, graph) if candidate is not None)
    return [traced for traced in recorded if traced is not None]


def _create(original: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
    operation = original(graph, *args, **kwargs)
    traced = graphs.get(operation.graph) or graphs.setdefault(operation.graph, Traced(operation.graph))
    inputs = tuple([tensor.name for tensor in operation.inputs])
    for_gradient = owners.thread.gradient_pass is not None
    traced.operations[operation.name] = Operation(owners.current(), operation.type, inputs, for_gradient)
    return operation


def _create_function(original: Any, name: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Create a function from a graph."""
    key = name.decode() if isinstance(name, bytes) else name
    _functions[key] = ref(graph, functools.partial(_functions.pop, key))  # a C callback, as in `WeakKeys`
    return original(name, graph, *args, **kwargs)


def _call_function(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return _run_graph(function.graph, None, False, original, function, *args, **kwargs)


def _run_session(original: Any, session: Any, handle: Any, targets: Any, fetches: Any, fed: Any, *args: Any) -> Any:
    is_cut = any(not tensor.deref().op.type.startswith("Placeholder") for tensor in fed)
    config = session._config or config_pb2.ConfigProto()
    graph_config.warn(config)
    return _run_graph(session.graph, config, is_cut, original, session, handle, targets, fetches, fed, *args)


def _run_graph(graph: Any, config: Any, is_cut: bool, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that runs a graph on this thread."""
    thread = owners.thread
    before = thread.running, thread.config, thread.is_cut
    try:
        thread.running, thread.config, thread.is_cut = graph, config, is_cut
        return run(*args, **kwargs)
    finally:
        thread.running, thread.config, thread.is_cut = before
        if owners.interrupts:
            raise owners.interrupts.pop()


# ---------------------------------------------------------------- gradients


class _OwnedType(str):
    """An operation type with the owner of the operation."""

    owner: owners.Owner


def _type_with_owner(operation: str) -> str:
    owner = owners.current()
    if owner is None:
        return operation
    owned_type = _OwnedType(operation)
    owned_type.owner = owner
    return owned_type


def _execute(original: Any, context: Any, operation: str, *args: Any) -> Any:
    if owners.thread.owner is not None or owners.thread.started:
        operation = _type_with_owner(operation)
    return original(context, operation, *args)


def _record_gradient(original: Any, operation: str, *args: Any) -> Any:
    return original(_type_with_owner(operation), *args)


def _gradient(operation: Any, *args: Any) -> Any:
    """Compute the gradient of an operation for TensorFlow's tape, instead of `backprop._gradient_function`."""
    if type(operation) is not _OwnedType:
        return backprop._gradient_function(operation, *args)
    kind = str(operation)
    return _compute_gradient(operation.owner, kind, backprop._gradient_function, kind, *args)


def _compute_gradient(owner: owners.Owner | None, operation: str, compute: Callable[..., Any], *args: Any) -> Any:
    gradient_pass = owners.thread.gradient_pass
    if owner is None or gradient_pass is None or not _patches.live:
        return compute(*args)
    backward = owner.backward(gradient_pass)
    if tf.executing_eagerly():
        gradient_pass.enter(backward, operation)
    with owners.owned(backward):
        return compute(*args)


def _record_operation(
    original: Any, op_type: Any, outputs: Any, inputs: Any, backward_function: Any, *args: Any, **kwargs: Any
) -> Any:
    """Record a custom gradient or a function, which pass their own backward function."""
    owner = owners.current()
    if owner is not None and op_type not in owners.READS and callable(backward_function):
        backward_function = functools.partial(_compute_gradient, owner, str(op_type), backward_function)
    return original(op_type, outputs, inputs, backward_function, *args, **kwargs)


def _compute_gradients(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute gradients by a tape or by TensorFlow's symbolic differentiation."""
    thread = owners.thread
    before = thread.gradient_pass, thread.owner
    gradient_pass = owners.GradientPass(owners.current())
    try:
        thread.gradient_pass = gradient_pass
        return original(*args, **kwargs)
    finally:
        thread.gradient_pass, thread.owner = before
        guard.to_the_end(gradient_pass.close)


def _differentiate(original: Any, scope: Any, operation: Any, function: Any, gradient: Any) -> Any:
    graph = graphs.get(operation.graph)
    traced = graph.operations.get(operation.name) if graph else None
    return _compute_gradient(
        traced.owner if traced else None, operation.type, original, scope, operation, function, gradient
    )


def _merge_call(original: Any, replica: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a function for all replicas on another thread, such as an optimizer update, with the owner of this thread."""
    owner = owners.current()

    @functools.wraps(function)
    def merged(*args: Any, **kwargs: Any) -> Any:
        with owners.owned(owner):
            return function(*args, **kwargs)

    return original(replica, function if owner is None else merged, *args, **kwargs)


# ---------------------------------------------------------------- installation

_patches: Patches = Patches()
_users: Final[set[object]] = set()
_users_lock: Final = fork_safe()

_PATCHED: Final = (
    (ops.Graph, "_create_op_internal", _create),
    (atomic_function, "from_func_graph", _create_function),
    (atomic_function.AtomicFunction, "call_flat", _call_function),
    (session.BaseSession, "_do_run", _run_session),
    (record, "record_operation", _record_operation),
    (imperative_grad, "imperative_grad", _compute_gradients),
    (gradients_util, "_GradientsHelper", _compute_gradients),
    (gradients_util, "_MaybeCompile", _differentiate),
    (distribute_lib.ReplicaContext, "merge_call", _merge_call),
)
_PATCHED_C: Final = (("TFE_Py_FastPathExecute", _execute), ("TFE_Py_RecordGradient", _record_gradient))
"""Functions of `pywrap_tfe` that every eager operation calls. A partial costs less than `Patches.wrap`."""


def install(user: object) -> None:
    """Record owners while there is a user. Overlapping blocks share one installation."""
    global _patches
    with _users_lock:
        first = not _users
        _users.add(user)
        if first:
            _patches = Patches()
            for owner, name, around in _PATCHED:
                if hasattr(owner, name):
                    _patches.wrap(owner, name, around)
            for name, patch in _PATCHED_C:
                _patches.replace(pywrap_tfe, name, functools.partial(patch, getattr(pywrap_tfe, name)))
            pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient)


def remove(user: object) -> None:
    """Remove a user. Without users TensorFlow is unpatched."""
    with _users_lock:
        if user in _users and len(_users) == 1:  # discard the user last: after an interrupt this runs again
            _patches.undo()
            pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
        _users.discard(user)
