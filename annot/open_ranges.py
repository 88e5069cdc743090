"""Ranges of epochs and batches that begin in one call and end in another, as the callbacks of trainers need them."""

from __future__ import annotations

import weakref
from typing import Any

from annot.loop import NumberedRange
from annot.tag import Phase

__all__ = ["OpenRanges"]


class OpenRanges:
    """The ranges that a callback has open; all are closed at the latest when this object goes, or the process ends."""

    def __init__(self) -> None:
        self._open: dict[Any, Any] = {}
        weakref.finalize(self, _close, self._open)

    def begin(self, phase: Phase, number: int, stage: str = "") -> None:
        """Begin an epoch or batch; one of the same stage that is still open ends."""
        self.end(phase, stage)
        self._enter((phase, stage), NumberedRange(phase, number, stage))

    def end(self, phase: Phase, stage: str = "") -> None:
        """End the epoch or batch of that stage, if there is one."""
        opened = self._open.pop((phase, stage), None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def close(self) -> None:
        """End all that is open, the innermost first."""
        _close(self._open)

    def _enter(self, key: Any, block: Any) -> None:
        block.__enter__()
        self._open[key] = block


def _close(opened: dict[Any, Any]) -> None:
    while opened:
        opened.popitem()[1].__exit__(None, None, None)
