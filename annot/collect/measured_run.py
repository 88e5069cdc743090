"""Run a command whose Python process measures its own steps, for `annot try`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from annot.collect.logged_run import LoggedRun, last_line, problem_of, run_logged
from annot.collect.run import isolating_option, resolve_command, site_variables
from annot.live.request import Request, Result, variables
from annot.util.json_files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A command to run, with a request to its Python process.

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
    profile: Path | None = None
    """Profile to write, with ranges of all models; None: the command runs directly, without a collector."""
    collector: str = "auto"
    """Name of the collector that writes it, see `annot.collect.collectors.choose`."""

    def run(self) -> int:
        """Run the command with an empty standard input, and return its exit status as a shell reports it.

        If this process is interrupted, the command is terminated, also by a second Ctrl-C.

        Raises:
            CommandError: the command does not exist or cannot be executed.
            OSError: the log file cannot be written.
        """
        resolve_command(self.command)
        Path(self.request.result).unlink(missing_ok=True)
        environment = {**self.environment, **variables(self.request)}
        if self.profile is not None:
            profiled = LoggedRun(
                command=self.command,
                profile=self.profile,
                log=self.log,
                collector=self.collector,
                layers=True,
                folder=self.folder,
                environment=environment,
            )
            return profiled.run()
        environ = {**os.environ, **environment}
        return run_logged(self.command, environ | site_variables(environ), self.log, folder=self.folder)

    def result(self, status: int) -> Result | str:
        """Return the measurements of the process, also if it failed, or the reason why there are none, a clause.

        Args:
            status: exit status from `run`.
        """
        result = read_result(Path(self.request.result))
        if result is not None:
            return result
        if option := isolating_option(self.command):
            return f"python {option} skips the start-up code of annot: remove the option"
        failure = problem_of(status, self.log)
        return failure or f"no Python process of the command wrote measurements: {last_line(self.log)}"


def read_result(path: Path) -> Result | None:
    """Return the result that a process wrote, or None without a complete one."""
    return read_json(path, Result)
