"""Ranges of eager mode: Python opens and closes them, those of the backward work from the gradient tape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from annot import emit

try:
    from tensorflow.python.eager import record
except ImportError:  # TensorFlow 2.12 has it among the tapes
    from tensorflow.python.eager import tape as record

__all__ = ["Span", "close_leftovers", "is_watched", "may_be_taped"]


class Span:
    """One range of eager mode, and the backward ranges that belong to it.

    The backward range opens when the tape brings the first gradient of an output, and closes when it has brought
    those of all gated inputs, or is gone: the gradient of a weight that the work did not use never comes. While a
    persistent tape is kept, it closes when the next range begins on this thread.

    Args:
        event: of `annot.emit.event`; None for no range.
        grad_event: the range of the backward work; None for none.
    """

    def __init__(self, event: Any, grad_event: Any | None) -> None:
        _close_own_leftovers()
        self._started: Any = None if event is None else emit.start(event)
        self._grad_event = grad_event
        self._backward: Any = None
        self._gates = 0
        self._tape_end: _TapeEnd | None = _TapeEnd(self.abandon_backward)
        self._missing: set[int] = set()

    def gate_input(self, tensor: Any) -> Any:
        """Return `tensor` such that its gradient is one that the backward range waits for."""
        if self._grad_event is None or not is_watched(tensor):
            return tensor
        number = self._gates
        self._gates += 1
        tape_end = self._tape_end
        return _identity(tensor, lambda: self._close_backward(number, tape_end))

    def finish(self, tensors: Sequence[Any]) -> list[Any]:
        """Close the range; return the outputs such that their gradients open the backward range."""
        if self._tape_end is None:
            return list(tensors)
        self.abandon()
        self._tape_end = None
        if not self._gates:
            return list(tensors)
        return [_identity(tensor, self._open_backward) if is_watched(tensor) else tensor for tensor in tensors]

    def abandon(self) -> None:
        """Close the range, for the work has failed."""
        if self._started is not None:
            emit.end(self._started)
            self._started = None

    def abandon_backward(self) -> bool:
        """Close the backward range if it is open; return whether it was."""
        backward, self._backward = self._backward, None
        if backward is not None:
            emit.end(backward)
            _leftovers().discard(self)
        return backward is not None

    def _open_backward(self) -> None:
        if self._backward is None:
            self._missing = set(range(self._gates))
            self._backward = emit.start(self._grad_event)
            _leftovers().add(self)

    def _close_backward(self, number: int, _tape_end: object) -> None:
        self._missing.discard(number)
        if not self._missing:
            self.abandon_backward()


class _TapeEnd:
    """Only what a tape keeps for the gradients of one span's inputs refers to it, so it goes with that."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def __del__(self) -> None:
        self._then()


def is_watched(tensor: Any) -> bool:
    """Return whether a tape records what is done with `tensor`."""
    return bool(record.should_record_backprop([tensor]))


def may_be_taped() -> bool:
    """Return whether a tape is there that might record what comes next."""
    return bool(record.could_possibly_record())


def close_leftovers() -> int:
    """Close the backward ranges that are open on any thread; return how many."""
    return sum(span.abandon_backward() for spans in tuple(_all_leftovers) for span in tuple(spans))


def _identity(tensor: Any, when_gradient_comes: Callable[[], None]) -> Any:
    """Return a tensor of the same value and memory; calls back when the tape brings its gradient, and keeps it."""
    with record.stop_recording():
        same = tf.identity(tensor)

    def backward(grad: Any) -> list[Any]:
        if tf.executing_eagerly():  # jacobian and vectorized_map trace this into a graph
            when_gradient_comes()
        return [grad]

    record.record_operation("AnnotGate", [same], [tensor], backward)
    return same


_thread = threading.local()
_all_leftovers: list[set[Span]] = []


def _leftovers() -> set[Span]:
    """Return the spans whose backward range this thread has open."""
    try:
        return _thread.spans  # type: ignore[no-any-return]
    except AttributeError:
        spans: set[Span] = set()
        _thread.spans = spans
        _all_leftovers.append(spans)
        return spans


def _close_own_leftovers() -> None:
    for span in tuple(_leftovers()):
        span.abandon_backward()
