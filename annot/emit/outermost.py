"""Range that does not nest in a range of the same kind: only the outermost of nested calls has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from annot.emit import client, guard


class _Open(threading.local):
    """Kinds of the ranges that this thread has open."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()


_open = _Open()


class Outermost:
    """Range around a block, unless this thread already has one of the same kind open.

    Args:
        kind: kind of the range, such as ``data``.
        event: event of the range. None: no range.

    Example:
        >>> from annot.emit import client
        >>> with Outermost("data", client.event("Data |data")):
        ...     pass
    """

    __slots__ = ("_depth", "_event", "_kind")

    def __init__(self, kind: str, event: Any) -> None:
        self._kind = kind
        self._event = event
        self._depth = -1

    @staticmethod
    def free(kind: str) -> bool:
        """Return whether a range of this kind may open on this thread."""
        return kind not in _open.kinds

    def __enter__(self) -> None:
        kinds = _open.kinds
        if self._event is None or self._kind in kinds:
            return
        self._depth = client.depth()
        try:
            kinds.add(self._kind)
            client.push(self._event)
        except BaseException:  # e.g. KeyboardInterrupt from a signal handler
            self._close()
            raise

    __exit__: Callable[..., None] = guard.exit_method

    def _exit(self, done: list[str], *exception: object) -> None:
        if self._depth >= 0:
            self._close()

    def _close(self) -> None:
        kinds = _open.kinds
        try:
            client.pop_to(self._depth)  # including ranges that an interrupt left open
        finally:
            kinds.discard(self._kind)
