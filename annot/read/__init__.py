"""Read a profile of any known format into the tables of `annot.profile`.

A reader is a module, or any object, that satisfies `Reader`: it recognises its format by content, never by name.
Those of other packages are found by the entry points of the group ``annot.readers``; they are asked first.
"""

from __future__ import annotations

import functools
import os
import stat
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final, Protocol

from annot.errors import AnnotError
from annot.profile import Profile, Source
from annot.progress import tell
from annot.read import (
    kineto,
    ncu_csv,
    ncu_rep,
    nsys_parquet,
    nsys_report,
    nsys_sqlite,
    nvprof_csv,
    nvprof_sqlite,
    recording,
    xplane,
)

__all__ = ["Reader", "load", "reader_of", "source"]

_HEAD: Final = 65536


class Reader(Protocol):
    """What a module must have to serve as a reader."""

    NAME: str
    """Name of the format, as `Profile.meta` gives it."""

    def sniff(self, path: Path, head: bytes) -> bool:
        """Return whether the file looks like this format.

        Args:
            path: an existing file or folder.
            head: the first 64 KiB of the file; empty for a folder.
        """

    def read(self, path: Path) -> Profile:
        """Read the file.

        Raises:
            AnnotError: the file is of this format, but it is damaged or holds nothing that annot can use.
        """


_READERS: Final[tuple[Reader, ...]] = (
    nvprof_sqlite, nsys_sqlite, nsys_report, nsys_parquet, recording, kineto, ncu_rep, ncu_csv, nvprof_csv, xplane,
)  # fmt: skip

# What else people hand over, by its first bytes, and what to do with it.
_KNOWN: Final = (
    (b"\x1f\x8b", "is compressed with gzip and holds no trace: unpack it if there is another profile inside"),
    (b"PAR1", "is a single Parquet file: give the folder that nsys export --type parquetdir wrote"),
    (b"PK\x03\x04", "is a zip archive: unpack it first"),
)


def load(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a file, whatever its format and name.

    Args:
        path: a report of Nsight Systems or its SQLite or Parquet export, a recording of annot or the folder of
            parts that an interrupted one left, a trace of torch.profiler, a report or CSV of Nsight Compute,
            a CSV or database of nvprof, or an XPlane of TensorFlow or JAX. The file is not changed.

    Raises:
        AnnotError: there is no such file, or it is not a profile that can be read; one sentence says why.

    Example:
        >>> load("no-such-file.sqlite")
        Traceback (most recent call last):
            ...
        annot.errors.AnnotError: no-such-file.sqlite does not exist
    """
    path = Path(path)
    tell(f"reading {path.name}")
    return reader_of(path).read(path)


def source(path: str | os.PathLike[str], *, calls: bool = False) -> Source:
    """Return what `load` does, but let a large SQLite export stay in its file, to be read in blocks.

    Layers come out the same. What lies in blocks cannot be looked at as a table, and is read anew each time.

    Args:
        path: as for `load`.
        calls: whether API calls have their names, which no layer needs.

    Raises:
        AnnotError: as for `load`; also later, while blocks are read.
    """
    path = Path(path)
    tell(f"reading {path.name}")
    reader = reader_of(path)
    return nsys_sqlite.stream(path, calls=calls) if reader is nsys_sqlite else reader.read(path)


def reader_of(path: Path) -> Reader:
    """Return the reader for a file or folder.

    Raises:
        AnnotError: there is no such file, it cannot be read, or no reader knows it.
    """
    head = _head(path)
    for reader in (*_plugins(), *_READERS):
        if reader.sniff(path, head):
            return reader
    if path.is_dir():
        raise AnnotError(
            f"{path} is a folder with neither the parts of a recording of annot, nor a Parquet export of Nsight "
            "Systems, nor what TensorFlow's profiler writes"
        )
    for magic, verdict in _KNOWN:
        if head.startswith(magic):
            raise AnnotError(f"{path} {verdict}")
    raise AnnotError(
        f"{path} is not a profile that annot knows: it begins with {head[:16]!r}; expected one of Nsight Systems, "
        "Nsight Compute, nvprof, torch.profiler, TensorFlow's profiler or annot"
    )


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


@functools.cache
def _plugins() -> tuple[Reader, ...]:
    return tuple(map(_plugin, entry_points(group="annot.readers")))


def _plugin(point: EntryPoint) -> Reader:
    """The reader that a package declares; one that cannot be used is said to be so, and whose it is."""
    whose = f"the reader {point.value} of the package {point.dist.name if point.dist else point.name}"
    try:
        reader = point.load()
    except Exception as error:
        raise AnnotError(f"{whose} cannot be loaded: {error}") from error
    if missing := [name for name in ("NAME", "sniff", "read") if not hasattr(reader, name)]:
        raise AnnotError(f"{whose} has no {' and no '.join(missing)}: see annot guide extending, or uninstall it")
    loaded: Reader = reader
    return loaded
