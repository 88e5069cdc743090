"""The folder in which annot keeps what it measured on a machine (XDG Base Directory Specification)."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(name: str) -> Path | None:
    """Return a folder of annot in the data folder of the user; None: the user has no data folder.

    Example:
        >>> folder = data_folder("peaks")
        >>> folder is None or folder.parts[-2:]
        ('annot', 'peaks')
    """
    roots = os.environ.get("XDG_DATA_HOME", ""), os.path.expanduser("~/.local/share")
    root = next(filter(os.path.isabs, roots), None)  # the specification ignores relative paths
    return None if root is None else Path(root, "annot", name)
