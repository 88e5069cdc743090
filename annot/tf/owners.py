"""The range that each TensorFlow operation belongs to: a call of a layer or of a traced function, or its backward.

While a layer is called, the thread has an owner. `annot.tf.noting` notes it with each operation that is created, and
makes the owner of its backward the one of the thread while gradients are computed. In graphs, `annot.tf.plugin` turns
the owners into ranges; in eager mode the backward ranges open and close here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import control_flow_util

from annot import emit, tag
from annot.tag import Tag
from annot.weak import WeakKeys

__all__ = [
    "READS",
    "Owner",
    "Pass",
    "call",
    "current",
    "in_backward",
    "in_xla",
    "interrupts",
    "is_watched",
    "may_be_taped",
    "owned",
    "raise_interrupt",
    "start",
    "thread",
]

READS: Final = frozenset({"ReadVariableOp", "Identity", "StopGradient"})
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
        return self._under(parent)

    def _under(self, parent: Owner | None) -> Owner:
        made = copy(self)
        made.parent, made._backward = parent, None
        return made

    def backward(self, through: Pass) -> Owner:
        """Return the owner of this one's backward in one computation of gradients."""
        for around in through.outer.lineage() if through.outer else ():
            if around.backward_of is self:  # a gradient of its own, that computes gradients
                return around
        if self._backward is None or self._backward[0] is not through:
            parent = self.parent
            if parent is None or parent.place != self.place or through.is_inside(parent):
                parent = through.outer
            else:
                parent = parent.backward(through)
            made = Owner(self.grad_event, self.grad_event, parent, tag=self.grad_tag, grad_tag=self.grad_tag)
            made.sized, made.backward_of = self.sized, self
            if self.key is not self:
                made.key = self.key.backward(through).key
            self._backward = through, made
        return self._backward[1]

    def again(self, parent: Owner | None) -> Owner:
        """Return the owner of another call of the function of a graph that this one is in."""
        made = self._under(parent)
        made.key, made.sized, made.sizes = made, made, self.sized.sizes
        return made

    @staticmethod
    def joined(owners: Sequence[Owner]) -> Owner:
        """Return the owner of an operation that TensorFlow has fused from those of several, under their joined name."""
        tags = [owner.tag for owner in owners if owner.tag is not None]
        if len(tags) < len(owners):
            return owners[-1]
        layer = tag.FUSED.join(dict.fromkeys(one.layer for one in tags))
        module = tag.FUSED.join(dict.fromkeys(one.module for one in tags))
        # The first one does the work that counts, as a convolution before an activation.
        arguments = tuple({"base": tags[0].module, **dict(tags[0].arguments)}.items())
        shown = replace(tags[0], layer=layer, module=module, arguments=arguments)
        made = Owner(emit.event(tag.format(shown), category=shown.phase), None, _common_parent(owners), tag=shown)
        made.sized = owners[0].sized
        return made

    def chain(self) -> list[Owner]:
        """Return the owners that have a range, from the outermost to this one."""
        return [owner.key for owner in self.lineage() if owner.event is not None][::-1]

    def lineage(self) -> Iterator[Owner]:
        """Yield this owner, its parent, and so on."""
        owner: Owner | None = self
        while owner is not None:
            yield owner
            owner = owner.parent


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
        return self.outer is not None and owner in self.outer.lineage()

    def enter(self, owner: Owner, operation: str) -> None:
        """Have the ranges of this owner open and no others, before the gradient of an operation is computed."""
        if operation in READS or (operation in _SMALL and owner in self._closed):
            return
        outer = self.outer.chain() if self.outer else []
        chain = owner.chain()[len(outer) :]
        common = 0
        while common < min(len(chain), len(self._open)) and chain[common] is self._open[common]:
            common += 1
        self.close(common)
        for one in chain[common:]:
            self._open.append(one)  # first, since an interrupt may come in between
            emit.push(one.event)

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
        """The graph whose function or session this thread runs, which TensorFlow may optimize."""
        self.is_cut = False
        """Whether the session is fed a tensor that is not a placeholder, so that a part of its graph does not run."""
        self.started: dict[Owner | None, WeakKeys[Any, Owner]] = {}


thread: Final = _Thread()
"""The state of this thread, for `annot.tf.noting`."""
_EAGER: Final = type("_Eager", (), {})()


interrupts: Final[list[BaseException]] = []
"""What has come from outside while TensorFlow called annot, where no exception may leave it."""


def raise_interrupt() -> None:
    """Raise what could not be raised before."""
    if interrupts:
        raise interrupts.pop()


def current() -> Owner | None:
    """Return the owner of what this thread does."""
    owner = thread.owner
    if thread.started:
        started = thread.started.get(owner)
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
    around, place = thread.owner, _place()
    started = thread.started.setdefault(around, WeakKeys())
    started[place] = owner

    def end() -> None:
        inner = started.get(place)
        if inner is owner:
            del started[place]
            if owner.parent is not None and owner.parent is not around:
                started[place] = owner.parent
        elif inner is not None:
            started[place] = inner.outside(owner)
        if not started and thread.started.get(around) is started:
            del thread.started[around]

    return end


def in_backward() -> bool:
    """Return whether this thread computes gradients of something that has ranges."""
    owner = current()
    return owner is not None and any(one.backward_of for one in owner.lineage())


@contextmanager
def owned(owner: Owner | None) -> Iterator[None]:
    """Make an owner the one of this thread inside the block."""
    before = thread.owner
    try:
        thread.owner = owner
        yield
    finally:
        thread.owner = before


def call(owner: Owner, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function whose operations belong to an owner; in eager mode inside its range."""
    before = thread.owner
    try:
        thread.owner = owner
        if owner.event is None or not tf.executing_eagerly():
            return function(*args, **kwargs)
        return emit.inside(owner.event, function, args, kwargs)
    finally:
        thread.owner = before


def may_be_taped() -> bool:
    """Return whether there is a tape that may record what comes next."""
    return bool(record.could_possibly_record())


def is_watched(tensor: Any) -> bool:
    """Return whether a tape records what is done with `tensor`."""
    return bool(record.should_record_backprop([tensor]))


def in_xla() -> bool:
    """Return whether the current graph is traced for XLA, which compiles it into kernels of its own."""
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )
