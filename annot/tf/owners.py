"""The range that each TensorFlow operation belongs to: a call of a layer or of a traced function, or its backward.

Nothing is added to what a program computes. While a layer is called, the thread has an owner:

- an operation of a graph is noted with the owner of the thread that creates it, by its name;
- the gradient tape keeps the type of an operation as the string that it was given. A string that carries the owner
  comes back when the tape asks for the gradient, in eager mode and in graphs, and says whose backward this is.

In graphs, `annot.tf.plugin` turns the owners into ranges when TensorFlow has optimized the graph. In eager mode the
backward ranges open and close here, around the functions that compute gradients.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import session
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import backprop, imperative_grad, record
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util, gradients_util

from annot import emit, tag
from annot.patches import Patches
from annot.tag import Tag

__all__ = [
    "Made",
    "Owner",
    "current",
    "graphs",
    "in_backward",
    "in_xla",
    "install",
    "is_watched",
    "may_be_taped",
    "output_types",
    "owned",
    "pushed",
    "running",
    "start",
]

_READS: Final = frozenset({"ReadVariableOp", "Identity", "StopGradient"})
"""Operations whose gradients pass a tensor on."""
_SMALL: Final = frozenset({"Cast", "ExpandDims", "Pack", "Reshape", "Squeeze", "StridedSlice", "Transpose", "Unpack"})
"""Operations whose gradients the tape may compute long after the rest of their layer; these open no second range."""


class Owner:
    """A range that operations belong to.

    Args:
        event: of `annot.emit.event`; None: operations belong to the enclosing owner's range alone.
        grad_event: of the range of the backward; None for none.
        parent: the enclosing owner.
        tag: what `event` says, where it is a range of a layer.
        grad_tag: the same of `grad_event`.
        sizes: the tensors of a graph whose sizes the texts leave open, as `annot.tf.sizes.Source`.
        waits: whether the range opens when all inputs are there, for the update of an optimizer, whose first inputs
            are there long before the last.
    """

    __slots__ = (
        "_backward", "backward_of", "event", "grad_event", "grad_tag", "key", "parent", "place", "sized", "sizes",
        "tag", "waits",
    )  # fmt: skip

    def __init__(
        self,
        event: Any,
        grad_event: Any = None,
        parent: Owner | None = None,
        *,
        tag: Tag | None = None,
        grad_tag: Tag | None = None,
        sizes: Any = (),
        waits: bool = False,
    ) -> None:
        self.event, self.grad_event, self.parent = event, grad_event, parent
        self.tag, self.grad_tag, self.sizes, self.waits = tag, grad_tag, sizes, waits
        self.place = 0 if tf.executing_eagerly() else id(tf.compat.v1.get_default_graph())
        """Which graph it was made for; 0: eager mode."""
        self.key: Owner = self
        """The owner of the same range before a range around it has ended."""
        self.sized: Owner = self
        """The owner whose `sizes` the text leaves open."""
        self.backward_of: Owner | None = None
        self._backward: tuple[Pass, Owner] | None = None

    def outside(self, ended: Owner) -> Owner:
        """Return the owner of the same range, after a range around it has ended."""
        parent = self.parent
        if parent is not None:
            parent = parent.parent if parent is ended else parent.outside(ended)
        made = Owner(self.event, self.grad_event, parent, tag=self.tag, grad_tag=self.grad_tag)
        made.key, made.sized = self.key, self.sized
        return made

    def backward(self, through: Pass) -> Owner:
        """Return the owner of this one's backward in one computation of gradients."""
        around = through.outer
        while around is not None:
            if around.backward_of is self:  # a gradient of its own, that computes gradients
                return around
            around = around.parent
        if self._backward is None or self._backward[0] is not through:
            whole = self.parent is None or through.is_inside(self.parent)
            parent = through.outer if whole or self.parent is None else self.parent.backward(through)
            made = Owner(self.grad_event, self.grad_event, parent, tag=self.grad_tag, grad_tag=self.grad_tag)
            made.sized, made.backward_of = self.sized, self
            if self.key is not self:
                made.key = self.key.backward(through).key
            self._backward = through, made
        return self._backward[1]

    def again(self, parent: Owner | None) -> Owner:
        """Return the owner of another call of the function of a graph that this one is in."""
        made = Owner(self.event, self.grad_event, parent, tag=self.tag, grad_tag=self.grad_tag, sizes=self.sized.sizes)
        made.backward_of, made.waits, made.place = self.backward_of, self.waits, self.place
        return made

    @staticmethod
    def joined(owners: Sequence[Owner]) -> Owner:
        """Return the owner of an operation that TensorFlow has fused from those of several, under their joined name."""
        tags = [owner.tag for owner in owners if owner.tag is not None]
        if len(tags) < len(owners):
            return owners[-1]
        layer = tag.FUSED.join(dict.fromkeys(one.layer for one in tags))
        module = tag.FUSED.join(dict.fromkeys(one.module for one in tags))
        shown = replace(tags[0], layer=layer, module=module, arguments=())
        made = Owner(emit.event(tag.format(shown), category=shown.phase), None, _common_parent(owners), tag=shown)
        made.sized = owners[0].sized
        return made

    def chain(self) -> list[Owner]:
        """Return the owners that have a range, from the outermost to this one."""
        found: list[Owner] = []
        owner: Owner | None = self
        while owner is not None:
            if owner.event is not None:
                found.append(owner.key)
            owner = owner.parent
        return found[::-1]


def _common_parent(owners: Sequence[Owner]) -> Owner | None:
    chains = [owner.chain() for owner in owners]
    common = [one for one in chains[0] if one not in owners and all(one in chain for chain in chains)]
    return common[-1] if common else None


class Pass:
    """One computation of gradients, and in eager mode the backward ranges that it has open."""

    __slots__ = ("_closed", "_depth", "_open", "outer")

    def __init__(self, outer: Owner | None) -> None:
        self.outer = outer
        self._open: list[Owner] = []
        self._closed: set[Owner] = set()
        self._depth = emit.depth()

    def is_inside(self, owner: Owner) -> bool:
        """Return whether the gradients are computed inside an owner, as where a layer is recomputed."""
        outer = self.outer
        while outer is not None and outer is not owner:
            outer = outer.parent
        return outer is not None

    def enter(self, owner: Owner, operation: str) -> None:
        """Have the ranges of this owner open and no others, before the gradient of an operation is computed."""
        if operation in _READS or (operation in _SMALL and owner in self._closed):
            return
        outer = self.outer.chain() if self.outer else []
        chain = owner.chain()[len(outer) :]
        common = 0
        while common < min(len(chain), len(self._open)) and chain[common] is self._open[common]:
            common += 1
        self.close(common)
        for one in chain[common:]:
            emit.push(one.event)
            self._open.append(one)

    def close(self, keep: int = 0) -> None:
        """Close the ranges that are open, except the first ones."""
        if len(self._open) > keep:
            emit.pop_to(self._depth + keep)
            self._closed.update(self._open[keep:])
            del self._open[keep:]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.owner: Owner | None = None
        self.through: Pass | None = None
        self.running: Any = None
        self.started: dict[Owner | None, WeakKeyDictionary[Any, Owner]] = {}


_thread: Final = _Thread()
_EAGER: Final = type("_Eager", (), {})()


def current() -> Owner | None:
    """Return the owner of what this thread does."""
    owner = _thread.owner
    if _thread.started:
        started = _thread.started.get(owner)
        owner = owner if started is None else started.get(_place(), owner)
    # What is traced inside a range of eager mode runs later too, and elsewhere.
    return None if owner is not None and not owner.place and not tf.executing_eagerly() else owner


def _place() -> Any:
    """Return what a range that `start` has opened lies in: the current graph, or eager mode."""
    return _EAGER if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def start(owner: Owner) -> Callable[[], None]:
    """Make an owner the one of this thread, where it is called from and not longer; return what ends it.

    A start that nothing ends, ends with the graph, or with the call of the layer that it lies in.
    """
    around, place = _thread.owner, _place()
    started = _thread.started.setdefault(around, WeakKeyDictionary())
    started[place] = owner

    def end() -> None:
        inner = started.get(place)
        if inner is owner:
            del started[place]
            if owner.parent is not None and owner.parent is not around:
                started[place] = owner.parent
        elif inner is not None:
            started[place] = inner.outside(owner)
        if not started and _thread.started.get(around) is started:
            del _thread.started[around]

    return end


def in_backward() -> bool:
    """Return whether this thread computes gradients of something that has ranges."""
    owner = current()
    while owner is not None and owner.backward_of is None:
        owner = owner.parent
    return owner is not None


@contextmanager
def owned(owner: Owner | None) -> Iterator[None]:
    """Make an owner the one of this thread inside the block."""
    before, _thread.owner = _thread.owner, owner
    try:
        yield
    finally:
        _thread.owner = before


def may_be_taped() -> bool:
    """Return whether there is a tape that may record what comes next."""
    return bool(record.could_possibly_record())


@contextmanager
def pushed(event: Any) -> Iterator[None]:
    """Have this thread open a range, if there is an event."""
    if event is None:
        yield
        return
    emit.push(event)
    try:
        yield
    finally:
        emit.pop()


def is_watched(tensor: Any) -> bool:
    """Return whether a tape records what is done with `tensor`."""
    return bool(record.should_record_backprop([tensor]))


def in_xla() -> bool:
    """Return whether the current graph is traced for XLA, which compiles it into kernels of its own."""
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


# ---------------------------------------------------------------- operations of graphs


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
        self, owner: Owner | None, kind: str, inputs: tuple[str, ...], for_gradient: bool = False, place: int = 0
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
    made[operation.name] = Made(current(), operation.type, inputs, _thread.through is not None, id(graph))


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
    return _thread.running


def _calling(original: Any) -> Any:
    """A function that was traced is called, or a session runs."""

    @functools.wraps(original)
    def call(caller: Any, *args: Any, **kwargs: Any) -> Any:
        before, _thread.running = _thread.running, caller.graph
        try:
            return original(caller, *args, **kwargs)
        finally:
            _thread.running = before

    return call


# ---------------------------------------------------------------- gradients


class _Owned(str):
    """The type of an operation, with its owner."""

    owner: Owner


def _type_with_owner(operation: str) -> str:
    owner = current()
    if owner is None:
        return operation
    named = _Owned(operation)
    named.owner = owner
    return named


def _executing(original: Any) -> Any:
    def execute(context: Any, operation: str, *args: Any) -> Any:
        if _thread.owner is not None or _thread.started:
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


def _in_backward_of(owner: Owner | None, operation: str, compute: Callable[[], Any]) -> Any:
    through = _thread.through
    if owner is None or through is None or not _patches.live:
        return compute()
    backward = owner.backward(through)
    if tf.executing_eagerly():
        through.enter(backward, operation)
    with owned(backward):
        return compute()


def _recording_operation(original: Any) -> Any:
    """Custom gradients and functions come with a function of their own for the backward."""

    @functools.wraps(original)
    def record_operation(
        op_type: Any, output_tensors: Any, input_tensors: Any, backward_function: Any, forward_function: Any = None
    ) -> Any:
        owner, function = current(), backward_function
        if owner is not None and op_type not in _READS and callable(function):
            backward_function = functools.partial(_own_backward, owner, str(op_type), function)
        return original(op_type, output_tensors, input_tensors, backward_function, forward_function)

    return record_operation


def _own_backward(owner: Owner, operation: str, function: Callable[..., Any], *grads: Any) -> Any:
    return _in_backward_of(owner, operation, lambda: function(*grads))


def _computing(original: Any) -> Any:
    """A tape, or TensorFlow's symbolic differentiation, computes gradients."""

    @functools.wraps(original)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if not _patches.live:
            return original(*args, **kwargs)
        outer, owner = _thread.through, _thread.owner
        _thread.through = through = Pass(current())
        try:
            return original(*args, **kwargs)
        finally:
            through.close()
            _thread.through, _thread.owner = outer, owner

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
        owner = current()
        if owner is None:
            return original(context, function, args, kwargs)

        @functools.wraps(function)
        def merged(*args: Any, **kwargs: Any) -> Any:
            with owned(owner):
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
