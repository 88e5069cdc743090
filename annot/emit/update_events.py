"""Events of optimizer steps, ``Optimizer SGD params=11689512 momentum=True |opt``, for any framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from annot.emit import client, guard
from annot.labels import optimizer_arguments, tag
from annot.util.weak_keys import WeakKeys


class UpdateEvents:
    """Cache of the events of optimizer steps. Arguments are read at the first step, and when the key changes.

    Args:
        key: returns the key of a step, such as the ids of its parameters, from the arguments of `next_event`.
        arguments: returns names and values that the range shows, from the arguments of `next_event`.
    """

    def __init__(self, key: Callable[..., object], arguments: Callable[..., tuple[tuple[str, tag.Value], ...]]) -> None:
        self._key, self._arguments = key, arguments
        self._cache: WeakKeys[Any, tuple[object, Any]] = WeakKeys()

    def next_event(self, optimizer: Any, *step: Any) -> Any:
        """Return the event of the next step of an optimizer, without arguments if reading them fails."""
        event = guard.attempt(self._next_event, optimizer, *step, otherwise=None)
        return _event(optimizer, ()) if event is None else event

    def _next_event(self, optimizer: Any, *step: Any) -> Any:
        key, cached = self._key(optimizer, *step), self._cache.get(optimizer)
        if cached is None or cached[0] != key:
            cached = self._cache[optimizer] = key, _event(optimizer, self._arguments(optimizer, *step))
        return cached[1]


def _event(optimizer: Any, arguments: tuple[tuple[str, tag.Value], ...]) -> Any:
    text = optimizer_arguments.text(type(optimizer).__name__, arguments)
    return client.event(text, category="optimizer", few=True)
