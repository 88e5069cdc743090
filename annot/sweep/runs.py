"""Runs of a sweep: profile each run in its own folder and skip runs that already have a result.

OUT/sweep.lock              locked while the sweep runs
OUT/runs/KEY/result.json    result of the run, written last
OUT/runs/KEY/log.txt        output of the run
OUT/runs/KEY/profile.*      profile of the run
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from annot.collect.collectors import choose
from annot.collect.run import shell_status
from annot.errors import AnnotError
from annot.sweep.grid import Run, Sweep

_TIMED_OUT: Final = 124
"""Exit status of a run that exceeds its timeout, as from the `timeout` command."""
_PATIENCE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Result:
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


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create and lock the output folder of a sweep.

    Raises:
        AnnotError: another sweep holds the lock, or the folder cannot be written.
    """
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        lock = (folder / "sweep.lock").open("w")
    except OSError as error:
        raise AnnotError(f"{folder} cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AnnotError(f"{folder} is in use by another sweep: wait for it or use another -o OUT") from None
        yield


def finished(folder: Path, run: Run) -> Result | None:
    """Return the result of a run in an output folder from an earlier sweep; None if the run did not finish."""
    try:
        return Result(**json.loads((run_folder(folder, run) / "result.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # missing, truncated, or from another version
        return None


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
    profile = own_folder / f"profile{choose(sweep.collector).suffix}"
    start = time.monotonic()
    try:
        own_folder.mkdir(exist_ok=True)
        (own_folder / "result.json").unlink(missing_ok=True)
        status = _execute(run, sweep, profile, own_folder / "log.txt")
        recorded = profile.name if profile.exists() else None
        problem = _problem(status, own_folder / "log.txt", recorded, sweep.timeout)
        seconds = round(time.monotonic() - start, 3)
        result = Result(
            parameters=run.parameters,
            command=list(run.command),
            status=status,
            problem=problem,
            seconds=seconds,
            profile=recorded,
        )
        temporary = own_folder / "result.tmp"
        temporary.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
        temporary.replace(own_folder / "result.json")  # atomic
    except OSError as error:
        raise AnnotError(f"{own_folder} cannot be written: {error.strerror}") from None
    return result


def _execute(run: Run, sweep: Sweep, profile: Path, log: Path) -> int:
    """Run the command through `annot run`, with its output in a log file."""
    options = ["--collector", sweep.collector, "--force", "--no-report", "-o", str(profile)]
    words = [sys.executable, "-P", "-m", "annot", "run", *options, "--", *run.command]
    environ = {**os.environ, **run.environment}
    with log.open("wb") as file:
        # In a separate session, Ctrl-C reaches only this process, and killpg ends all children of the command.
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ, start_new_session=True
        )
    try:
        return shell_status(child.wait(sweep.timeout))
    except subprocess.TimeoutExpired:
        _end(child)
        return _TIMED_OUT
    except BaseException:
        _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate the command. `annot run` forwards SIGTERM and still writes the profile."""
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _problem(status: int, log: Path, profile: str | None, timeout: float | None) -> str | None:
    if status == _TIMED_OUT and timeout is not None:
        return f"exceeded the timeout of {timeout:g} s"
    if status:
        return f"exit status {status}: {_last_line(log)}"
    return None if profile else f"no profile was written: {_last_line(log)}"


def _last_line(log: Path) -> str:
    """Return the last line of the log, without annot's messages other than errors."""
    lines = map(str.strip, log.read_text(encoding="utf-8", errors="replace").split("\n"))
    output = [line for line in lines if line and (not line.startswith("annot: ") or line.startswith("annot: error: "))]
    return output[-1].removeprefix("annot: error: ")[:200] if output else "no output"
