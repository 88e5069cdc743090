"""PyTorch integration: ranges for the forward and backward of every layer, without changes to the model.

`AnnotCallback` and `AnnotProfiler` are for Lightning, `AnnotTrainerCallback` is for the Hugging Face Trainer. Each
name, and PyTorch with it, is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annot.torch.huggingface import AnnotTrainerCallback as AnnotTrainerCallback
    from annot.torch.lightning import AnnotCallback as AnnotCallback
    from annot.torch.lightning import AnnotProfiler as AnnotProfiler
    from annot.torch.ranges import EmitRanges, emit_ranges

__all__ = ["EmitRanges", "emit_ranges"]

_LAZY = {
    **dict.fromkeys(("EmitRanges", "emit_ranges"), "annot.torch.ranges"),
    **dict.fromkeys(("AnnotCallback", "AnnotProfiler"), "annot.torch.lightning"),
    "AnnotTrainerCallback": "annot.torch.huggingface",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'annot.torch' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(_LAZY)
