"""Read a profile of any supported format into the tables of `annot.profile`.

A reader is a module or another object that implements `Reader`. It recognises its format by the content of the file,
not by the file name. Other packages register readers as entry points of the group ``annot.readers``. annot tries these
readers first.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast

from annot.errors import AnnotError
from annot.profile import Profile, Source
from annot.util.entry_points import Extension, loaded
from annot.util.progress import tell

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

_HEAD: Final = 65536


class Reader(Protocol):
    """Interface of a reader."""

    NAME: str
    """Name of the format in `Profile.meta`."""

    def sniff(self, path: Path, head: bytes) -> bool:
        """Return whether the file has this format.

        Args:
            path: an existing file or folder.
            head: the first 64 KiB of the file. Empty for a folder.
        """

    def read(self, path: Path) -> Profile:
        """Read the file.

        Args:
            path: a file or folder that `sniff` accepted.

        Raises:
            AnnotError: the file is damaged or contains no data that annot can use.
        """


_FOLDER: Final = rb"\Z"
_SQLITE: Final = rb"SQLite format 3\0"
_TEXT_START: Final = rb"(?:\xef\xbb\xbf)?\s*"
_READERS: Final = {
    "nsys.sqlite_export": _SQLITE,
    "nvprof.sqlite_file": _SQLITE,
    "nsys.nsys_rep": rb"NVIDIA Tegra Profiler Report ",
    "nsys.parquet_export": _FOLDER,
    "recording.export": _FOLDER,
    "proton": _TEXT_START + rb"\[|[\x91-\x9f\xdc\xdd]",
    "kineto.reader": _TEXT_START + rb"[\[{]|\x1f\x8b|\n",
    "ncu.ncu_rep": rb"NVR\0",
    "ncu.csv_export": rb"",
    "nvprof.csv_output": rb"",
    "xplane.reader": _FOLDER + rb"|\n",
}
"""Modules of `annot.read`, and the first bytes of their files. They are imported one after another until one recognizes
the file."""

# Common files that are not profiles: their first bytes and the error message.
_OTHER_FILES: Final = (
    (b"\x1f\x8b", "is compressed with gzip and contains no trace. Decompress it if it contains another profile."),
    (b"PAR1", "is a single Parquet file. Pass the folder that `nsys export --type=parquetdir` wrote."),
    (b"PK\x03\x04", "is a zip archive. Unpack it first."),
)


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile.

    The content of the file determines the format. The file is not modified.

    Args:
        path: one of these files or folders:

            - Nsight Systems: report, SQLite export or Parquet export
            - annot: recording, or the folder of parts that an interrupted recording left
            - torch.profiler: Chrome trace or Perfetto trace
            - Nsight Compute: report or CSV
            - nvprof: CSV or database
            - TensorFlow or JAX: XPlane
            - Proton (Triton): tree in JSON or MessagePack

    Returns:
        The tables of the profile. Times are in ns.

    Raises:
        AnnotError: the file does not exist, has an unknown format or is damaged.

    Example:
        >>> load("no-such-file.sqlite")
        Traceback (most recent call last):
            ...
        annot.errors.AnnotError: no-such-file.sqlite does not exist
    """
    path = Path(path)
    return _opened(path, lambda reader: reader.read(path))


def source(path: str | os.PathLike[str], *, calls: bool = False) -> Source:
    """Open a profile for attribution, without loading a large SQLite export into memory.

    The attribution is the same as with `load`. An SQLite export is read in blocks, each time that its rows are needed.

    Args:
        path: as for `load`.
        calls: read the names of API calls. The attribution to layers does not need them.

    Raises:
        AnnotError: as for `load`. It can also occur later, while blocks are read.
    """
    path = Path(path)
    return _opened(
        path, lambda reader: reader.stream(path, calls=calls) if hasattr(reader, "stream") else reader.read(path)
    )


def _opened(path: Path, read: Callable[[Reader], T]) -> T:
    tell(f"reading {path.name}")
    reader = reader_of(path)
    _log.info("%s has the format %s (reader %s)", path, reader.NAME, getattr(reader, "__name__", type(reader).__name__))
    try:
        return read(reader)
    except OSError as error:
        raise AnnotError(f"{error.filename or path} cannot be read: {error.strerror or error}") from None


class _Isolated:
    """Reader of another package. After an error in `sniff` the file is not its own; `read` raises `AnnotError`."""

    def __init__(self, extension: Extension) -> None:
        self._extension, self.NAME = extension, extension.target.NAME

    def sniff(self, path: Path, head: bytes) -> bool:
        """Return whether the file has this format."""
        return bool(self._extension.call(self._extension.target.sniff, path, head, default=False))

    def read(self, path: Path) -> Profile:
        """Read the file."""
        profile = self._extension.require(self._extension.target.read, path)
        if isinstance(profile, Profile):
            return profile
        raise AnnotError(f"{path}: {self._extension.title} returned a {type(profile).__name__}, not a Profile")


@cache
def _other_readers() -> tuple[Reader, ...]:
    return tuple(map(_Isolated, loaded("annot.readers", ("NAME", "sniff", "read"))))


def reader_of(path: Path) -> Reader:
    """Return the reader for a file or folder, or raise AnnotError: missing, unreadable or of an unknown format."""
    head = _head(path)
    modules = (module for module, begin in _READERS.items() if re.match(begin, head))
    own = (cast("Reader", import_module(f"annot.read.{module}")) for module in modules)
    for reader in chain(_other_readers(), own):
        if reader.sniff(path, head):
            return reader
    if path.is_dir():
        raise AnnotError(
            f"{path} is a folder without a profile. Expected the parts of an annot recording, a Parquet export of "
            "Nsight Systems or the output of the TensorFlow profiler."
        )
    for magic, verdict in _OTHER_FILES:
        if head.startswith(magic):
            raise AnnotError(f"{path} {verdict}")
    raise AnnotError(
        f"{path} is not a profile in a supported format: it begins with {head[:16]!r}. Expected a profile of Nsight "
        "Systems, Nsight Compute, nvprof, torch.profiler, the TensorFlow profiler, Proton or annot."
    )


def is_profile(path: Path) -> bool:
    """Return whether a reader accepts a file or folder."""
    try:
        reader_of(path)
    except AnnotError:
        return False
    return True


def _head(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return b""
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
    return head
