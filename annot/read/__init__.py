"""Read a profile of any known format into the tables of `annot.profile`.

A reader is a module that satisfies `Reader`: it recognises its format by content, never by name.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read import kineto, nsys_sqlite, recording

__all__ = ["Reader", "load"]

_HEAD = 65536


class Reader(Protocol):
    """What a module must have to serve as a reader."""

    NAME: str
    """Name of the format, as `Profile.meta` gives it."""

    def sniff(self, path: Path, head: bytes) -> bool:
        """Return whether the file looks like this format.

        Args:
            path: an existing file.
            head: its first 64 KiB.
        """

    def read(self, path: Path) -> Profile:
        """Read the file.

        Raises:
            AnnotError: the file is of this format, but it is damaged or holds nothing that annot can use.
        """


_READERS: tuple[Reader, ...] = (nsys_sqlite, kineto)

# What else people hand over, by its first bytes, and what to do with it.
_KNOWN = (
    (b"NVR\x00", "is a report of Nsight Compute, which annot cannot read yet"),
    (b"\x1f\x8b", "is compressed with gzip and holds no trace: unpack it if there is another profile inside"),
    (b"PAR1", "is a Parquet file, which annot cannot read yet"),
    (b"PK\x03\x04", "is a zip archive: unpack it first"),
)


_NSYS_REPORTS = (".nsys-rep", ".qdrep")


def load(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a file, whatever its format and name.

    Args:
        path: an Nsight Systems SQLite export, a recording of annot, a trace of torch.profiler, or the folder
            of parts that an interrupted recording left. The file is not changed.

    Raises:
        AnnotError: there is no such file, or it is not a profile that can be read; one sentence says why.

    Example:
        >>> load("no-such-file.sqlite")
        Traceback (most recent call last):
            ...
        annot.errors.AnnotError: no-such-file.sqlite does not exist
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return recording.read_parts(path)
        if not stat.S_ISREG(mode):
            raise AnnotError(f"{path} is not a regular file")
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        raise AnnotError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise AnnotError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not head:
        raise AnnotError(f"{path} is empty")
    return _reader(path, head).read(path)


def _reader(path: Path, head: bytes) -> Reader:
    for reader in _READERS:
        if reader.sniff(path, head):
            return reader
    for magic, verdict in _KNOWN:
        if head.startswith(magic):
            raise AnnotError(f"{path} {verdict}")
    if path.suffix in _NSYS_REPORTS:
        raise AnnotError(f"{path} is a report of Nsight Systems: first run `nsys export --type sqlite` on it")
    raise AnnotError(
        f"{path} is not a profile that annot knows: it begins with {head[:16]!r}; expected an Nsight Systems "
        "SQLite export, a recording of annot or a trace of torch.profiler"
    )
