"""Caches that share one size limit and drop the entries that were not used recently."""

from __future__ import annotations

import weakref
from typing import Any, Final

from annot.util.locks import fork_safe

MAX_RECENT: Final = 1 << 16
"""Maximum number of young entries in all `Recent` caches together; an entry takes about 1 KB."""

_lock: Final = fork_safe()
# These references have no callbacks: CPython drops an exception that a signal handler raises in a callback.
_all: Final[dict[int, weakref.ref[Recent]]] = {}
_prune_at = 1024
_count = 0


class Recent(dict[Any, Any]):
    """A dict that drops entries not used recently when all dicts of this class together are full.

    Entries have two generations. A plain lookup, as on the hot path, finds young entries only; `recall` also finds old
    entries and makes them young. When more than `MAX_RECENT` entries are young, all of them become old and the previous
    old ones are dropped.
    """

    __slots__ = ("__weakref__", "_older")

    def __init__(self) -> None:
        super().__init__()
        self._older: dict[Any, Any] = {}
        reference = weakref.ref(self)
        _all[id(reference)] = reference
        if len(_all) >= _prune_at:
            _prune()

    def is_used(self) -> bool:
        """Return whether the cache has entries."""
        return bool(self or self._older)

    def recall(self, key: Any) -> Any:
        """Return the value of `key`, young or old; None if there is none."""
        value = self.get(key)
        if value is None:
            value = self._older.get(key)
            if value is not None:
                self.keep(key, value)
        return value

    def keep(self, key: Any, value: Any) -> Any:
        """Add an entry and return its value."""
        global _count
        self[key] = value
        _count += 1
        if _count > MAX_RECENT:
            _age()
        return value


def _age() -> None:
    global _count
    with _lock:
        if _count > MAX_RECENT:  # unless another thread was first
            _count = 0
            for cache in [reference() for reference in list(_all.values())]:
                if cache is not None:
                    cache._older = dict(cache)
                    cache.clear()


def _prune() -> None:
    global _prune_at
    # dict.copy is atomic. list(dict.items()) is not: it allocates tuples, so finalizers and other threads may run.
    for key, reference in _all.copy().items():
        if reference() is None:
            _all.pop(key, None)
    _prune_at = max(1024, 2 * len(_all))
