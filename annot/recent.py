"""Bounded caches for events: what was used lately stays."""

from __future__ import annotations

import weakref
from typing import Any, Final

from annot.locks import fork_safe

__all__ = ["MAX_RECENT", "Recent"]

MAX_RECENT: Final = 1 << 16
"""How many entries all `Recent` together take up before the unused ones are dropped; about 1 KB each."""

_lock: Final = fork_safe()
# References without callbacks: an exception that a signal handler raises in a callback is lost.
_all: Final[dict[int, weakref.ref[Recent]]] = {}
_sweep_at = 1024
_count = 0


class Recent(dict[Any, Any]):
    """A dict in which entries that have not been used for long are dropped, when all dicts of this class are full.

    It has two generations. A plain lookup, as the hot path does it, finds the younger one alone; `recall` brings an
    entry back from the older one. When `MAX_RECENT` entries are young, all of them become old, and the old ones go.
    """

    __slots__ = ("__weakref__", "_older")

    def __init__(self) -> None:
        super().__init__()
        self._older: dict[Any, Any] = {}
        reference = weakref.ref(self)
        _all[id(reference)] = reference
        if len(_all) >= _sweep_at:
            _sweep()

    def is_used(self) -> bool:
        """Return whether there is any entry."""
        return bool(self or self._older)

    def recall(self, key: Any) -> Any:
        """Return the value of `key`, None if there is none."""
        found = self.get(key)
        if found is None:
            found = self._older.get(key)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: Any, value: Any) -> Any:
        """Add an entry, and return its value."""
        global _count
        self[key] = value
        _count += 1
        if _count > MAX_RECENT:
            _turn()
        return value


def _turn() -> None:
    global _count
    with _lock:
        if _count > MAX_RECENT:  # no other thread was here first
            _count = 0
            for each in [reference() for reference in list(_all.values())]:
                if each is not None:
                    each._older = dict(each)
                    each.clear()


def _sweep() -> None:
    global _sweep_at
    # The tuples of a list of items are made one by one: finalizers and other threads may run in between.
    for key, reference in _all.copy().items():
        if reference() is None:
            _all.pop(key, None)
    _sweep_at = max(1024, 2 * len(_all))
