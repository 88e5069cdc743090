"""Locks that are free in a forked child, also where another thread held them when the process was forked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from annot.weak import WeakKeys

__all__ = ["fork_safe"]

_all: Final[WeakKeys[Any, None]] = WeakKeys()


def fork_safe(kind: Callable[[], Any] = threading.Lock) -> Any:
    """Return a new lock; the thread that held it does not exist in a forked child, and could not let go of it.

    Args:
        kind: `threading.Lock` or `threading.RLock`.

    Example:
        >>> with fork_safe():
        ...     pass
    """
    lock = kind()
    _all[lock] = None
    return lock


def _free_all() -> None:
    for lock in _all:
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
