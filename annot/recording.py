"""`record`: the recorder inside this process, for a part of a program."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from annot.errors import AnnotError, warn

if TYPE_CHECKING:
    from annot.collect.export import Recording
    from annot.collect.folder import PartsFolder

__all__ = ["record"]

_INJECTION: Final = "NVTX_INJECTION64_PATH"
_FOLDER: Final = "ANNOT_RECORD_DIR"


class record:  # noqa: N801  (used like a function, as the context managers of contextlib are)
    """Record what runs in a block, in this process and those it starts, into a profile.

    What goes wrong at the end, a full disk for one, is a warning and not an error, so that the program goes on;
    an exception of the block is left alone, and the profile is written all the same. If the process is being
    recorded already, or another NVTX tool is attached to it, a warning says so and nothing is recorded.

    Args:
        path: the profile to write, an SQLite file.
        force: replace an existing one, and the folder ``<path>.parts`` of a recording that was killed.

    Raises:
        AnnotError: on entry: the profile cannot be written there, or the recorder was not built.

    Example:
        >>> from annot import record, trace
        >>> with record("run.sqlite"):  # doctest: +SKIP
        ...     with trace("augment"):
        ...         pass
    """

    path: Path
    """The profile."""
    recording: Recording | None
    """What it came to; None inside the block, and if nothing was recorded."""

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        self.path = Path(path)
        self.recording = None
        self._force = force
        self._parts: PartsFolder | None = None
        self._recorder: ctypes.CDLL | None = None
        self._pid = 0
        self._environ: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self.recording = None
        library = _library()
        self._check_path()
        recorder = ctypes.CDLL(library)
        obstacle = _obstacle(library, recorder)
        if obstacle:
            warn(f"{obstacle}; {self.path} is not written", stacklevel=2)
            return self
        self._begin(library, recorder)
        return self

    def __exit__(self, *exception: object) -> None:
        # A child that was forked inside the block leaves the rest to its parent.
        if self._recorder is None or self._parts is None or self._pid != os.getpid():
            return
        from annot import emit

        self._recorder.annot_recorder_stop()
        parts, self._recorder, self._parts = self._parts, None, None
        self._restore_environ()
        emit.release()
        if os.path.abspath(self.path) != str(parts.target):  # the program has changed the working directory
            self.path = parts.target
        self._write(parts)

    def _check_path(self) -> None:
        if self.path.is_dir():
            raise AnnotError(f"{self.path} is a folder: name the file to write")
        if os.path.lexists(self.path) and not self._force:
            raise AnnotError(f"{self.path} exists: name another file, or replace it with force=True")
        if self.path.exists() and not self.path.is_file():
            raise AnnotError(f"{self.path} is not a regular file: name another one")
        folder = Path(os.path.abspath(self.path)).parent
        if not folder.is_dir():
            raise AnnotError(f"{self.path} cannot be written: there is no folder {folder}")

    def _make_parts(self) -> PartsFolder:
        from annot.collect.folder import PartsFolder

        try:
            return PartsFolder(self.path, force=self._force)
        except FileExistsError:
            raise AnnotError(
                f"{self.path}.parts exists: a recording of {self.path} goes on or was killed; remove it or use "
                "force=True"
            ) from None

    def _begin(self, library: str, recorder: ctypes.CDLL) -> None:
        from annot import emit

        parts = self._make_parts()
        self._set_environ(_INJECTION, library)
        blind = _nvtx_is_blind(recorder)
        error = recorder.annot_recorder_start(os.fsencode(parts.path))
        if error:
            self._restore_environ()
            parts.remove()
            raise AnnotError(f"{self.path} cannot be written: {parts.path}: {os.strerror(error)}")
        self._set_environ(_FOLDER, str(parts.path))
        self._recorder, self._parts, self._pid = recorder, parts, os.getpid()
        emit.reattach()
        if blind:
            others = "those of annot are" if emit.IS_NATIVE else "nor are those of annot, which come through it"
            warn(f"{_BLIND}, {others}; {_REMEDY}", stacklevel=3)

    def _write(self, parts: PartsFolder) -> None:
        try:
            from annot.collect.export import assemble

            self.recording = assemble(parts.path, self.path)
        except (AnnotError, ModuleNotFoundError) as error:  # the latter: annot was installed for its ranges alone
            parts.leave()
            warn(f"{error}; what was recorded is in {parts.path}", stacklevel=3)
            return
        except BaseException:  # an interrupt, for example
            parts.leave()
            raise
        parts.remove()
        if self.recording.lost:
            warn(
                f"{self.recording.lost} events could not be written and are missing in {self.path} (is the disk full?)",
                stacklevel=3,
            )

    def _set_environ(self, name: str, value: str) -> None:
        self._environ[name] = os.environ.get(name)
        os.environ[name] = value

    def _restore_environ(self) -> None:
        for name, value in self._environ.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environ.clear()


_BLIND: Final = (
    "the nvtx package made its first call before this recording and found no tool, which it does not reconsider: "
    "its ranges are not recorded"
)
_REMEDY: Final = "enter `record` earlier, or use `annot run`"


def _library() -> str:
    from annot import native

    library = native.recorder_library()
    if library is None:
        raise AnnotError(
            "the recorder was not built: install a C compiler (Debian: apt install gcc) and then annot again: "
            f"{native.build_command()}"
        )
    return str(library)


def _obstacle(library: str, recorder: ctypes.CDLL) -> str | None:
    """Return why this process cannot be recorded."""
    tool = os.environ.get(_INJECTION, "")
    if tool and not _same_file(tool, library):
        return f"another NVTX tool, {tool}, is attached and gets the ranges"
    # A child that outlives the recording it was forked in still has its variables.
    if recorder.annot_recorder_active() or (tool and os.path.isdir(os.environ.get(_FOLDER, ""))):
        return "this process is being recorded already"
    return None


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _nvtx_is_blind(recorder: ctypes.CDLL) -> bool:
    """Whether the nvtx package, if it is loaded, has decided that there is no tool; if undecided, it decides now."""
    nvtx: Any = sys.modules.get("nvtx")
    if nvtx is None or not hasattr(nvtx, "start_range"):
        return False
    before = recorder.annot_recorder_starts()
    started = nvtx.start_range("annot")
    if started is not None:
        nvtx.end_range(started)
    return bool(recorder.annot_recorder_starts() == before)
