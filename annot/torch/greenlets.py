"""Support for greenlets: calls that take turns on one thread, as in gevent and in SQLAlchemy's asyncio extension."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import wrapt

from annot import native
from annot.util.weak_keys import WeakKeys

T = TypeVar("T")

_greenlet: Any = None
_thread: Final = threading.local()

on_switch: Callable[[], object] | None = None
"""Callback for each switch of a thread to another greenlet, while a block is open."""


def imported() -> bool:
    """Return whether the program has imported greenlet."""
    return _greenlet is not None


def own_current(notes: type[T]) -> type[T]:
    """Return a subclass of `notes` with one `current` per greenlet, or `notes` itself if greenlet is not imported."""
    if _greenlet is None:
        return notes
    running = _greenlet.getcurrent

    class GreenletNotes(notes):  # type: ignore[valid-type,misc]
        __slots__ = ("calls",)

        def __init__(self) -> None:
            self.calls: WeakKeys[Any, Any] = WeakKeys()
            super().__init__()
            follow_switches()

        @property
        def current(self) -> Any:
            return self.calls.get(running())

        @current.setter
        def current(self, call: Any) -> None:
            self.calls[running()] = call

    return GreenletNotes


def follow_switches() -> None:
    """Call `on_switch` after each switch of this thread, and then the tracer that was set before."""
    if _greenlet is None or getattr(_thread, "tracers", None) is not None:
        return
    before = _greenlet.gettrace()

    def switched(event: str, greenlets: Any) -> None:
        if on_switch is not None:
            on_switch()
        if before is not None:
            before(event, greenlets)

    _thread.tracers = switched, before
    _greenlet.settrace(switched)


def watch(note: Callable[[], object] | None) -> None:
    """Set the callback for switches, or None to remove it. On other threads the tracer stays set, but does nothing."""
    global on_switch
    on_switch = note
    if note is not None:
        follow_switches()
        return
    switched, before = getattr(_thread, "tracers", None) or (None, None)
    if switched is not None and _greenlet.gettrace() is switched:
        _greenlet.settrace(before)
        _thread.tracers = None


def _follow(greenlet: Any) -> None:
    global _greenlet
    _greenlet = greenlet
    fast = native.emitter()
    if fast is not None:
        fast.watch_greenlets(greenlet.getcurrent)
    if on_switch is not None:
        follow_switches()


wrapt.register_post_import_hook(_follow, "greenlet")
