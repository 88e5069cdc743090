"""Base of the trainer callbacks: ranges that open in one callback and close in another."""

from __future__ import annotations

from typing import Any

import torch

from annot.emit.open_ranges import OpenRanges
from annot.labels.tag import Phase
from annot.torch.ranges import emit_ranges

__all__ = ["TrainerRanges"]


class TrainerRanges(OpenRanges):
    """Open ranges of a trainer: layers of its model, epochs and batches.

    `options` are those of `annot.torch.emit_ranges`. A copy or a pickle has the options, but no open ranges.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._options = options

    def __reduce__(self) -> Any:
        return TrainerRanges, (self._options,)

    def enter(self, model: torch.nn.Module) -> None:
        """Close all open ranges, and emit ranges of a model until `close`."""
        self.close()
        self._enter("model", emit_ranges(model, **self._options))

    def begin(self, phase: Phase, number: int, stage: str = "") -> None:
        """Open the range of an epoch or batch if a model is entered. An open one of the same stage closes first."""
        self.end(phase, stage)
        if self._open:
            super().begin(phase, number, stage)
