"""What the callbacks of trainers share: ranges that begin in one call and end in another."""

from __future__ import annotations

from typing import Any

import torch

from annot.open_ranges import OpenRanges
from annot.tag import Phase
from annot.torch.ranges import emit_ranges

__all__ = ["TrainerRanges"]


class TrainerRanges(OpenRanges):
    """The ranges that a trainer has open: layers of its model, epochs and batches.

    A copy has nothing open.

    Args:
        options: those of `annot.torch.emit_ranges`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._options = options

    def __reduce__(self) -> Any:
        return TrainerRanges, (self._options,)

    def enter(self, model: torch.nn.Module) -> None:
        """Close what is open, and emit the ranges of a model until `close`."""
        self.close()
        self._enter("model", emit_ranges(model, **self._options))

    def begin(self, phase: Phase, number: int, stage: str = "") -> None:
        """Begin an epoch or batch of the model that was entered; one of the same stage that is still open ends."""
        self.end(phase, stage)
        if self._open:
            super().begin(phase, number, stage)
