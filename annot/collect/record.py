"""Context manager `record`: record a part of a program with the recorder in this process."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from annot.errors import AnnotError, require_linux, warn

if TYPE_CHECKING:
    from annot.collect.parts_folder import PartsFolder
    from annot.read.recording.export import Recording

_INJECTION: Final = "NVTX_INJECTION64_PATH"
_FOLDER: Final = "ANNOT_RECORD_DIR"


class record:  # noqa: N801  (lower case, as the context managers of contextlib)
    """Record the NVTX ranges of a block, in this process and its children, to a profile.

    A failure at the end of the block, such as a full disk, is a warning, so that the program continues. If the block
    raises, the profile is still written and the exception propagates. If the process is already being recorded or
    another NVTX tool is attached, `record` warns and records nothing.

    Args:
        path: profile to write, an SQLite file.
        force: replace an existing profile, and the folder ``<path>.parts`` of a killed recording.

    Raises:
        AnnotError: on entry, the profile cannot be written or the recorder is not built, or this system is not Linux.

    Example:
        >>> from annot import record, trace
        >>> with record("run.sqlite"):  # doctest: +SKIP
        ...     with trace("augment"):
        ...         pass
    """

    path: Path
    """Path of the profile."""
    recording: Recording | None
    """Summary of the recording; None inside the block, and if nothing was recorded."""

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        self.path = Path(path)
        self.recording = None
        self._force = force
        self._folder: PartsFolder | None = None
        self._recorder: ctypes.CDLL | None = None
        self._pid = 0
        self._environ: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self.recording = None
        require_linux("recording a profile")
        from annot.collect.parts_folder import PartsFolder, check_free
        from annot.collect.run import built_recorder
        from annot.emit import client

        library = built_recorder()
        check_free(self.path, force=self._force)
        parent = Path(os.path.abspath(self.path)).parent
        if not parent.is_dir():
            raise AnnotError(f"{self.path} cannot be written: the folder {parent} does not exist")
        recorder = ctypes.CDLL(library)
        obstacle = _obstacle(library, recorder)
        if obstacle:
            warn(f"{obstacle}: {self.path} is not written", stacklevel=2)
            return self
        folder = PartsFolder(self.path, force=self._force)
        self._set_environ(_INJECTION, library)
        blind = _nvtx_is_blind(recorder)
        error = recorder.annot_recorder_start(os.fsencode(folder.path))
        if error:
            self._restore_environ()
            folder.remove()
            raise AnnotError(f"{self.path} cannot be written: {folder.path}: {os.strerror(error)}")
        self._set_environ(_FOLDER, str(folder.path))
        self._recorder, self._folder, self._pid = recorder, folder, os.getpid()
        client.reattach()
        if blind:
            own = "but annot's ranges are recorded" if client.IS_NATIVE else "nor are annot's, which use this package"
            warn(f"{_BLIND}, {own}. {_REMEDY}", stacklevel=2)
        return self

    def __exit__(self, *exception: object) -> None:
        # A child process that was forked inside the block leaves the profile to its parent.
        if self._recorder is None or self._folder is None or self._pid != os.getpid():
            return
        from annot.emit import client

        self._recorder.annot_recorder_stop()
        folder, self._recorder, self._folder = self._folder, None, None
        self._restore_environ()
        client.release()
        if os.path.abspath(self.path) != str(folder.target):  # the program changed the working directory
            self.path = folder.target
        self._write(folder)

    def _write(self, folder: PartsFolder) -> None:
        try:
            from annot.read.recording.export import assemble

            self.recording = assemble(folder.path, self.path)
        except (AnnotError, ModuleNotFoundError) as error:  # the latter: installed without polars
            folder.leave()
            warn(f"{error}; the recorded data is in {folder.path}", stacklevel=3)
            return
        except BaseException:  # for example KeyboardInterrupt
            folder.leave()
            raise
        folder.remove()
        if self.recording.lost:
            warn(self.recording.loss(self.path), stacklevel=3)

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
    "the nvtx package made its first call before this recording, found no tool, and stays disabled: its ranges are "
    "not recorded"
)
_REMEDY: Final = "Enter `record` earlier, or use `annot run`."


def _obstacle(library: str, recorder: ctypes.CDLL) -> str | None:
    """Return the reason why this process cannot be recorded, or None."""
    tool = os.environ.get(_INJECTION, "")
    if tool and not (os.path.exists(tool) and os.path.samefile(tool, library)):
        return f"another NVTX tool, {tool}, is attached and receives the ranges"
    # A child process that outlives its recording still has the environment variables of that recording.
    if recorder.annot_recorder_active() or (tool and os.path.isdir(os.environ.get(_FOLDER, ""))):
        return "this process is already being recorded"
    return None


def _nvtx_is_blind(recorder: ctypes.CDLL) -> bool:
    """Return whether the nvtx package is loaded and disabled.

    NVTX looks for a tool at its first call only. The test range here is that first call, if there was none before.
    """
    nvtx: Any = sys.modules.get("nvtx")
    if nvtx is None or not hasattr(nvtx, "start_range"):
        return False
    before = recorder.annot_recorder_starts()
    started = nvtx.start_range("annot")
    if started is not None:
        nvtx.end_range(started)
    return bool(recorder.annot_recorder_starts() == before)
