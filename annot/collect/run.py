"""Interface of collectors, and helpers to run the command."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from annot import native
from annot.collect.signal_relay import Relay
from annot.errors import AnnotError

__all__ = [
    "Collected", "Collector", "CommandError", "Job", "built_recorder", "resolve_command", "run_child", "shell_status",
]  # fmt: skip


class CommandError(AnnotError):
    """The command cannot be run; `status` is the exit status that a shell would return."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Job:
    """A command to profile."""

    command: tuple[str, ...]
    """Command and arguments, as typed."""
    executable: str
    """Path of the executable."""
    out: Path
    """Path of the profile, as the user gave it."""
    parts: Path
    """Absolute path of a new folder beside `out` for recorded data; removed after `out` is written."""
    say: Callable[[str], None] = field(repr=False)
    """Receives messages for the user, one line each."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Contents of a profile that a collector wrote."""

    ranges: int
    """Number of ranges in the profile."""
    notes: tuple[str, ...] = ()
    """Notes about lost or unrecorded data."""


class Collector(Protocol):
    """A tool that runs a command and records its ranges."""

    name: str
    """Name for ``--collector``."""
    suffix: str
    """Suffix of the default profile name."""

    def run(self, job: Job) -> int:
        """Run the command and record to ``job.parts``. Return its exit status as a shell reports it.

        Raises:
            AnnotError: the command was not run.
        """

    def convert(self, job: Job, status: int) -> Collected:
        """Convert the recorded data to the file ``job.out``. `status` is the exit status of the command.

        Raises:
            AnnotError: the data cannot be converted.
        """


def resolve_command(command: Sequence[str]) -> str:
    """Return the path of the executable of a command.

    Raises:
        CommandError: the command was not found (status 127) or is not executable (126).
    """
    name = command[0]
    found = shutil.which(name)
    if found:
        return found
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for candidate in (os.path.join(folder, name) for folder in folders) if name else ():
        if os.path.isdir(candidate):
            raise CommandError(f"{candidate} is a folder, not a command", 126)
        if os.path.exists(candidate):
            raise CommandError(f"{candidate} is not executable: run chmod +x, or put the interpreter before it", 126)
    raise CommandError(f"command {name!r} not found{_hint(name)}", 127)


def _hint(name: str) -> str:
    """Return a hint if the word is a file in the current folder, which is usually not in ``$PATH``."""
    if not os.path.isfile(name):
        return ""
    return f"; run the file as {shlex.join(['python', name] if name.endswith('.py') else [os.path.join('.', name)])}"


def run_child(job: Job, *, environ: Mapping[str, str]) -> int:
    """Run the command of `job` with the streams of this process, and return its exit status as a shell reports it.

    Raises:
        CommandError: the file cannot be executed.
    """
    with Relay(shared_group=True) as relay:
        try:
            # Inherited files stay open, as in a shell. Files that Python opens are close-on-exec (PEP 446).
            child = subprocess.Popen(job.command, executable=job.executable, env=environ, close_fds=False)
        except OSError as error:
            raise CommandError(f"{job.executable} cannot be executed: {error.strerror}", 126) from None
        relay.to(child.send_signal)
        return shell_status(child.wait())


def shell_status(returncode: int) -> int:
    """Return the exit status that a shell reports: 128+n after signal n.

    Args:
        returncode: return code of `subprocess.Popen`, negative after a signal.

    Example:
        >>> shell_status(3), shell_status(-15)
        (3, 143)
    """
    return returncode if returncode >= 0 else 128 - returncode


def built_recorder() -> str:
    """Return the path of the recorder library.

    Raises:
        AnnotError: the recorder is not built.
    """
    library = native.recorder_library()
    if library is None:
        raise AnnotError(
            "the recorder is not built: install a C compiler (Debian: apt install gcc), then reinstall annot: "
            f"{native.build_command()}"
        )
    return str(library)
