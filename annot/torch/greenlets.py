"""Greenlets: several calls that take turns on one thread, as under gevent and in SQLAlchemy's asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import wrapt

from annot import native
from annot.weak import WeakKeys

__all__ = ["are_there", "own_current"]

T = TypeVar("T")

_getcurrent: Callable[[], Any] | None = None


def are_there() -> bool:
    """Return whether somebody has imported greenlet."""
    return _getcurrent is not None


def own_current(notes: type[T]) -> type[T]:
    """Return a class of notes whose attribute `current` is one per greenlet; `notes` where nobody imports greenlet."""
    if _getcurrent is None:
        return notes
    running = _getcurrent

    class GreenletNotes(notes):  # type: ignore[valid-type,misc]
        __slots__ = ("calls",)

        def __init__(self) -> None:
            self.calls: WeakKeys[Any, Any] = WeakKeys()
            super().__init__()

        @property
        def current(self) -> Any:
            return self.calls.get(running())

        @current.setter
        def current(self, call: Any) -> None:
            self.calls[running()] = call

    return GreenletNotes


def _follow(greenlet: Any) -> None:
    global _getcurrent
    _getcurrent = greenlet.getcurrent
    fast = native.fast()
    if fast is not None:
        fast.watch_greenlets(greenlet.getcurrent)


wrapt.register_post_import_hook(_follow, "greenlet")
