"""How a reader ends on a damaged file."""

from __future__ import annotations

from pathlib import Path

from annot.errors import AnnotError
from annot.read import Reader


def refusal(reader: Reader, path: Path) -> str:
    """Return why the reader refuses the file; the path if it reads it. Anything but an `AnnotError` is raised."""
    try:
        profile = reader.read(path)
    except AnnotError as error:
        return str(error)
    return str(profile.meta["source"])
