"""The C parts: the recorder, an NVTX tool of our own; the fast call path; the fast reading and sweeping of tables;
the operations for TensorFlow.

Each is optional. ``ANNOT_DISABLE_NATIVE=1`` switches all but the recorder off: ranges then go through the `nvtx`
package, profiles through Python and SQLite, and TensorFlow's operations call Python.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

__all__ = ["build_command", "fast", "recorder_library", "tables", "tf_library"]


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


def build_command() -> str:
    """Return the command that builds the C parts again, from where this annot came.

    On package indexes the bare name `annot` is another project, which must not be installed in its place.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    checkout = Path(__file__).parents[2]
    words = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps"]
    if (checkout / "pyproject.toml").is_file():
        return shlex.join([*words, "-e", str(checkout)])
    try:
        found = distribution("annot")
    except PackageNotFoundError:
        return shlex.join([*words, "PATH/OF/ITS/CHECKOUT"])
    return shlex.join([*words, _origin(found.read_text("direct_url.json")) or f"annot=={found.version}"])


def _origin(record: str | None) -> str | None:
    """What to give pip, by the record that it keeps of a package from elsewhere than an index (PEP 610)."""
    if record is None:
        return None
    known = json.loads(record)
    if "vcs_info" in known:
        return f"{known['vcs_info']['vcs']}+{known['url']}@{known['vcs_info']['commit_id']}"
    return str(known["url"])


def _module(name: str) -> Any:
    if os.environ.get("ANNOT_DISABLE_NATIVE", "") not in ("", "0"):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
