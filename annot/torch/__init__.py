"""PyTorch: a range for every layer's forward and backward, with nothing to edit in the model."""

from __future__ import annotations

from annot.torch.ranges import EmitRanges, emit_ranges

__all__ = ["EmitRanges", "emit_ranges"]
