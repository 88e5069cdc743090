"""Running a sweep: each run profiled, in a folder of its own that says how it ended, so that none is repeated.

OUT/sweep.lock              held while runs go on
OUT/runs/KEY/result.json    written last: how the run ended
OUT/runs/KEY/log.txt        what it printed
OUT/runs/KEY/profile.*      what was recorded
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

from annot.collect import choose
from annot.collect.grid import Run, Sweep
from annot.collect.run import shell_status
from annot.errors import AnnotError

__all__ = ["Result", "finished", "locked", "perform"]

_TIMED_OUT: Final = 124
"""The status of a run that took too long, as that of the command `timeout`."""
_PATIENCE: Final = 10.0
"""Seconds in which a run that is to end may do so by itself."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    parameters: dict[str, Any]
    command: list[str]
    status: int
    """Its exit status, as a shell gives it."""
    problem: str | None
    """Why it has no place in the plots; None: it has."""
    seconds: float
    profile: str | None
    """The profile's name in the folder of the run; None: there is none."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of a folder, which is made if need be.

    Raises:
        AnnotError: another sweep is at work there, or the folder cannot be written.
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
            raise AnnotError(f"another sweep is at work in {folder}") from None
        yield


def finished(folder: Path, run: Run) -> Result | None:
    """Return how a run ended in an earlier sweep; None if it did not get to its end."""
    try:
        return Result(**json.loads((place(folder, run) / "result.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # not there, cut short, or of another version
        return None


def place(folder: Path, run: Run) -> Path:
    """Return the folder of a run."""
    return folder / "runs" / run.key


def perform(folder: Path, run: Run, sweep: Sweep) -> Result:
    """Run a command under the collector of the sweep, in `folder`, and write down how it ended.

    It reads nothing from standard input; what it prints goes to its log. If this process is interrupted, the
    command is ended, and the run counts as not done.

    Raises:
        AnnotError: the folder cannot be written, or there is no such collector here.
    """
    own = place(folder, run)
    profile = own / f"profile{choose(sweep.collector).suffix}"
    begun = time.monotonic()
    try:
        own.mkdir(exist_ok=True)
        (own / "result.json").unlink(missing_ok=True)
        status = _execute(run, sweep, profile, own / "log.txt")
        there = profile.name if profile.exists() else None
        problem = _problem(status, own / "log.txt", there, sweep.timeout)
        seconds = round(time.monotonic() - begun, 3)
        result = Result(run.parameters, list(run.command), status, problem, seconds, there)
        _write(own / "result.json", json.dumps(asdict(result), indent=2) + "\n")
    except OSError as error:
        raise AnnotError(f"{own} cannot be written: {error.strerror}") from None
    return result


def _execute(run: Run, sweep: Sweep, profile: Path, log: Path) -> int:
    """Run it through `annot run`, whose streams can go to a file."""
    options = ["--collector", sweep.collector, "--force", "--no-report", "-o", str(profile)]
    words = [sys.executable, "-P", "-m", "annot", "run", *options, "--", *run.command]
    environ = {**os.environ, **run.environment}
    with log.open("wb") as file:
        # A session of its own, so that Ctrl-C comes here alone, and what the command started can be ended with it.
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
    """End the command: annot run passes the signal on, and writes down what was recorded."""
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _problem(status: int, log: Path, profile: str | None, timeout: float | None) -> str | None:
    if status == _TIMED_OUT and timeout is not None:
        return f"took longer than {timeout:g} s"
    if status:
        return f"ended with status {status}: {_last_line(log)}"
    return None if profile else f"left no profile: {_last_line(log)}"


def _last_line(log: Path) -> str:
    """The last thing that was said, by annot only if it was an error."""
    lines = map(str.strip, log.read_text(encoding="utf-8", errors="replace").split("\n"))
    said = [line for line in lines if line and (not line.startswith("annot: ") or line.startswith("annot: error: "))]
    return said[-1].removeprefix("annot: error: ")[:200] if said else "it said nothing"


def _write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
