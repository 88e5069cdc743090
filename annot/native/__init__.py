"""Optional C extensions: the recorder (an NVTX tool), the NVTX client, the table reader and the TensorFlow operations.

``ANNOT_DISABLE_NATIVE=1`` disables all of them except the recorder: ranges then use the `nvtx` package, profiles are
read in Python and through SQLite, and TensorFlow's graphs have no ranges.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from annot.util.distribution import NAME

__all__ = ["build_command", "emitter", "recorder_error", "recorder_library", "tables", "tf_library"]


def recorder_library() -> Path | None:
    """Return the path of the recorder library, or None if it was not built."""
    return next(iter(sorted(Path(__file__).parent.glob("_recorder*.so"))), None)


def recorder_error() -> int:
    """Return the errno for which the attached recorder cannot write, or 0."""
    import ctypes

    try:
        return int(ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"]).annot_recorder_error())
    except (AttributeError, KeyError, OSError):  # another tool, or none
        return 0


def tf_library() -> Path | None:
    """Return the path of the library with the TensorFlow operations, or None if it was not built."""
    return next(iter(sorted(Path(__file__).parent.glob("_tf_ops*.so"))), None)


def emitter() -> Any:
    """Return the NVTX client (`annot.native._emit`), or None if it was not built or is disabled."""
    return _module("annot.native._emit")


def tables() -> Any:
    """Return the table module (`annot.native._tables`), or None if it was not built or is disabled."""
    return _module("annot.native._tables")


def build_command() -> str:
    """Return the pip command that rebuilds the C extensions, from the source of this installation."""
    from importlib.metadata import PackageNotFoundError, distribution

    checkout = Path(__file__).parents[2]
    words = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps"]
    if (checkout / "pyproject.toml").is_file():
        return shlex.join([*words, "-e", str(checkout)])
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        return shlex.join([*words, "PATH/OF/ITS/CHECKOUT"])
    return shlex.join([*words, _origin(installed.read_text("direct_url.json")) or f"{NAME}=={installed.version}"])


def _origin(record: str | None) -> str | None:
    """Return the URL for pip from the content of direct_url.json (PEP 610); None for a package from an index."""
    if record is None:
        return None
    source = json.loads(record)
    if "vcs_info" in source:
        return f"{source['vcs_info']['vcs']}+{source['url']}@{source['vcs_info']['commit_id']}"
    return str(source["url"])


def _module(name: str) -> Any:
    if os.environ.get("ANNOT_DISABLE_NATIVE", "") not in ("", "0"):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
