"""NVTX ranges for every layer of a deep-learning model, and attribution of profiles to layers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from annot.dispatch import emit_ranges
from annot.emit.client import enable, enabled
from annot.emit.loop import batch, batches, epoch, epochs
from annot.emit.schedule import schedule
from annot.emit.trace import mark, trace
from annot.errors import AnnotError

if TYPE_CHECKING:
    from annot import tf as tf
    from annot import torch as torch
    from annot.collect.record import record
    from annot.notebook.layers import layers
    from annot.notebook.magics import load_ipython_extension, unload_ipython_extension
    from annot.read.formats import load
    from annot.runs.open import open  # noqa: A004
    from annot.runs.run import correlate

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
    "open",
    "record",
    "schedule",
    "trace",
    "unload_ipython_extension",
]

# Loaded on first use, because these modules import polars, which a training script does not need.
_LAZY = {
    "correlate": "annot.runs.run",
    "layers": "annot.notebook.layers",
    "load": "annot.read.formats",
    "load_ipython_extension": "annot.notebook.magics",
    "open": "annot.runs.open",
    "record": "annot.collect.record",
    "unload_ipython_extension": "annot.notebook.magics",
}


# Subpackages available after `import annot`; loaded on first use, because each imports its framework.
_PACKAGES = ("tf", "torch")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"annot.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'annot' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_PACKAGES))
