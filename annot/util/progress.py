"""Progress reports of long operations.

Readers call `tell`. The command line listens if stderr is a terminal. The start of each operation is also a message of
logging, which `annot -v` shows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

Listener: TypeAlias = Callable[[str, int, int | None, str], None]
"""A function with the parameters of `tell`."""

_log: Final = logging.getLogger(__name__)
_listener: Listener | None = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Pass the progress reports of this process to a function inside the block.

    Args:
        listener: called with the arguments of each `tell`.

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


def has_listener() -> bool:
    """Return whether there is a listener. Callers skip the computation of totals without one."""
    return _listener is not None


def tell(what: str, done: int = 0, total: int | None = None, unit: str = "") -> None:
    """Report the progress of an operation.

    Args:
        what: the operation, in words. A new text ends the previous operation.
        done: the amount that is done, in `unit`.
        total: the total amount, in `unit`; None: unknown.
        unit: the unit of `done` and `total`, such as ``rows``.
    """
    if not done:
        _log.info("%s", what)
    if _listener is not None:
        _listener(what, done, total, unit)
