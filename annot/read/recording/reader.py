"""Reader for the folder of parts that an interrupted recording leaves."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.nsys import sqlite_export
from annot.read.recording.export import assemble
from annot.read.recording.files import PART_SUFFIX

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "recording"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether this is a folder with parts of a recording; see `annot.read.formats.Reader`."""
    return path.is_dir() and any(path.glob(f"*{PART_SUFFIX}"))


def read(path: Path) -> Profile:
    """Assemble the parts of a recording in a temporary folder and read the result."""
    if not sniff(path, b""):
        raise AnnotError(f"{path} is a folder without parts of an annot recording")
    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        out = Path(scratch) / "recording.sqlite"
        assemble(path, out)
        profile = sqlite_export.read(out)
    return replace(profile, meta=profile.meta | {"source": str(path), "format": NAME})
