"""A range of a kind that does not nest in itself: of functions that call each other, only the outermost has it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from annot import emit

if TYPE_CHECKING:
    from types import TracebackType

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._depth >= 0:
            self._close()

    def _close(self) -> None:
        emit.pop_to(self._depth)  # whatever an interrupt has left open included
        _open.kinds.discard(self._kind)
