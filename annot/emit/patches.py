"""Patches of a framework's functions while a block of `emit_ranges` is open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

_ABSENT: Final = object()


class Patches:
    """Replaced attributes, restored in reverse order.

    A subclass installs its patches in a method `install`. If other code has wrapped a patch in the meantime, the patch
    cannot be removed. It must then do nothing but call the original: see `live`.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.live = True
        """Whether the patches are active."""

    def replace(self, owner: Any, name: str, patch: Any) -> None:
        """Replace an attribute of `owner` by `patch`. The attribute may be inherited."""
        self.live = True
        own = vars(owner).get(name, _ABSENT)

        def undo() -> None:
            if vars(owner).get(name) is patch:
                _put(owner, name, own)

        self._undo.append(undo)  # first: a signal handler may raise between any two calls
        _put(owner, name, patch)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a function by ``around(original, *args, **kwargs)``; once undone, a patch calls only the original."""
        original: Any = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs) if self.live else original(*args, **kwargs)

        self.replace(owner, name, call)

    def undo(self) -> None:
        """Restore all attributes. After an interrupt, the next call restores the rest."""
        self.live = False
        undo_all(self._undo)


def undo_all(undo: list[Callable[[], Any]]) -> None:
    """Call and drop the undo functions, the last first. After an interrupt, the next call continues with the rest.

    An interrupt may come between a call and its removal from the list, so each function must be safe to call twice.
    """
    while undo:
        undo[-1]()
        del undo[-1]


def subclasses(cls: type) -> Iterator[type]:
    """Yield all direct and indirect subclasses of a class, possibly with duplicates."""
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from subclasses(child)


def _put(owner: Any, name: str, value: Any) -> None:
    """Set or delete an attribute without `Layer.__setattr__` of Keras, which would track it as part of the model."""
    attributes = vars(owner)
    if isinstance(attributes, dict):  # vars() of a class is a read-only mappingproxy
        attributes.pop(name, None) if value is _ABSENT else attributes.__setitem__(name, value)
    elif value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
