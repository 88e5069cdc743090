"""Errors of readers for damaged files."""

from __future__ import annotations

from pathlib import Path

from annot.errors import AnnotError
from annot.read.formats import Reader


def refusal(reader: Reader, path: Path) -> str:
    """Return the `AnnotError` message of the reader, or the path if it reads the file. Other exceptions propagate."""
    try:
        profile = reader.read(path)
    except AnnotError as error:
        return str(error)
    return str(profile.meta["source"])
