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
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import session
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import backprop, imperative_grad, record
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util

from annot.emit import guard
from annot.emit.patches import Patches
from annot.tf import owners
from annot.util.locks import fork_safe
from annot.util.weak_keys import WeakKeys

__all__ = ["Operation", "Traced", "graphs", "install", "remove"]


@dataclass(slots=True)
class Operation:
    """An operation as it was created.

    Args:
        owner: its owner; None: it belongs to no range.
        kind: its operation type.
        inputs: names of its input tensors.
        for_gradient: whether a computation of gradients created it.
    """

    owner: owners.Owner | None
    kind: str
    inputs: tuple[str, ...]
    for_gradient: bool = False


class Traced:
    """The operations of a traced graph.

    Args:
        graph: the graph of TensorFlow; only a weak reference is kept.
    """

    def __init__(self, graph: Any) -> None:
        self.operations: dict[str, Operation] = {}
        """The operations by name."""
        self.graph_id = id(graph)
        """As in `Owner.graph_id`."""
        self._of_kinds: tuple[int, frozenset[str]] = (0, frozenset())
        self._graph = ref(graph)

    def of_kinds(self, kinds: frozenset[str]) -> frozenset[str]:
        """Return the names of the operations of some types, from a cache until an operation is added.

        Args:
            kinds: operation types. All calls must pass the same types, because the cache ignores them.
        """
        count = len(self.operations)
        if self._of_kinds[0] != count:
            self._of_kinds = (
                count,
                frozenset(name for name, made in list(self.operations.items()) if made.kind in kinds),
            )
        return self._of_kinds[1]

    def called(self, name: str) -> dict[str, Traced | None]:
        """Return the graphs that an operation calls, by branch.

        Args:
            name: name of the operation.

        Returns:
            The graph of each branch; None: unknown. The branch of a function is the empty string; the branches of a
            `Case` are ``0``, ``1`` and so on.
        """
        graph: Any = self._graph()
        attributes = graph.get_operation_by_name(name).node_def.attr  # read now: TensorFlow changes them for gradients
        branches = {key: attributes[name].func for key, name in _BRANCHES.items() if name in attributes}
        if "branches" in attributes:
            branches = {str(i): one for i, one in enumerate(attributes["branches"].list.func)}
        found = {key: _functions.get(one.name, lambda: None)() for key, one in branches.items()}
        return {key: None if graph is None else graphs.get(graph) for key, graph in found.items()}


_BRANCHES: Final = {"": "f", "then": "then_branch", "else": "else_branch", "body": "body", "cond": "cond"}
"""The attributes that name the called functions, by branch."""
_functions: Final[dict[str, ref[Any]]] = {}
"""The graph of each function, by name of the function."""
graphs: Final[WeakKeys[Any, Traced]] = WeakKeys()
"""The operations of each graph, oldest graph first."""
_graphs_lock: Final = fork_safe()


def _record(operation: Any) -> None:
    graph = operation.graph
    traced = graphs.get(graph)
    if traced is None:
        with _graphs_lock:
            traced = graphs.setdefault(graph, Traced(graph))
    inputs = tuple([tensor.name for tensor in operation.inputs])
    for_gradient = owners.thread.gradient_pass is not None
    traced.operations[operation.name] = Operation(owners.current(), operation.type, inputs, for_gradient)


def _wrap_create(original: Any) -> Any:
    @functools.wraps(original)
    def create(graph: Any, *args: Any, **kwargs: Any) -> Any:
        operation = original(graph, *args, **kwargs)
        if _patches.live:
            _record(operation)
        return operation

    return create


def _wrap_from_func_graph(original: Any) -> Any:
    """Wrap the creation of a function from a graph."""

    @functools.wraps(original)
    def from_func_graph(name: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        key = name.decode() if isinstance(name, bytes) else name
        _functions[key] = ref(graph, functools.partial(_functions.pop, key))  # a C callback, as in `WeakKeys`
        return original(name, graph, *args, **kwargs)

    return from_func_graph


def _wrap_call(original: Any) -> Any:
    """Wrap the call of a traced function."""

    @functools.wraps(original)
    def call(caller: Any, *args: Any, **kwargs: Any) -> Any:
        thread = owners.thread
        before = thread.running
        try:
            thread.running = caller.graph
            return original(caller, *args, **kwargs)
        finally:
            thread.running = before
            owners.raise_interrupt()

    return call


def _wrap_run(original: Any) -> Any:
    """Wrap the run of a TensorFlow 1 session."""

    @functools.wraps(original)
    def run(session: Any, handle: Any, targets: Any, fetches: Any, fed: Any, *args: Any) -> Any:
        thread = owners.thread
        before = thread.running, thread.is_cut
        try:
            thread.running = session.graph
            thread.is_cut = any(not one.deref().op.type.startswith("Placeholder") for one in fed)
            return original(session, handle, targets, fetches, fed, *args)
        finally:
            thread.running, thread.is_cut = before
            owners.raise_interrupt()

    return run


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


def _wrap_execute(original: Any) -> Any:
    def execute(context: Any, operation: str, *args: Any) -> Any:
        if owners.thread.owner is not None or owners.thread.started:
            operation = _type_with_owner(operation)
        return original(context, operation, *args)

    return execute


def _wrap_record_gradient(original: Any) -> Any:
    def record_gradient(operation: str, *args: Any) -> Any:
        return original(_type_with_owner(operation), *args)

    return record_gradient


def _gradient(operation: Any, *args: Any) -> Any:
    """Compute the gradient of an operation for TensorFlow's tape, instead of `backprop._gradient_function`."""
    if type(operation) is not _OwnedType:
        return backprop._gradient_function(operation, *args)
    kind = str(operation)
    return _in_backward_of(operation.owner, kind, backprop._gradient_function, kind, *args)


def _in_backward_of(owner: owners.Owner | None, operation: str, compute: Callable[..., Any], *args: Any) -> Any:
    gradient_pass = owners.thread.gradient_pass
    if owner is None or gradient_pass is None or not _patches.live:
        return compute(*args)
    backward = owner.backward(gradient_pass)
    if tf.executing_eagerly():
        gradient_pass.enter(backward, operation)
    with owners.owned(backward):
        return compute(*args)


def _wrap_record_operation(original: Any) -> Any:
    """Wrap the recording of custom gradients and of functions, which pass their own backward function."""

    @functools.wraps(original)
    def record_operation(
        op_type: Any, output_tensors: Any, input_tensors: Any, backward_function: Any, forward_function: Any = None
    ) -> Any:
        owner = owners.current()
        if owner is not None and op_type not in owners.READS and callable(backward_function):
            backward_function = functools.partial(_in_backward_of, owner, str(op_type), backward_function)
        return original(op_type, output_tensors, input_tensors, backward_function, forward_function)

    return record_operation


def _wrap_compute(original: Any) -> Any:
    """Wrap the computation of gradients by a tape or by TensorFlow's symbolic differentiation."""

    @functools.wraps(original)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if not _patches.live:
            return original(*args, **kwargs)
        outer, owner = owners.thread.gradient_pass, owners.thread.owner
        gradient_pass = owners.GradientPass(owners.current())
        try:
            owners.thread.gradient_pass = gradient_pass
            return original(*args, **kwargs)
        finally:
            owners.thread.gradient_pass, owners.thread.owner = outer, owner
            guard.to_the_end(gradient_pass.close)

    return compute


def _wrap_compile(original: Any) -> Any:
    @functools.wraps(original)
    def compile_gradient(scope: Any, operation: Any, function: Any, gradient: Any) -> Any:
        graph = graphs.get(operation.graph)
        traced = graph.operations.get(operation.name) if graph else None
        owner = traced.owner if traced else None
        return _in_backward_of(owner, operation.type, original, scope, operation, function, gradient)

    return compile_gradient


# ---------------------------------------------------------------- replicas


def _wrap_merge_call(original: Any) -> Any:
    """Wrap `merge_call`, which runs a function for all replicas on another thread, such as an optimizer update."""

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
_users: Final[set[object]] = set()
_users_lock: Final = fork_safe()

_PATCHED: Final = (
    (ops.Graph, "_create_op_internal", _wrap_create),
    (atomic_function, "from_func_graph", _wrap_from_func_graph),
    (atomic_function.AtomicFunction, "call_flat", _wrap_call),
    (session.BaseSession, "_do_run", _wrap_run),
    (pywrap_tfe, "TFE_Py_FastPathExecute", _wrap_execute),
    (pywrap_tfe, "TFE_Py_RecordGradient", _wrap_record_gradient),
    (record, "record_operation", _wrap_record_operation),
    (imperative_grad, "imperative_grad", _wrap_compute),
    (gradients_util, "_GradientsHelper", _wrap_compute),
    (gradients_util, "_MaybeCompile", _wrap_compile),
    (distribute_lib.ReplicaContext, "merge_call", _wrap_merge_call),
)


def install(user: object) -> None:
    """Record owners while there is a user. Overlapping blocks share one installation."""
    global _patches
    with _users_lock:
        first = not _users
        _users.add(user)
        if first:
            _patches = Patches()
            for owner, name, wrap in _PATCHED:
                if hasattr(owner, name):
                    _patches.replace(owner, name, wrap(getattr(owner, name)))
            pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient)


def remove(user: object) -> None:
    """Remove a user. Without users TensorFlow is unpatched."""
    with _users_lock:
        if user in _users and len(_users) == 1:  # discard the user last: after an interrupt this runs again
            _patches.undo()
            pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
        _users.discard(user)
