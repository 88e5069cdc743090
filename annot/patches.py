"""Stand-ins in the places of a framework's functions, while a block of `emit_ranges` is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Patches", "undo_all"]

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
        self.live = True
        own = vars(owner).get(name, _ABSENT)

        def undo() -> None:
            if vars(owner).get(name) is stand_in:
                _put(owner, name, own)

        self._undo.append(undo)  # first, since an interrupt may come between any two calls
        _put(owner, name, stand_in)

    def undo(self) -> None:
        """Put everything back; after an interrupt, the next call goes on with the rest."""
        self.live = False
        undo_all(self._undo)


def undo_all(undo: list[Callable[[], Any]]) -> None:
    """Call what undoes something, last first; after an interrupt, the next call goes on with the rest.

    Each is dropped after its call. An interrupt may come in between, so calling it again must do nothing more.
    """
    while undo:
        undo[-1]()
        del undo[-1]


def _put(owner: Any, name: str, value: Any) -> None:
    """Set or delete an attribute, past the `__setattr__` of Keras, which would track it as a part of a model."""
    attributes = vars(owner)
    if isinstance(attributes, dict):  # those of a class are read only
        attributes.pop(name, None) if value is _ABSENT else attributes.__setitem__(name, value)
    elif value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
