"""A dict with weak keys that runs no Python code when a key dies, and results kept in it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")


class WeakKeys(Generic[K, V]):
    """A `weakref.WeakKeyDictionary` that compares keys by identity.

    CPython prints and drops an exception that is raised in the callback of a weak reference. The callbacks of
    `weakref.WeakKeyDictionary` are Python functions, in which a signal handler may raise. Here they are C functions.

    Example:
        >>> class Key: ...
        >>> known, key = WeakKeys(), Key()
        >>> known[key] = 3
        >>> known.get(key), len(known)
        (3, 1)
        >>> del key
        >>> len(known)
        0
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        entry = self._entries.get(id(key))
        return default if entry is None else entry[1]

    def setdefault(self, key: K, value: V) -> V:
        """Return the value of a key; add the key with `value` first if it is missing."""
        return self._entries.setdefault(id(key), self._entry(key, value))[1]

    def items(self) -> list[tuple[K, V]]:
        """Return the keys that are alive and their values, oldest entry first."""
        return [(key, value) for alive, value in list(self._entries.values()) if (key := alive()) is not None]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[id(key)] = self._entry(key, value)

    def __delitem__(self, key: K) -> None:
        del self._entries[id(key)]

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        return len(self._entries)

    def _entry(self, key: K, value: V) -> tuple[weakref.ref[Any], V]:
        return weakref.ref(key, functools.partial(self._entries.pop, id(key))), value


def once_for_each(function: Callable[Concatenate[K, P], V]) -> Callable[Concatenate[K, P], V]:
    """Keep the result of a function for as long as its first argument lives. Other arguments do not change it.

    Example:
        >>> class Key: ...
        >>> key = Key()
        >>> table = once_for_each(lambda key: [1, 2])
        >>> table(key) is table(key)
        True
    """
    results: WeakKeys[K, V] = WeakKeys()

    @functools.wraps(function)
    def kept(key: K, /, *args: P.args, **options: P.kwargs) -> V:
        result: V | None = results.get(key)
        if result is None:
            result = results[key] = function(key, *args, **options)
        return result

    return kept
