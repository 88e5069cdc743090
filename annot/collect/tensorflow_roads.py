"""In which way TensorFlow's graphs would have ranges here, told from files: TensorFlow is not imported."""

from __future__ import annotations

import importlib.util
import mmap
import os
from pathlib import Path
from typing import Final

from annot import native

__all__ = ["names_road", "operations_road"]

_LIBRARY: Final = "libtensorflow_framework.so.2"
_SWITCH: Final = b"_ZN3tsl8profiler15AnnotationStack6EnableEb"
_NVTX: Final = b"NVTX_INJECTION64_PATH"
"""What every NVTX client looks up in the environment."""


def operations_road() -> tuple[str, bool]:
    """Return what gives graphs their ranges, or why they have none; and whether they have."""
    if os.environ.get("ANNOT_DISABLE_NATIVE", "") not in ("", "0"):
        return "no ranges: ANNOT_DISABLE_NATIVE is set", False
    if native.fast() is None or native.tf_library() is None:
        return "no ranges: annot's C parts are not built", False
    return "ranges by annot's C library", True


def names_road() -> str:
    """Return whether TensorFlow's own ranges, which are all there is under XLA, can be had, in words."""
    library = _framework_library()
    if library is None:
        return f"no names: {_LIBRARY} was not found"
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            missing = [what for what, sign in _NAMES_NEED if content.find(sign) < 0]
    except (OSError, ValueError) as error:
        return f"no names: {library} cannot be read: {error}"
    if missing:
        return f"no names: this TensorFlow has no {' and no '.join(missing)}"
    return "names by TensorFlow's own ranges"


_NAMES_NEED: Final = (("NVTX (only its GPU builds have)", _NVTX), ("switch for its annotations", _SWITCH))


def _framework_library() -> Path | None:
    spec = importlib.util.find_spec("tensorflow")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    return next((folder / _LIBRARY for folder in folders if (folder / _LIBRARY).exists()), None)
