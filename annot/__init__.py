"""NVTX ranges for every layer of a deep-learning model, and the table of which layer used the time."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from annot.emit import enable, enabled
from annot.errors import AnnotError
from annot.instrument import emit_ranges
from annot.loop import batch, batches, epoch, epochs
from annot.schedule import schedule
from annot.trace import mark, trace

if TYPE_CHECKING:
    from annot import tf as tf
    from annot import torch as torch
    from annot.correlate import correlate
    from annot.magics import load_ipython_extension, unload_ipython_extension
    from annot.read import load
    from annot.recording import record
    from annot.report.layers import layers

__all__ = [
    "AnnotError",
    "batch",
    "batches",
    "correlate",
    "emit_ranges",
    "enable",
    "enabled",
    "epoch",
    "epochs",
    "layers",
    "load",
    "load_ipython_extension",
    "mark",
    "record",
    "schedule",
    "trace",
    "unload_ipython_extension",
]

# The read wing brings polars, which a training script has no use for: loaded when it is first asked for.
_LAZY = {
    "correlate": "annot.correlate",
    "layers": "annot.report.layers",
    "load": "annot.read",
    "load_ipython_extension": "annot.magics",
    "record": "annot.recording",
    "unload_ipython_extension": "annot.magics",
}


# For `annot.torch.AnnotCallback()` after `import annot`; each brings its framework.
_PACKAGES = ("tf", "torch")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"annot.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'annot' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
