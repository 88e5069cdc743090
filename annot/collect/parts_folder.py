"""Temporary folder beside a profile, ``OUT.parts``, for recorded data until the profile is written.

A lock file in the folder marks it as annot's and shows whether a process uses it. `PartsFolder` removes only files that
collectors write. A folder without a lock file, or any other file, belongs to the user.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Final

from annot.errors import AnnotError
from annot.read.recording.files import PART_SUFFIX, retire
from annot.util.program import FILE

if sys.platform != "win32":
    import fcntl

LOCK: Final = "annot.lock"
"""Name of the lock file. It contains the id of the last process that locked it."""

_WRITTEN_BY_ANNOT: Final = re.compile(
    rf"\d+-\d+{re.escape(PART_SUFFIX)}|report\..+|nsys\.log|trace\.json(\.gz)?|{re.escape(FILE)}|{re.escape(LOCK)}"
)
"""Names of all files that collectors write."""


class FolderExistsError(AnnotError):
    """The folder of a recording exists."""


class PartsFolder:
    """Folder of the recording of a profile, locked by this process. `force` reuses the folder of a killed recording.

    It raises FolderExistsError for an existing folder without `force`, which the user calls `flag`, and AnnotError for
    one that is in use, holds files of the user or cannot be created.
    """

    path: Path
    """Absolute path of the folder."""
    target: Path
    """Absolute path of the profile, because the program may change the working directory."""

    def __init__(self, out: Path, *, force: bool, flag: str = "force=True") -> None:
        self.path, self.target = Path(os.path.abspath(f"{out}.parts")), Path(os.path.abspath(out))
        try:
            self.path.mkdir()
        except FileExistsError:
            if not force:
                raise FolderExistsError(
                    f"{out}.parts exists: another recording is writing {out}, or was killed; remove the folder or use "
                    f"{flag}"
                ) from None
            self._lock = _lock_of_other(self.path)
        except OSError as error:
            raise AnnotError(f"{out} cannot be written: {self.path.parent}: {error.strerror}") from None
        else:
            self._lock = _new_lock(self.path)
        self._file = _identity(os.fstat(self._lock))

    def remove(self) -> None:
        """Remove the folder and the files of collectors. Processes that still record there stop."""
        for path in _entries(self.path):
            if path.suffix == PART_SUFFIX:
                retire(path)
        _clear(self.path)
        self._unlock()
        with contextlib.suppress(OSError):
            (self.path / LOCK).unlink()
            self.path.rmdir()

    def leave(self) -> bool:
        """Keep the recorded data for the user. Remove an empty folder and return False."""
        recorded = any(path.name != LOCK for path in _entries(self.path))
        if recorded:
            self._unlock()
        else:
            self.remove()
        return recorded

    def _unlock(self) -> None:
        """Release the lock. Forked children share it, so closing the file is not enough."""
        with contextlib.suppress(OSError):
            if _identity(os.fstat(self._lock)) == self._file:  # the program may have closed it and reused its number
                fcntl.flock(self._lock, fcntl.LOCK_UN)
                os.close(self._lock)


def check_free(path: Path, *, force: bool, other: str = "another name", flag: str = "force=True") -> None:
    """Raise AnnotError if a profile cannot be written. `other` and `flag` say how to use another name and `force`."""
    if path.is_dir():
        raise AnnotError(f"{path} is a folder: use the name of a file")
    if os.path.lexists(path) and not force:
        raise AnnotError(f"{path} exists: use {other}, or replace it with {flag}")
    if path.exists() and not path.is_file():
        raise AnnotError(f"{path} is not a regular file: use {other}")


def _new_lock(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # some file systems lack locks; a new folder needs none
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _sign(lock)
    return lock


def _lock_of_other(folder: Path) -> int:
    """Lock and clear the folder of a killed recording."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        raise AnnotError(
            f"{folder} exists, but annot did not create it: move it, or use another profile name"
        ) from None
    try:
        _check_unused(folder, lock)
        _clear(folder)
        _sign(lock)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _check_unused(folder: Path, lock: int) -> None:
    """Lock the folder. Raise AnnotError if a process uses it, or if it holds files of the user."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = os.stat(folder / LOCK)
    except OSError:
        owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        raise AnnotError(
            f"{folder} is in use by process {owner}: wait until it ends, or use another profile name"
        ) from None
    foreign = [path.name for path in _entries(folder) if not _WRITTEN_BY_ANNOT.fullmatch(path.name)]
    if foreign:
        raise AnnotError(
            f"{folder} contains {foreign[0]}, which annot did not write: move it, or use another profile name"
        )
    written = [path.name for path in _entries(folder) if path.name != LOCK and _has_writer(path)]
    if written or _identity(current) != _identity(os.fstat(lock)):
        raise AnnotError(
            f"{folder} is in use by a recorded process that still runs: end it, or use another profile name"
        )


def _has_writer(path: Path) -> bool:
    """Return whether a process has the file open for writing or mapped; Linux then refuses a read lease."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # The kernel sends SIGURG if a process opens the file meanwhile. It is ignored by default.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:  # the file system does not support leases
        return False
    finally:
        os.close(file)
    return False


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _clear(folder: Path) -> None:
    """Remove the files of collectors, except the lock file."""
    for path in _entries(folder):
        if path.name != LOCK and _WRITTEN_BY_ANNOT.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def _sign(lock: int) -> None:
    with contextlib.suppress(OSError):  # the disk may be full; the lock still holds
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
