"""Running a command under a collector: the seam between collectors, output file and child process."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from annot.collect.relay import Relay
from annot.errors import AnnotError

__all__ = [
    "Collected",
    "Collector",
    "CommandError",
    "Job",
    "meta_of",
    "resolve_command",
    "run_child",
    "shell_status",
]


class CommandError(AnnotError):
    """The command cannot be run; `status` is what a shell would exit with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Job:
    """One command to be profiled."""

    command: tuple[str, ...]
    """What to run, as typed."""
    executable: str
    """The file that the first word of the command names."""
    out: Path
    """The profile to write, as named by the user."""
    parts: Path
    """A fresh folder beside `out`, absolute, for what is recorded; removed when `out` was written."""
    say: Callable[[str], None] = field(repr=False)
    """Takes a line for the user."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collector wrote."""

    ranges: int
    """How many ranges are in the profile."""
    notes: tuple[str, ...] = ()
    """Sentences about what was lost or could not be seen."""


class Collector(Protocol):
    """Something that can watch a command run and write down its ranges."""

    name: str
    """What ``--collector`` calls it."""
    suffix: str
    """Ending of a profile that the user gave no name."""

    def run(self, job: Job) -> int:
        """Run the command and leave what was recorded in ``job.parts``; return its status as a shell would.

        Raises:
            AnnotError: the command was not run.
        """

    def convert(self, job: Job, status: int) -> Collected:
        """Turn what was recorded into the file ``job.out``.

        Raises:
            AnnotError: it cannot be.
        """


def resolve_command(command: Sequence[str], path: str | None = None) -> str:
    """Return the file that a command's first word names.

    Args:
        command: the command as typed.
        path: folders to look in; ``$PATH`` if None.

    Raises:
        CommandError: there is no such command (status 127), or it cannot be executed (126).

    Example:
        >>> resolve_command(["sh", "-c", "exit 3"], "/bin")
        '/bin/sh'
    """
    name = command[0]
    found = shutil.which(name, path=path)
    if found:
        return found
    folders = [""] if "/" in name else (path or os.environ.get("PATH", os.defpath)).split(os.pathsep)
    for candidate in (os.path.join(folder, name) for folder in folders) if name else ():
        if os.path.isdir(candidate):
            raise CommandError(f"{candidate} is a folder, not a command", 126)
        if os.path.exists(candidate):
            raise CommandError(f"{candidate} is not executable: chmod +x it, or name its interpreter", 126)
    raise CommandError(f"there is no command {name!r}{_hint(name)}", 127)


def _hint(name: str) -> str:
    """What was meant, if the word names a file in the current folder, where commands are not looked for."""
    if not os.path.isfile(name):
        return ""
    return f"; run the file as {shlex.join(['python', name] if name.endswith('.py') else [os.path.join('.', name)])}"


def run_child(job: Job, *, environ: Mapping[str, str]) -> int:
    """Run the command of `job` in this terminal, with this process's streams, and wait for it.

    Args:
        job: what to run.
        environ: the whole environment of the command.

    Returns:
        Its status as a shell would give it.

    Raises:
        CommandError: the file is not something that can be executed.
    """
    with Relay(shared_group=True) as relay:
        try:
            # Open files are passed on as a shell would: Python's own are closed on exec by themselves.
            child = subprocess.Popen(job.command, executable=job.executable, env=environ, close_fds=False)
        except OSError as error:
            raise CommandError(f"{job.executable} cannot be executed: {error.strerror}", 126) from None
        relay.to(child.send_signal)
        return shell_status(child.wait())


def shell_status(returncode: int) -> int:
    """Return what a shell makes of a child's return code: 128+n if signal n ended it.

    Example:
        >>> shell_status(3), shell_status(-15)
        (3, 143)
    """
    return returncode if returncode >= 0 else 128 - returncode


def meta_of(job: Job, collector: str, status: int) -> dict[str, str]:
    """Return what a profile should say of where it comes from."""
    return {
        "ANNOT_COMMAND": shlex.join(job.command),
        "ANNOT_FOLDER": os.getcwd(),
        "ANNOT_HOST": socket.gethostname(),
        "ANNOT_COLLECTOR": collector,
        "ANNOT_VERSION": importlib.metadata.version("annot"),
        "ANNOT_EXIT_STATUS": str(status),
    }
