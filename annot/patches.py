"""Stand-ins in the places of a framework's functions, while a block of `emit_ranges` is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Patches"]

_ABSENT: Final = object()


class Patches:
    """Attributes that were replaced, to be put back in reverse order.

    A stand-in that somebody else has wrapped meanwhile stays where it is, and has to be transparent from then on:
    see `live`.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.live = True
        """Whether the stand-ins are to do anything."""

    def replace(self, owner: Any, name: str, stand_in: Any) -> None:
        """Put `stand_in` into the place of an attribute, which may be one that `owner` inherits."""
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, stand_in)

        def undo() -> None:
            if vars(owner).get(name) is not stand_in:
                return
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back."""
        self.live = False
        while self._undo:
            self._undo.pop()()
