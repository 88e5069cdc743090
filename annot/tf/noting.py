"""Notes the owner of each operation that TensorFlow creates or records, and nothing else.

Nothing is added to what a program computes:

- an operation of a graph is noted with the owner of the thread that creates it, by its name;
- the gradient tape keeps the type of an operation as the string that it was given. A string that carries the owner
  comes back when the tape asks for the gradient, in eager mode and in graphs, and says whose backward this is.
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

from annot import own
from annot.locks import fork_safe
from annot.patches import Patches
from annot.tf import owners
from annot.weak import WeakKeys

__all__ = ["Made", "Traced", "graphs", "install", "remove"]


@dataclass(slots=True)
class Made:
    """An operation as it was created.

    Args:
        owner: its owner; None for none.
        kind: its type.
        inputs: names of its input tensors.
        for_gradient: whether a computation of gradients has created it.
    """

    owner: owners.Owner | None
    kind: str
    inputs: tuple[str, ...]
    for_gradient: bool = False


class Traced:
    """The operations of a graph.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: Any) -> None:
        self.operations: dict[str, Made] = {}
        """By name."""
        self.place = id(graph)
        """As in `Owner`."""
        self._of_kinds: tuple[int, frozenset[str]] = (0, frozenset())
        self._graph = ref(graph)

    def of_kinds(self, kinds: frozenset[str]) -> frozenset[str]:
        """Return the names of the operations of these types, always the same ones; kept while no operation comes."""
        count = len(self.operations)
        if self._of_kinds[0] != count:
            self._of_kinds = (
                count,
                frozenset(name for name, made in list(self.operations.items()) if made.kind in kinds),
            )
        return self._of_kinds[1]

    def called(self, name: str) -> dict[str, Traced | None]:
        """Return the graphs that an operation calls, by branch; None for one that is not known.

        Args:
            name: of the operation.

        Returns:
            A function has one branch, the empty text; a `Case` has ``0``, ``1`` and so on.
        """
        graph: Any = self._graph()
        attributes = graph.get_operation_by_name(name).node_def.attr  # TensorFlow changes them for gradients
        branches = {key: attributes[name].func for key, name in _BRANCHES.items() if name in attributes}
        if "branches" in attributes:
            branches = {str(i): one for i, one in enumerate(attributes["branches"].list.func)}
        found = {key: _functions.get(one.name, lambda: None)() for key, one in branches.items()}
        return {key: None if graph is None else graphs.get(graph) for key, graph in found.items()}


_BRANCHES: Final = {"": "f", "then": "then_branch", "else": "else_branch", "body": "body", "cond": "cond"}
"""The attributes of operations that name the functions they call."""
_functions: Final[dict[str, ref[Any]]] = {}
"""The graph of each function."""
graphs: Final[WeakKeys[Any, Traced]] = WeakKeys()
"""The operations of each graph; later graphs come last."""
_graphs_lock: Final = fork_safe()


def _note(operation: Any) -> None:
    graph = operation.graph
    made = graphs.get(graph)
    if made is None:
        with _graphs_lock:
            made = graphs.setdefault(graph, Traced(graph))
    inputs = tuple([tensor.name for tensor in operation.inputs])
    for_gradient = owners.thread.through is not None
    made.operations[operation.name] = Made(owners.current(), operation.type, inputs, for_gradient)


def _creating(original: Any) -> Any:
    @functools.wraps(original)
    def create(graph: Any, *args: Any, **kwargs: Any) -> Any:
        operation = original(graph, *args, **kwargs)
        if _patches.live:
            _note(operation)
        return operation

    return create


def _registering(original: Any) -> Any:
    """A graph becomes a function."""

    @functools.wraps(original)
    def from_func_graph(name: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        key = name.decode() if isinstance(name, bytes) else name
        _functions[key] = ref(graph, functools.partial(_functions.pop, key))  # in C, as in `WeakKeys`
        return original(name, graph, *args, **kwargs)

    return from_func_graph


def _calling(original: Any) -> Any:
    """A function that was traced is called."""

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


def _running(original: Any) -> Any:
    """A session of TensorFlow 1 runs."""

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
    kind = str(operation)
    return _in_backward_of(operation.owner, kind, backprop._gradient_function, kind, *args)


def _in_backward_of(owner: owners.Owner | None, operation: str, compute: Callable[..., Any], *args: Any) -> Any:
    through = owners.thread.through
    if owner is None or through is None or not _patches.live:
        return compute(*args)
    backward = owner.backward(through)
    if tf.executing_eagerly():
        through.enter(backward, operation)
    with owners.owned(backward):
        return compute(*args)


def _recording_operation(original: Any) -> Any:
    """Custom gradients and functions come with a function of their own for the backward."""

    @functools.wraps(original)
    def record_operation(
        op_type: Any, output_tensors: Any, input_tensors: Any, backward_function: Any, forward_function: Any = None
    ) -> Any:
        owner = owners.current()
        if owner is not None and op_type not in owners.READS and callable(backward_function):
            backward_function = functools.partial(_in_backward_of, owner, str(op_type), backward_function)
        return original(op_type, output_tensors, input_tensors, backward_function, forward_function)

    return record_operation


def _computing(original: Any) -> Any:
    """A tape, or TensorFlow's symbolic differentiation, computes gradients."""

    @functools.wraps(original)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if not _patches.live:
            return original(*args, **kwargs)
        outer, owner = owners.thread.through, owners.thread.owner
        through = owners.Pass(owners.current())
        try:
            owners.thread.through = through
            return original(*args, **kwargs)
        finally:
            owners.thread.through, owners.thread.owner = outer, owner
            own.to_the_end(through.close)

    return compute


def _differentiating(original: Any) -> Any:
    @functools.wraps(original)
    def compile_gradient(scope: Any, operation: Any, function: Any, gradient: Any) -> Any:
        graph = graphs.get(operation.graph)
        made = graph.operations.get(operation.name) if graph else None
        owner = made.owner if made else None
        return _in_backward_of(owner, operation.type, original, scope, operation, function, gradient)

    return compile_gradient


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
_users: Final[set[object]] = set()
_users_lock: Final = fork_safe()

_PATCHED: Final = (
    (ops.Graph, "_create_op_internal", _creating),
    (atomic_function, "from_func_graph", _registering),
    (atomic_function.AtomicFunction, "call_flat", _calling),
    (session.BaseSession, "_do_run", _running),
    (pywrap_tfe, "TFE_Py_FastPathExecute", _executing),
    (pywrap_tfe, "TFE_Py_RecordGradient", _recording),
    (record, "record_operation", _recording_operation),
    (imperative_grad, "imperative_grad", _computing),
    (gradients_util, "_GradientsHelper", _computing),
    (gradients_util, "_MaybeCompile", _differentiating),
    (distribute_lib.ReplicaContext, "merge_call", _merging),
)


def install(user: object) -> None:
    """Note owners from now on, as long as there is a user: blocks that overlap share one installation."""
    global _patches
    with _users_lock:
        first = not _users
        _users.add(user)
        if first:
            _patches = Patches()
            for place, name, make in _PATCHED:
                if hasattr(place, name):
                    _patches.replace(place, name, make(getattr(place, name)))
            pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient)


def remove(user: object) -> None:
    """Note owners for this user no more; with the last one TensorFlow is as it was before."""
    with _users_lock:
        if user in _users and len(_users) == 1:  # the user goes last: after an interrupt, this runs again
            _patches.undo()
            pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
        _users.discard(user)
