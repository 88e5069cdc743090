"""Files that nobody named, such as those beside a profile: which of them may be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

_FOLDERS: Final = ContextVar[tuple[Path, ...]]("permitted folders", default=())


@contextmanager
def only_inside(folders: Sequence[Path]) -> Iterator[None]:
    """Permit only files inside some folders in the block.

    Args:
        folders: paths without symbolic links; empty: all files are permitted.

    Example:
        >>> with only_inside([Path("/data/runs")]):
        ...     is_permitted(Path("/data/runs/capture.json")), is_permitted(Path("/data/runs/../capture.json"))
        (True, False)
    """
    token = _FOLDERS.set(tuple(folders))
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def is_permitted(path: Path) -> bool:
    """Return whether a file or folder may be read: where its symbolic links lead is inside the permitted folders."""
    folders = _FOLDERS.get()
    return not folders or any(map(Path(os.path.realpath(path)).is_relative_to, folders))


def read_small(path: Path, largest: int) -> bytes:
    """Return the content of a file; empty: it is absent, unreadable, larger than `largest` bytes, or not permitted."""
    try:
        if not is_permitted(path) or not path.is_file():  # opening a named pipe would wait for ever
            return b""
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError:
        return b""
    return content if len(content) <= largest else b""
