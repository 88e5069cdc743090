"""Runs of a sweep: profile each run in its own folder and skip runs that already have a result.

OUT/sweep.lock              locked while the sweep runs
OUT/runs/KEY/result.json    result of the run, written last
OUT/runs/KEY/log.txt        output of the run
OUT/runs/KEY/profile.*      profile of the run
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from annot.collect.collectors import choose
from annot.collect.logged_run import LoggedRun
from annot.errors import writing
from annot.sweep.grid import Run, Sweep
from annot.util import locked_folder
from annot.util.json_files import read_json, write_json


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of a run."""

    parameters: dict[str, Any]
    command: list[str]
    status: int
    """Exit status, as a shell reports it."""
    problem: str | None
    """Why the run failed; None: it succeeded."""
    seconds: float
    profile: str | None
    """File name of the profile in the folder of the run; None: missing."""


def locked(folder: Path) -> AbstractContextManager[None]:
    """Create and lock the output folder of a sweep.

    Raises:
        AnnotError: another sweep holds the lock, or the folder cannot be written.
    """
    return locked_folder.locked(folder, "sweep.lock", "another sweep: wait for it or use another -o OUT")


def finished(folder: Path, run: Run) -> Result | None:
    """Return the result of a run in an output folder from an earlier sweep; None if the run did not finish."""
    return read_json(run_folder(folder, run) / "result.json", Result)


def run_folder(folder: Path, run: Run) -> Path:
    """Return the folder of a run."""
    return folder / "runs" / run.key


def perform(folder: Path, run: Run, sweep: Sweep) -> Result:
    """Run a command under the collector of the sweep and write its result.

    Standard input is empty, and the output goes to a log file. If this process is interrupted, the command is
    terminated and the run counts as unfinished.

    Args:
        folder: the output folder of the sweep.
        run: the run.
        sweep: the sweep, for collector and timeout.

    Raises:
        AnnotError: the folder cannot be written, or the collector is not installed.
    """
    own_folder = run_folder(folder, run)
    logged = LoggedRun(
        command=run.command,
        profile=own_folder / f"profile{choose(sweep.collector).suffix}",
        log=own_folder / "log.txt",
        collector=sweep.collector,
        environment=run.environment,
        timeout=sweep.timeout,
    )
    start = time.monotonic()
    with writing(own_folder):
        own_folder.mkdir(parents=True, exist_ok=True)
        (own_folder / "result.json").unlink(missing_ok=True)
        status = logged.run()
        seconds = round(time.monotonic() - start, 3)
        problem = logged.problem(status)
    result = Result(
        parameters=run.parameters,
        command=list(run.command),
        status=status,
        problem=problem,
        seconds=seconds,
        profile=logged.profile.name if logged.profile.exists() else None,
    )
    write_json(own_folder / "result.json", result)
    return result
