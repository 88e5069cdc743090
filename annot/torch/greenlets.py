"""Greenlets: several calls that take turns on one thread, as under gevent and in SQLAlchemy's asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import wrapt

from annot import native
from annot.weak import WeakKeys

__all__ = ["are_there", "follow_switches", "own_current", "watch"]

T = TypeVar("T")

_greenlet: Any = None
_thread: Final = threading.local()

on_switch: Callable[[], object] | None = None
"""What is called when a thread goes on with another greenlet, while a block is open."""


def are_there() -> bool:
    """Return whether somebody has imported greenlet."""
    return _greenlet is not None


def own_current(notes: type[T]) -> type[T]:
    """Return a class of notes whose attribute `current` is one per greenlet; `notes` where nobody imports greenlet."""
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
    """Call `on_switch` after each switch of this thread, and then what traces switches already."""
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
    """Call `note` after each switch from now on; None: nothing. On other threads a tracer stays that does nothing."""
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
    fast = native.fast()
    if fast is not None:
        fast.watch_greenlets(greenlet.getcurrent)
    if on_switch is not None:
        follow_switches()


wrapt.register_post_import_hook(_follow, "greenlet")
