"""Run a command whose Python process measures its own steps, for `annot try`. No collector runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from annot.collect.logged_run import last_line, problem_of, run_logged
from annot.collect.run import isolating_option, resolve_command, site_variables
from annot.live.request import Request, Result, variables


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A command to run directly, with a request to its Python process.

    Example:
        >>> import sys, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = MeasuredRun(
        ...         command=[sys.executable, "-c", "print(6 * 7)"],
        ...         request=Request(result=f"{folder}/result.json"),
        ...         log=Path(folder) / "log.txt",
        ...     )
        ...     run.result(run.run()).ended
        'program'
    """

    command: Sequence[str]
    """Command and arguments."""
    request: Request
    """What the process measures and changes. Its file for the result is replaced."""
    log: Path
    """File for the output of the command."""
    folder: Path | None = None
    """Working directory of the command; None: that of this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the environment."""
    timeout: float | None = None
    """Seconds after which the command is terminated; None: unlimited."""

    def run(self) -> int:
        """Run the command with an empty standard input, and return its exit status as a shell reports it.

        If this process is interrupted, the command is terminated, also by a second Ctrl-C.

        Raises:
            CommandError: the command does not exist or cannot be executed.
            OSError: the log file cannot be written.
        """
        resolve_command(self.command)
        Path(self.request.result).unlink(missing_ok=True)
        environ = {**os.environ, **self.environment}
        environ |= site_variables(environ) | variables(self.request)
        return run_logged(self.command, environ, self.log, folder=self.folder, timeout=self.timeout)

    def result(self, status: int) -> Result | str:
        """Return the measurements of the process, also if it failed, or the reason why there are none, a clause.

        Args:
            status: exit status from `run`.
        """
        result = read_result(Path(self.request.result))
        if result is not None:
            return result
        return unmeasured(self.command, problem_of(status, self.log, self.timeout), self.log)


def unmeasured(command: Sequence[str], failure: str | None, log: Path) -> str:
    """Return why no process of a command wrote measurements, a clause.

    Args:
        command: command and arguments.
        failure: why the command failed; None: its exit status is 0.
        log: its output.
    """
    option = isolating_option(command)
    if option:
        return f"python {option} skips the start-up code of annot: remove the option"
    return failure or f"no Python process of the command wrote measurements: {last_line(log)}"


def read_result(path: Path) -> Result | None:
    """Return the result that a process wrote, or None without a complete one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return None
