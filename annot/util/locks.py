"""Locks that are released in a forked child process, even if another thread held them at the fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from annot.util.weak_keys import WeakKeys

_all: Final[WeakKeys[Any, None]] = WeakKeys()


def fork_safe(kind: Callable[[], Any] = threading.Lock) -> Any:
    """Return a new lock that every forked child finds released.

    The thread that held the lock does not exist in the child, so nothing else could release it.

    Args:
        kind: `threading.Lock` or `threading.RLock`.

    Example:
        >>> with fork_safe():
        ...     pass
    """
    lock = kind()
    _all[lock] = None
    return lock


def _release_all() -> None:
    for lock in _all:
        lock._at_fork_reinit()  # private in CPython; its own `threading` and `logging` use it since 3.9


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
