"""Ranges for TensorFlow and Keras. Each name, and TensorFlow with it, is imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annot.keras.callback import AnnotCallback as AnnotCallback
    from annot.tf.call_ranges import end as end
    from annot.tf.call_ranges import start as start
    from annot.tf.call_ranges import trace as trace
    from annot.tf.name_scopes import save_scopes as save_scopes
    from annot.tf.nvtx_plugins import NVTXEnd as NVTXEnd
    from annot.tf.nvtx_plugins import NVTXHook as NVTXHook
    from annot.tf.nvtx_plugins import NVTXStart as NVTXStart
    from annot.tf.ranges import EmitRanges as EmitRanges
    from annot.tf.ranges import emit_ranges as emit_ranges
    from annot.tf.session import SessionHook as SessionHook

# The callback also works with Keras on PyTorch, where TensorFlow may not be installed.
_LAZY = {
    "AnnotCallback": "annot.keras.callback",
    **dict.fromkeys(("EmitRanges", "emit_ranges"), "annot.tf.ranges"),
    **dict.fromkeys(("NVTXEnd", "NVTXHook", "NVTXStart"), "annot.tf.nvtx_plugins"),
    **dict.fromkeys(("end", "start", "trace"), "annot.tf.call_ranges"),
    "SessionHook": "annot.tf.session",
    "save_scopes": "annot.tf.name_scopes",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'annot.tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
