"""Run a command through `annot run` without a terminal: its output goes to a log file, and an interruption ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from annot.collect.run import SIGNALED, shell_status

TIMED_OUT: Final = 124
"""Exit status of a run that exceeds its timeout, as from the `timeout` command."""
_OWN: Final = "annot: "
_ERRORS: Final = f"{_OWN}error: "
_PATIENCE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL."""
_BOUND: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Program that becomes a command, which the kernel terminates if the process that waits for it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """A command to run under a collector, with its files.

    `run` raises OSError if the log file cannot be written.
    """

    command: Sequence[str]
    """Command and arguments."""
    profile: Path
    """Profile to write. An existing file is replaced."""
    log: Path
    """File for the output of the command and the messages of annot."""
    collector: str = "auto"
    """Name of the collector, see `annot.collect.collectors.choose`."""
    layers: bool = False
    """Whether Python processes of the command emit ranges of all their models."""
    folder: Path | None = None
    """Working directory of the command; None: that of this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the environment."""
    timeout: float | None = None
    """Seconds after which the command is terminated; None: unlimited."""

    def run(self) -> int:
        """Run the command with an empty standard input, and return its exit status as a shell reports it.

        If this process is interrupted, the command is terminated, also by a second Ctrl-C.
        """
        options = ["--collector", self.collector, "--force", "--no-report", *(["--layers"] if self.layers else [])]
        output = ["-o", os.path.abspath(self.profile)]
        words = [sys.executable, "-P", "-m", "annot", "run", *options, *output, "--", *self.command]
        return run_logged(words, {**os.environ, **self.environment}, self.log, folder=self.folder, timeout=self.timeout)

    def problem(self, status: int) -> str | None:
        """Return why the run failed, in words; None: it ended with status 0 and wrote a profile.

        Args:
            status: exit status from `run`.
        """
        failure = problem_of(status, self.log, self.timeout)
        if failure or self.profile.exists():
            return failure
        own = [line for line in _lines(self.log) if line.startswith(_OWN)]
        return f"no profile was written: {own[-1].removeprefix(_OWN) if own else last_line(self.log)}"


def run_logged(
    words: Sequence[str], environ: Mapping[str, str], log: Path, *, folder: Path | None, timeout: float | None = None
) -> int:
    """Run a command as `LoggedRun.run` does, but directly; `environ` is its whole environment."""
    _restore_interrupts()
    bound = [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid())]
    with log.open("wb") as file:
        # In a separate session, Ctrl-C reaches only this process, and killpg ends all children of the command.
        child = subprocess.Popen(
            [*bound, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environ,
            cwd=folder,
            start_new_session=True,
        )
    signal.siginterrupt(signal.SIGINT, True)  # the handler of polars lets the system call below go on after Ctrl-C
    try:
        return shell_status(child.wait(timeout))
    except subprocess.TimeoutExpired:
        _end(child)
        return TIMED_OUT
    except BaseException:
        _end(child)
        raise


def problem_of(status: int, log: Path, timeout: float | None = None) -> str | None:
    """Return why a logged run failed, in words; None: it ended with status 0."""
    if status == TIMED_OUT and timeout is not None:
        return f"exceeded the timeout of {timeout:g} s"
    return f"exit status {status}: {last_line(log)}" if status else None


def last_line(log: Path) -> str:
    """Return the last line of the output of a command, without annot's messages other than errors."""
    return (_output(log) or ["no output"])[-1].removeprefix(_ERRORS)[:200]


def last_lines(log: Path, number: int) -> str:
    """Return the last lines of the output of a command, which say why it failed; without output, annot's errors."""
    output = _output(log)
    lines = [line for line in output if not line.startswith(_ERRORS)] or output or ["no output"]
    return " | ".join(lines[-number:])


def _output(log: Path) -> list[str]:
    """The lines of a log without annot's messages other than errors."""
    return [line for line in _lines(log) if not line.startswith(_OWN) or line.startswith(_ERRORS)]


def _lines(log: Path) -> list[str]:
    """The lines of a log that are not empty."""
    return [*filter(None, map(str.strip, log.read_text(encoding="utf-8", errors="replace").split("\n")))]


@contextmanager
def terminable() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP inside the block, so that the command that runs is terminated, too."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(SIGNALED + number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _restore_interrupts() -> None:
    """Let Ctrl-C interrupt a wait: polars installs a handler with which the kernel continues system calls after it."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate the command and the processes that it has started. `annot run` still writes the profile."""
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except BaseException as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
