"""PyTorch integration: ranges for the forward and backward of every layer, without changes to the model.

`AnnotCallback` and `AnnotProfiler` are for Lightning, `AnnotTrainerCallback` is for the Hugging Face Trainer. They are
imported on first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from annot.torch.ranges import EmitRanges, emit_ranges

if TYPE_CHECKING:
    from annot.torch.huggingface import AnnotTrainerCallback as AnnotTrainerCallback
    from annot.torch.lightning import AnnotCallback as AnnotCallback
    from annot.torch.lightning import AnnotProfiler as AnnotProfiler

__all__ = ["EmitRanges", "emit_ranges"]

_LAZY = {
    "AnnotCallback": "annot.torch.lightning",
    "AnnotProfiler": "annot.torch.lightning",
    "AnnotTrainerCallback": "annot.torch.huggingface",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'annot.torch' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
