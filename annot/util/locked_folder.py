"""Folders that one process uses at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from annot.errors import AnnotError, writing

if sys.platform != "win32":
    import fcntl


@contextmanager
def locked(folder: Path, name: str, other: str) -> Iterator[None]:
    """Create a folder, and lock it with a file inside.

    Args:
        folder: the folder.
        name: name of the file.
        other: what else may use the folder, and what to do then: "another process: wait for it".

    Raises:
        AnnotError: another process holds the lock, or the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / name).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AnnotError(f"{folder} is in use by {other}") from None
        yield
