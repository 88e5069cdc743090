"""A recording of annot that was never assembled: the folder of parts that a killed run leaves behind."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from annot.collect.parts import PART_SUFFIX
from annot.errors import AnnotError
from annot.profile import Profile
from annot.read import nsys_sqlite

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "recording"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether this is a folder of parts; see `annot.read.Reader`."""
    return path.is_dir() and any(path.glob(f"*{PART_SUFFIX}"))


def read(path: Path) -> Profile:
    """Assemble the parts of a recording, and read the result; the folder is not changed.

    Raises:
        AnnotError: the folder holds no parts, or they cannot be read.
    """
    if not sniff(path, b""):
        raise AnnotError(f"{path} is a folder, and holds no parts of a recording of annot")
    from annot.collect.export import assemble  # not needed for any other profile

    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        out = Path(scratch) / "recording.sqlite"
        assemble(path, out)
        profile = nsys_sqlite.read(out)
    return replace(profile, meta=profile.meta | {"source": str(path), "format": NAME})
