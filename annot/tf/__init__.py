"""Ranges in TensorFlow and Keras; a name is imported, and TensorFlow with it, when it is first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annot.keras.callback import AnnotCallback
    from annot.tf.calls import end, start, trace
    from annot.tf.names import save_scopes
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

# The callback is for Keras on PyTorch too, where there is no TensorFlow.
_LAZY = {
    "AnnotCallback": "annot.keras.callback",
    "EmitRanges": "annot.tf.ranges",
    "NVTXEnd": "annot.tf.nvtx_plugins",
    "NVTXHook": "annot.tf.nvtx_plugins",
    "NVTXStart": "annot.tf.nvtx_plugins",
    "SessionHook": "annot.tf.session",
    "emit_ranges": "annot.tf.ranges",
    "end": "annot.tf.calls",
    "save_scopes": "annot.tf.names",
    "start": "annot.tf.calls",
    "trace": "annot.tf.calls",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'annot.tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
