"""Epoch and batch ranges that open in one callback of a trainer and close in another."""

from __future__ import annotations

import weakref
from typing import Any

from annot.emit.loop import NumberedRange
from annot.labels.tag import Phase

__all__ = ["OpenRanges"]


class OpenRanges:
    """Open ranges of a trainer callback. They close when this object is deleted or the process exits, at the latest."""

    def __init__(self) -> None:
        self._open: dict[Any, Any] = {}
        weakref.finalize(self, _close, self._open)

    def begin(self, phase: Phase, number: int, stage: str = "") -> None:
        """Open the range of an epoch or batch. An open one of the same stage closes first."""
        self.end(phase, stage)
        self._enter((phase, stage), NumberedRange(phase, number, stage))

    def end(self, phase: Phase, stage: str = "") -> None:
        """Close the range of the epoch or batch of a stage, if it is open."""
        opened = self._open.pop((phase, stage), None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def close(self) -> None:
        """Close all open ranges, the innermost first."""
        _close(self._open)

    def _enter(self, key: Any, block: Any) -> None:
        block.__enter__()
        self._open[key] = block


def _close(opened: dict[Any, Any]) -> None:
    while opened:
        opened.popitem()[1].__exit__(None, None, None)
