"""A range of a kind that does not nest in itself: of functions that call each other, only the outermost has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from annot import emit, own

if TYPE_CHECKING:
    pass

__all__ = ["Outermost"]


class _Open(threading.local):
    """The kinds that this thread has open."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()


_open = _Open()


class Outermost:
    """A range around a block, unless this thread has one of the same kind open.

    Args:
        kind: what must not nest, such as ``data``.
        event: of the range; None: no range.

    Example:
        >>> from annot import emit
        >>> with Outermost("data", emit.event("Data |data")):
        ...     pass
    """

    __slots__ = ("_depth", "_event", "_kind")

    def __init__(self, kind: str, event: Any) -> None:
        self._kind = kind
        self._event = event
        self._depth = -1

    @staticmethod
    def free(kind: str) -> bool:
        """Return whether this thread has no range of that kind open."""
        return kind not in _open.kinds

    def __enter__(self) -> None:
        kinds = _open.kinds
        if self._event is None or self._kind in kinds:
            return
        self._depth = emit.depth()
        try:
            kinds.add(self._kind)
            emit.push(self._event)
        except BaseException:  # an interrupt
            self._close()
            raise

    __exit__: Callable[..., None] = own.exit_method

    def _exit(self, done: list[str], *exception: object) -> None:
        if self._depth >= 0:
            self._close()

    def _close(self) -> None:
        kinds = _open.kinds
        try:
            emit.pop_to(self._depth)  # whatever an interrupt has left open included
        finally:
            kinds.discard(self._kind)
