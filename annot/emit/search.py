"""Search for models by `annot run --layers`, which ends when the program makes a block of `emit_ranges` itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from annot.emit.patches import undo_all

_ends: Final[list[Callable[[], None]]] = []


def on_end(undo: Callable[[], None]) -> None:
    """Call a function when the search ends. It must be safe to call twice."""
    _ends.append(undo)


def end() -> None:
    """End the search, if there is one. After an interrupt, the next call continues with the rest."""
    undo_all(_ends)
