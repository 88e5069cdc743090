"""Run a command under a collector and convert its output to one profile file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from annot.collect.nsys import NsysCollector, report_of
from annot.collect.parts_folder import PartsFolder
from annot.collect.recorder import RecorderCollector
from annot.collect.run import Collected, Collector, CommandError, Job, resolve_command
from annot.collect.torch_profiler import TorchCollector
from annot.errors import AnnotError
from annot.util.installed_tools import find_nsys

__all__ = ["COLLECTORS", "Collector", "CommandError", "Outcome", "choose", "collect"]

COLLECTORS = ("auto", "nsys", "recorder", "torch")
"""Names that `choose` accepts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a command under a collector."""

    status: int
    """Exit status, as a shell reports it."""
    out: Path
    """Path of the profile."""
    collected: Collected | None
    """Contents of the profile; None if it could not be written."""
    problem: str | None = None
    """Why the profile could not be written."""


def choose(name: str = "auto") -> Collector:
    """Return a collector by name.

    Args:
        name: one of `COLLECTORS`. ``auto`` is Nsight Systems if it is installed, else annot's recorder.

    Raises:
        ValueError: the name is unknown.
        AnnotError: ``nsys`` is requested and Nsight Systems is not installed.
    """
    if name not in COLLECTORS:
        raise ValueError(f"collector must be one of {', '.join(COLLECTORS)}, got {name!r}")
    if name == "torch":
        return TorchCollector()
    if name == "recorder":
        return RecorderCollector()
    nsys = find_nsys()
    if nsys is not None:
        return NsysCollector(nsys)
    if name == "auto":
        return RecorderCollector()
    raise AnnotError(
        "Nsight Systems was not found: add nsys to PATH, set ANNOT_NSYS to its path, install it "
        "(Debian: apt install nsight-systems), or use --collector recorder"
    )


def collect(
    command: Sequence[str],
    collector: Collector,
    *,
    out: Path | None = None,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a command under a collector and write the profile.

    The command inherits the streams of this process and receives the signals sent to this process.

    Args:
        command: command and arguments.
        collector: collector from `choose`.
        out: path of the profile; None: the first unused name of annot1, annot2, ... in the current folder.
        force: replace an existing `out`.
        say: receives progress messages, one line each.

    Returns:
        Exit status, path and contents of the profile.

    Raises:
        CommandError: the command does not exist or cannot be executed.
        AnnotError: `out` cannot be written. The command was not run.
    """
    executable = resolve_command(command)
    target, parts = _reserve(out, collector, force)
    job = Job(tuple(command), executable, target, parts.path, say)
    try:
        status = collector.run(job)
    except AnnotError:
        parts.remove()
        raise
    try:
        collected = collector.convert(job, status)
    except (AnnotError, OSError, ModuleNotFoundError) as error:  # the last: installed without polars
        leftover = f"; the recorded data is in {parts.path}" if parts.leave() else ""
        return Outcome(status, target, None, f"{error}{leftover}")
    parts.remove()
    return Outcome(status, target, collected)


def _reserve(out: Path | None, collector: Collector, force: bool) -> tuple[Path, PartsFolder]:
    if out is not None:
        _check_free(out, collector, force)
        try:
            return out, PartsFolder(out, force=force)
        except FileExistsError:
            raise AnnotError(
                f"{out}.parts exists: another run is writing {out}, or was killed; remove the folder or use --force"
            ) from None
    for number in itertools.count(1):
        out = Path(f"annot{number}{collector.suffix}")
        if any(os.path.lexists(path) for path in (out, *_beside(out, collector))):
            continue
        try:
            return out, PartsFolder(out, force=False)
        except FileExistsError:
            continue
    raise AssertionError("unreachable: the numbers are unlimited")


def _check_free(out: Path, collector: Collector, force: bool) -> None:
    if out.is_dir():
        raise AnnotError(f"{out} is a folder: use -o with a file name")
    if out.suffix == ".nsys-rep":
        raise AnnotError(f"{out} is a report of Nsight Systems: use -o {out.with_suffix('.sqlite')}, its export")
    for path in (out, *_beside(out, collector)):
        if os.path.lexists(path) and not force:
            raise AnnotError(f"{path} exists: use another name with -o, or replace it with --force")
        if path.exists() and not path.is_file():
            raise AnnotError(f"{path} is not a regular file: use another name with -o")


def _beside(out: Path, collector: Collector) -> list[Path]:
    return [report_of(out)] if collector.name == "nsys" else []
