"""What the callbacks of trainers share: ranges that begin in one call and end in another."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from annot.loop import NumberedRange
from annot.tag import Phase
from annot.torch.ranges import emit_ranges

__all__ = ["TrainerRanges"]


class TrainerRanges:
    """The ranges that a trainer has open: layers of its model, epochs and batches.

    All are closed at the latest when this object goes, or the process ends. A copy has nothing open.

    Args:
        options: those of `annot.torch.emit_ranges`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._open: dict[Any, Any] = {}
        weakref.finalize(self, _close, self._open)

    def __reduce__(self) -> Any:
        return TrainerRanges, (self._options,)

    def enter(self, model: torch.nn.Module) -> None:
        """Close what is open, and emit the ranges of a model until `close`."""
        self.close()
        self._begin("model", emit_ranges(model, **self._options))

    def begin(self, phase: Phase, number: int, stage: str = "") -> None:
        """Begin an epoch or batch; one of the same stage that is still open ends."""
        self.end(phase, stage)
        if self._open:
            self._begin((phase, stage), NumberedRange(phase, number, stage))

    def end(self, phase: Phase, stage: str = "") -> None:
        """End the epoch or batch of that stage, if there is one."""
        opened = self._open.pop((phase, stage), None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def close(self) -> None:
        """End all that is open, the innermost first."""
        _close(self._open)

    def _begin(self, key: Any, block: Any) -> None:
        block.__enter__()
        self._open[key] = block


def _close(opened: dict[Any, Any]) -> None:
    while opened:
        opened.popitem()[1].__exit__(None, None, None)
