"""Owners of TensorFlow operations. An owner is a range: a call of a layer or a traced function, or its backward.

A thread has an owner while it calls a layer. `annot.tf.operation_owners` records the owner of each new operation, and
sets the owner of the backward as the thread's owner while gradients are computed. In graphs,
`annot.tf.library` turns the owners into ranges. In eager mode, this module opens and closes backward ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import control_flow_util

from annot.emit import client
from annot.labels import tag
from annot.labels.tag import Tag
from annot.util.weak_keys import WeakKeys

READS: Final = frozenset({"ReadVariableOp", "Identity", "StopGradient"})
"""Operations whose gradient only passes a tensor on."""
_SMALL: Final = frozenset({"Cast", "ExpandDims", "Pack", "Reshape", "Squeeze", "StridedSlice", "Transpose", "Unpack"})
"""Operations whose gradient the tape may compute long after those of their layer. They do not reopen its range."""


@dataclass(slots=True, eq=False)
class Owner:
    """A range that operations belong to."""

    event: Any
    """An event of `annot.emit.client.event`; None: the operations belong to the range of the parent."""
    grad_event: Any = None
    """The event of the backward range; None: the backward has no range."""
    parent: Owner | None = None
    sizes: Any = field(default=(), kw_only=True)
    """The tensors of a graph with unknown sizes, as `annot.tf.dynamic_sizes.Source`."""
    waits: bool = field(default=False, kw_only=True)
    """Whether the range opens only when all inputs are ready. This is for the update of an optimizer, whose first
    inputs are ready long before the last."""
    graph_id: int = field(init=False)
    """The id of the graph that was current at creation; 0: eager mode."""
    key: Owner = field(init=False)
    """The owner of the same range before an enclosing range ended."""
    sized: Owner = field(init=False)
    """The owner with the `sizes` that the label leaves open."""
    backward_of: Owner | None = field(default=None, init=False)
    _backward: tuple[GradientPass, Owner] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.graph_id = 0 if tf.executing_eagerly() else id(tf.compat.v1.get_default_graph())
        self.key = self.sized = self

    def outside(self, ended: Owner) -> Owner:
        """Return the owner of the same range after the enclosing owner `ended` has ended."""
        parent = self.parent
        if parent is not None:
            parent = parent.parent if parent is ended else parent.outside(ended)
        return self._copy_under(parent)

    def _copy_under(self, parent: Owner | None) -> Owner:
        made = copy(self)
        made.parent, made._backward = parent, None
        return made

    def backward(self, gradient_pass: GradientPass) -> Owner:
        """Return the owner of the backward of this owner in one computation of gradients."""
        outer, parent = gradient_pass.outer, self.parent
        around = [*outer.lineage()] if outer else []
        for owner in around:
            if owner.backward_of is self:  # a custom gradient that computes gradients itself
                return owner
        if self._backward is None or self._backward[0] is not gradient_pass:
            if parent is None or parent.graph_id != self.graph_id or parent in around:  # the latter: recomputed layers
                parent = outer
            else:
                parent = parent.backward(gradient_pass)
            made = Owner(self.grad_event, self.grad_event, parent)
            made.sized, made.backward_of = self.sized, self
            if self.key is not self:
                made.key = self.key.backward(gradient_pass).key
            self._backward = gradient_pass, made
        return self._backward[1]

    def again(self, parent: Owner | None) -> Owner:
        """Return the owner for another call of the function whose graph contains this owner."""
        made = self._copy_under(parent)
        made.key, made.sized, made.sizes = made, made, self.sized.sizes
        return made

    @staticmethod
    def joined(owners: Sequence[Owner]) -> Owner:
        """Return a joint owner for an operation that TensorFlow fused from operations of several owners."""
        tags = [shown for owner in owners if (shown := owner.tag()) is not None]
        if len(tags) < len(owners):
            return owners[-1]
        layer = tag.FUSED.join(dict.fromkeys(label.layer for label in tags))
        module = tag.FUSED.join(dict.fromkeys(label.module for label in tags))
        # The first operation does the main work, such as a convolution before an activation.
        arguments = tuple({"base": tags[0].module, **dict(tags[0].arguments)}.items())
        shown = replace(tags[0], layer=layer, module=module, arguments=arguments)
        parent = innermost([[outer for outer in owner.chain() if outer not in owners] for owner in owners])
        made = Owner(client.event(tag.format(shown), category=shown.phase), None, parent)
        made.sized = owners[0].sized
        return made

    def tag(self) -> Tag | None:
        """Return the tag of the range of a layer; None for other ranges."""
        shown = tag.parse(self.event.text) if self.event is not None and self.event.domain == tag.DOMAIN else None
        return shown if shown is not None and shown.module else None

    def chain(self) -> list[Owner]:
        """Return the owners with a range, from the outermost to this one."""
        return [owner.key for owner in self.lineage() if owner.event is not None][::-1]

    def lineage(self) -> Iterator[Owner]:
        """Yield this owner and its ancestors."""
        owner: Owner | None = self
        while owner is not None:
            yield owner
            owner = owner.parent


def innermost(chains: Sequence[Sequence[Owner]]) -> Owner | None:
    """Return the innermost owner that all chains contain."""
    common = [owner for owner in chains[0] if all(owner in chain for chain in chains)] if chains else []
    return common[-1] if common else None


class GradientPass:
    """One computation of gradients, with its open backward ranges in eager mode; `outer` is the thread's owner."""

    def __init__(self, outer: Owner | None) -> None:
        self.outer = outer
        self._open: list[Owner] = []
        self._closed: set[Owner] = set()
        self._depth = client.depth()

    def enter(self, owner: Owner, operation: str) -> None:
        """Open the ranges of an owner and close all others, before the gradient of an operation is computed."""
        if operation in READS or (operation in _SMALL and owner in self._closed):
            return
        outer = self.outer.chain() if self.outer else []
        chain = owner.chain()[len(outer) :]
        common = 0
        while common < min(len(chain), len(self._open)) and chain[common] is self._open[common]:
            common += 1
        self.close(common)
        for inner in chain[common:]:
            self._open.append(inner)  # before the push, because an interrupt may come in between
            client.push(inner.event)

    def close(self, keep: int = 0) -> None:
        """Close the open ranges except the first `keep`."""
        if len(self._open) > keep:
            client.pop_to(self._depth + keep)
            self._closed.update(self._open[keep:])
            del self._open[keep:]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.owner: Owner | None = None
        self.gradient_pass: GradientPass | None = None
        self.running: Any = None
        """The graph of the function or session that this thread runs. TensorFlow may optimize it during the run."""
        self.is_cut = False
        """Whether the session is fed a tensor that is not a placeholder, so that a part of its graph does not run."""
        self.config: Any = None
        """The ConfigProto of the session that this thread runs; None: no session."""
        self.started: dict[Owner | None, WeakKeys[Any, Owner]] = {}


thread: Final = _Thread()
"""The state of the current thread, also for `annot.tf.operation_owners`."""
_EAGER: Final = type("_Eager", (), {})()


interrupts: Final[list[BaseException]] = []
"""Exceptions such as KeyboardInterrupt that came while TensorFlow called annot from C++, where none may propagate."""


def current() -> Owner | None:
    """Return the owner of new operations of this thread."""
    owner = thread.owner
    if thread.started:
        started = thread.started.get(owner)
        owner = owner if started is None else started.get(_scope(), owner)
    # Operations traced inside an eager range also run later, outside of that range.
    return None if owner is not None and not owner.graph_id and not tf.executing_eagerly() else owner


def _scope() -> Any:
    """Return the current graph, or the object that stands for eager mode."""
    return _EAGER if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def start(owner: Owner) -> Callable[[], None]:
    """Set the owner of this thread in the current graph and layer call; return the function that ends it.

    If that function is never called, the owner ends with the graph or with the enclosing layer call.
    """
    around, scope = thread.owner, _scope()
    started = thread.started.setdefault(around, WeakKeys())
    started[scope] = owner

    def end() -> None:
        inner = started.get(scope)
        if inner is owner:
            del started[scope]
            if owner.parent is not None and owner.parent is not around:
                started[scope] = owner.parent
        elif inner is not None:
            started[scope] = inner.outside(owner)
        if not started and thread.started.get(around) is started:
            del thread.started[around]

    return end


def in_backward() -> bool:
    """Return whether this thread computes the gradients of an operation with an owner."""
    owner = current()
    return owner is not None and any(ancestor.backward_of for ancestor in owner.lineage())


@contextmanager
def owned(owner: Owner | None) -> Iterator[None]:
    """Set the owner of this thread inside the block."""
    before = thread.owner
    try:
        thread.owner = owner
        yield
    finally:
        thread.owner = before


def gradients_first(event: Any) -> AbstractContextManager[None]:
    """Return a context manager for an optimizer update. Its range opens when all gradients are computed."""
    return owned(Owner(event, parent=current(), waits=True))


def call(owner: Owner, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with an owner for its operations; in eager mode, inside the range of the owner."""
    before = thread.owner
    try:
        thread.owner = owner
        if owner.event is None or not tf.executing_eagerly():
            return function(*args, **kwargs)
        return client.inside(owner.event, function, args, kwargs)
    finally:
        thread.owner = before


def may_be_taped() -> bool:
    """Return whether a gradient tape may record the next operations."""
    return bool(record.could_possibly_record())


def in_xla() -> bool:
    """Return whether the current graph is traced for compilation by XLA."""
    return not tf.executing_eagerly() and bool(control_flow_util.GraphOrParentsInXlaContext(_scope()))
