"""Ranges for TensorFlow and Keras. Each name, and TensorFlow with it, is imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annot.keras.callback import AnnotCallback
    from annot.tf.call_ranges import end, start, trace
    from annot.tf.name_scopes import save_scopes
    from annot.tf.nvtx_plugins import NVTXEnd, NVTXHook, NVTXStart
    from annot.tf.ranges import EmitRanges, emit_ranges
    from annot.tf.session import SessionHook

__all__ = [
    "AnnotCallback",
    "EmitRanges",
    "NVTXEnd",
    "NVTXHook",
    "NVTXStart",
    "SessionHook",
    "emit_ranges",
    "end",
    "save_scopes",
    "start",
    "trace",
]

# The callback also works with Keras on PyTorch, where TensorFlow may not be installed.
_LAZY = {
    "AnnotCallback": "annot.keras.callback",
    **dict.fromkeys(("EmitRanges", "emit_ranges"), "annot.tf.ranges"),
    **dict.fromkeys(("NVTXEnd", "NVTXHook", "NVTXStart"), "annot.tf.nvtx_plugins"),
    **dict.fromkeys(("end", "start", "trace"), "annot.tf.call_ranges"),
    "SessionHook": "annot.tf.session",
    "save_scopes": "annot.tf.name_scopes",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'annot.tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
