"""Telling whoever waits how far a long piece of work has come.

Readers `tell`; only the command line, and only on a terminal, listens. Nobody listening costs a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Listener", "listening", "tell", "told"]

Listener: TypeAlias = Callable[[str, int, int | None, str], None]
"""Takes what `tell` is given."""

_listener: Listener | None = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a function know of all that is told in a block, in this process.

    Example:
        >>> with listening(print):
        ...     tell("reading", 3, 10, "rows")
        reading 3 10 rows
    """
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def told() -> bool:
    """Return whether anybody listens, before something is found out only to be told."""
    return _listener is not None


def tell(what: str, done: int = 0, total: int | None = None, unit: str = "") -> None:
    """Say how far a piece of work has come.

    Args:
        what: the work, in words; another one ends the one before.
        done: how much of it is done.
        total: how much there is; None: not known.
        unit: of which `done` and `total` are numbers.
    """
    if _listener is not None:
        _listener(what, done, total, unit)
