"""JSON files with the values of msgspec structs and dataclasses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from annot.util.whole_files import write_file

T = TypeVar("T")
DAMAGED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bytes that are not a value of the type."""
_LARGEST: Final = 1 << 26
"""Maximum size of a file in bytes."""


def as_json(value: Any) -> bytes:
    """Return a value as indented JSON with a line feed at the end.

    Example:
        >>> as_json({"steps": 30})
        b'{\\n  "steps": 30\\n}\\n'
    """
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"


def write_json(path: Path, value: Any) -> None:
    """Write a value to a file, and replace an existing one.

    Raises:
        AnnotError: the file cannot be written.
    """
    write_file(path, [as_json(value)], force=True)


def read_json(path: Path, kind: type[T], largest: int = _LARGEST) -> T | None:
    """Return the value in a file; None: the file is absent, incomplete, damaged, or larger than `largest` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
        return msgspec.json.decode(content[:largest], type=kind)
    except (OSError, *DAMAGED):
        return None
