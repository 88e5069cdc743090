"""The C parts: the recorder, an NVTX tool of our own; the fast call path; the fast reading and sweeping of tables;
the operations for TensorFlow.

Each is optional. ``ANNOT_DISABLE_NATIVE=1`` switches all but the recorder off: ranges then go through the `nvtx`
package, profiles through Python and SQLite, and TensorFlow's operations call Python.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

__all__ = ["fast", "recorder_library", "tables", "tf_library"]


def recorder_library() -> Path | None:
    """Return the path of the recorder's shared library, or None if it was not built."""
    return next(iter(sorted(Path(__file__).parent.glob("_recorder*.so"))), None)


def tf_library() -> Path | None:
    """Return the path of the library with TensorFlow's operations, or None if it was not built."""
    return next(iter(sorted(Path(__file__).parent.glob("_tf_ops*.so"))), None)


def fast() -> Any:
    """Return the module of the fast call path, or None if it was not built or is switched off."""
    return _module("annot.native._fast")


def tables() -> Any:
    """Return the module that reads and sweeps tables, or None if it was not built or is switched off."""
    return _module("annot.native._tables")


def _module(name: str) -> Any:
    if os.environ.get("ANNOT_DISABLE_NATIVE", "") not in ("", "0"):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
