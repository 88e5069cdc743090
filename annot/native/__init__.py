"""The C parts: the recorder, an NVTX tool of our own, and the fast call path. Each is optional.

``ANNOT_DISABLE_NATIVE=1`` switches the fast call path off: ranges then go through the `nvtx` package.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

__all__ = ["fast", "recorder_library"]


def recorder_library() -> Path | None:
    """Return the path of the recorder's shared library, or None if it was not built."""
    return next(iter(sorted(Path(__file__).parent.glob("_recorder*.so"))), None)


def fast() -> Any:
    """Return the module of the fast call path, or None if it was not built or is switched off."""
    if os.environ.get("ANNOT_DISABLE_NATIVE", "") not in ("", "0"):
        return None
    try:
        return importlib.import_module("annot.native._fast")
    except ImportError:
        return None
