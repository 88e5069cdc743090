"""The folder beside a profile, ``OUT.parts``, that holds what is recorded until the profile is written.

A lock file in the folder tells that annot made it, and whether a process is using it. `PartsFolder` never removes
anything else: a folder without a lock file, or a file that no collector writes, belongs to the user.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
from pathlib import Path
from typing import Final

from annot.collect.parts import PART_SUFFIX, retire
from annot.errors import AnnotError

__all__ = ["LOCK", "PartsFolder"]

LOCK: Final = "annot.lock"
"""The file that is locked; it holds the number of the process that locked it last."""

_WRITTEN_BY_ANNOT: Final = re.compile(
    rf"\d+-\d+{re.escape(PART_SUFFIX)}|report\..+|nsys\.log|trace\.json(\.gz)?|{re.escape(LOCK)}"
)
"""The names of all files that collectors write."""


class PartsFolder:
    """The folder of one recording, locked by this process.

    Args:
        out: the profile.
        force: take over the folder of a recording that was killed.

    Raises:
        FileExistsError: the folder exists, and `force` is False.
        AnnotError: the folder cannot be made, is in use, or is not annot's to remove.
    """

    path: Path
    """The folder, absolute."""
    target: Path
    """The profile, absolute: the program may change the working directory."""

    def __init__(self, out: Path, *, force: bool) -> None:
        self.path, self.target = Path(os.path.abspath(f"{out}.parts")), Path(os.path.abspath(out))
        try:
            self.path.mkdir()
        except FileExistsError:
            if not force:
                raise
            self._lock = _lock_of_other(self.path)
        except OSError as error:
            raise AnnotError(f"{out} cannot be written: {self.path.parent}: {error.strerror}") from None
        else:
            self._lock = _new_lock(self.path)
        self._file = _identity(os.fstat(self._lock))

    def remove(self) -> None:
        """Remove the folder and what collectors wrote into it; processes that still record there stop."""
        for path in _entries(self.path):
            if path.suffix == PART_SUFFIX:
                retire(path)
        _clear(self.path)
        self._unlock()
        with contextlib.suppress(OSError):
            (self.path / LOCK).unlink()
            self.path.rmdir()

    def leave(self) -> bool:
        """Keep what was recorded for the user. Return False if that is nothing; the folder is then removed."""
        recorded = any(path.name != LOCK for path in _entries(self.path))
        if recorded:
            self._unlock()
        else:
            self.remove()
        return recorded

    def _unlock(self) -> None:
        """Release the lock, also for forked children, which share it."""
        with contextlib.suppress(OSError):
            if _identity(os.fstat(self._lock)) == self._file:  # else the program closed it, and opened another file
                fcntl.flock(self._lock, fcntl.LOCK_UN)
                os.close(self._lock)


def _new_lock(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # a file system without locks: the folder is new all the same
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _sign(lock)
    return lock


def _lock_of_other(folder: Path) -> int:
    """Lock and clear a folder that a killed recording left."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        raise AnnotError(f"{folder} exists, and annot did not make it: move it, or name another profile") from None
    try:
        _check_unused(folder, lock)
        _clear(folder)
        _sign(lock)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _check_unused(folder: Path, lock: int) -> None:
    """Lock the folder.

    Raises:
        AnnotError: a process is using it, or it holds files of the user.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = os.stat(folder / LOCK)
    except OSError:
        owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        raise AnnotError(f"{folder} is in use by process {owner}: wait for its end, or name another profile") from None
    foreign = [path.name for path in _entries(folder) if not _WRITTEN_BY_ANNOT.fullmatch(path.name)]
    if foreign:
        raise AnnotError(f"{folder} holds {foreign[0]}, which annot did not write: move it, or name another profile")
    written = [path.name for path in _entries(folder) if path.name != LOCK and _has_writer(path)]
    if written or _identity(current) != _identity(os.fstat(lock)):
        raise AnnotError(f"{folder} is in use: a process that was recorded still runs: end it, or name another profile")


def _has_writer(path: Path) -> bool:
    """Whether a process has the file open for writing, or mapped: the kernel then grants no read lease."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # a process that opens the file now sends it; it is ignored
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no leases
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
    """Remove what collectors wrote, except the lock file."""
    for path in _entries(folder):
        if path.name != LOCK and _WRITTEN_BY_ANNOT.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def _sign(lock: int) -> None:
    with contextlib.suppress(OSError):  # a full disk; the lock holds
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
