"""Interface of collectors, and helpers to run the command and to forward signals to it, exactly once each."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol, Self

from annot import native
from annot.errors import AnnotError
from annot.live.environment import VARIABLE
from annot.util.program import Program

SIGNALED: Final = 128
"""A shell reports this status plus the number of the signal that ended a command."""
_SITE: Final = Path(__file__).parent / "site"


class CommandError(AnnotError):
    """The command cannot be run; `status` is the exit status that a shell would return."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Job:
    """A command to profile."""

    program: Program
    """The command as typed, and what it runs."""
    executable: str
    """Path of the executable."""
    out: Path
    """Path of the profile, as the user gave it."""
    parts: Path
    """Absolute path of a new folder beside `out` for recorded data; removed after `out` is written."""
    say: Callable[[str], None] = field(repr=False)
    """Receives messages for the user, one line each."""
    layers: bool = False
    """Whether Python processes of the command emit ranges of all their models."""

    @property
    def command(self) -> tuple[str, ...]:
        """Command and arguments, as typed."""
        return self.program.command


@dataclass(frozen=True, slots=True)
class Collected:
    """Contents of a profile that a collector wrote."""

    ranges: int
    """Number of ranges in the profile."""
    notes: tuple[str, ...] = ()
    """Notes about lost or unrecorded data."""
    too_early: str = ""
    """How the command ended, if nothing was recorded: "before it called a model". The profile is not written then."""
    obstacle: str = ""
    """Why the collector recorded nothing, a sentence. The profile is not written then."""


def nothing_recorded(job: Job, *notes: str, ending: str = "") -> Collected:
    """Return the contents of a profile without ranges and GPU activities, which is not written.

    Args:
        job: the command.
        notes: notes about lost or unrecorded data.
        ending: how the command ended; empty: before it called a model or opened a range.
    """
    return Collected(0, notes, ending or f"before it {'called a model' if job.layers else 'opened a range'}")


class Collector(Protocol):
    """A tool that runs a command and records its ranges."""

    name: str
    """Name for ``--collector``."""
    suffix: str
    """Suffix of the default profile name."""

    def run(self, job: Job) -> int:
        """Run the command and record to ``job.parts``. Return its exit status as a shell reports it.

        AnnotError means that the command was not run.
        """

    def convert(self, job: Job, status: int) -> Collected:
        """Convert the recorded data to the file ``job.out``, or raise AnnotError. Without data, write no file.

        `status` is the exit status of the command.
        """


def resolve_command(command: Sequence[str]) -> str:
    """Return the path of the executable of a command, or raise CommandError: not found (127), not executable (126)."""
    name = command[0]
    executable = shutil.which(name)
    if executable:
        return executable
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for candidate in (os.path.join(folder, name) for folder in folders) if name else ():
        if os.path.isdir(candidate):
            raise CommandError(f"{candidate} is a folder, not a command", 126)
        if os.path.exists(candidate):
            raise CommandError(f"{candidate} is not executable: run chmod +x, or put the interpreter before it", 126)
    hint = ""
    if os.path.isfile(name):  # the current folder is usually not in $PATH
        words = ["python", name] if name.endswith(".py") else [os.path.join(".", name)]
        hint = f"; run the file as {shlex.join(words)}"
    raise CommandError(f"command {name!r} not found{hint}", 127)


def environment(job: Job, **prepared: str) -> dict[str, str]:
    """Return the environment of the command: `prepared`, and what Python's start-up module `site` needs."""
    if job.layers:
        prepared["ANNOT_LAYERS"] = "1"
    if {*os.environ, *prepared} & {"ANNOT_LAYERS", "ANNOT_TORCH_TRACE", VARIABLE}:
        option = isolating_option(job.command)
        if option:
            missing = "layers have no ranges" if job.layers else "torch.profiler is not started"
            job.say(f"python {option} skips the start-up code of annot: {missing}. Remove the option")
        prepared |= site_variables(os.environ)
    return {**os.environ, **prepared}


def site_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which Python imports the start-up module of annot, for a command with this environment.

    Example:
        >>> site_variables({"PYTHONPATH": "/opt/modules"})["ANNOT_PYTHONPATH"]
        '/opt/modules'
    """
    before = environ.get("PYTHONPATH")
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(_SITE), before]))}
    return path if before is None else {**path, "ANNOT_PYTHONPATH": before}


def isolating_option(command: Sequence[str]) -> str:
    """Return the option with which Python ignores PYTHONPATH (-I, -E) or imports no start-up module (-S), or ""."""
    names = [index for index, word in enumerate(command) if re.fullmatch(r"python[\d.]*", os.path.basename(word))]
    words = iter(command[names[0] + 1 :] if names else ())
    for word in words:
        if not re.match("-[A-Za-z?]", word):
            return ""
        match = re.match("-[^cmWXIES]*([cmWXIES]?)(.*)", word)
        letter, rest = match.groups() if match else ("", "")
        if letter in ("I", "E", "S"):
            return f"-{letter}"
        if letter in ("c", "m"):
            return ""
        if letter and not rest:  # -W and -X have a value
            next(words, None)
    return ""


def run_child(job: Job, **prepared: str) -> int:
    """Run the command of `job` with the streams of this process, and return its exit status as a shell reports it.

    `prepared` are variables of its environment.
    """
    with Relay(shared_group=True) as relay:
        try:
            # Inherited files stay open, as in a shell. Files that Python opens are close-on-exec (PEP 446).
            child = subprocess.Popen(
                job.command, executable=job.executable, env=environment(job, **prepared), close_fds=False
            )
        except OSError as error:
            raise CommandError(f"{job.executable} cannot be executed: {error.strerror}", 126) from None
        relay.to(child.send_signal)
        return shell_status(child.wait())


def shell_status(returncode: int) -> int:
    """Return the exit status that a shell reports, 128+n after signal n, for a `returncode` of `subprocess.Popen`.

    Example:
        >>> shell_status(3), shell_status(-15)
        (3, 143)
    """
    return returncode if returncode >= 0 else SIGNALED - returncode


def built_recorder() -> str:
    """Return the path of the recorder library, or raise AnnotError if it is not built."""
    library = native.recorder_library()
    if library is None:
        raise AnnotError(
            "the recorder is not built: install a C compiler (Debian: apt install gcc), then reinstall annot: "
            f"{native.build_command()}"
        )
    return str(library)


_FORWARDED: Final = [
    number
    for number in signal.Signals  # Windows lacks most of them, and imports this module
    if number.name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
]


class Relay:
    """Context manager that forwards the signals sent to this process to the script.

    Ctrl-C signals every process of the foreground group, `kill PID` only one. In a shared group, a signal is forwarded
    only if the group did not receive it. `shared_group` tells whether the script runs in the process group of this
    process.
    """

    def __init__(self, *, shared_group: bool) -> None:
        self._witness = _Witness() if shared_group else None
        self._send: Callable[[int], object] | None = None
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers. Ignored signals (`nohup`) stay ignored."""
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._witness:
            self._witness.dismiss()

    def to(self, send: Callable[[int], object]) -> None:
        """Set the receiver, a function of a signal number, and send it the signals that arrived earlier."""
        self._send = send
        while self._waiting:
            with contextlib.suppress(ProcessLookupError):
                send(self._waiting.pop(0))

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        try:
            if self._witness and self._witness.has_received(number):
                return
            self._waiting.append(number)
            if self._send is not None:
                self.to(self._send)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Witness:
    """Child process in this group that blocks all signals. Its pending signals show what the group received."""

    def __init__(self) -> None:
        self._start()

    def has_received(self, number: int) -> bool:
        """Return whether the whole group received the signal."""
        with open(f"/proc/{self._pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file)
        if not int(fields["ShdPnd"], 16) >> (number - 1) & 1:
            return False
        self.dismiss()
        self._start()
        return True

    def dismiss(self) -> None:
        """End the process."""
        os.close(self._pipe)
        os.waitpid(self._pid, 0)

    def _start(self) -> None:
        end, self._pipe = os.pipe()  # the child exits when this process closes its end or dies
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            os.read(end, 1)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(end)
