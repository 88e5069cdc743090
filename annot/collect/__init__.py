"""Start a command under a collector, and turn what that wrote into one profile file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from annot.collect.folder import PartsFolder
from annot.collect.nsys import NsysCollector, report_of
from annot.collect.recorder import RecorderCollector
from annot.collect.run import Collected, Collector, CommandError, Job, resolve_command
from annot.collect.tools import find_nsys
from annot.collect.torch_profiler import TorchCollector
from annot.errors import AnnotError

__all__ = ["COLLECTORS", "Collector", "CommandError", "Outcome", "choose", "collect"]

COLLECTORS = ("auto", "nsys", "recorder", "torch")
"""What `choose` accepts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command under a collector ended."""

    status: int
    """Its exit status, as a shell gives it."""
    out: Path
    """The profile."""
    collected: Collected | None
    """What is in the profile; None if it could not be written."""
    problem: str | None = None
    """Why it could not be written."""


def choose(name: str = "auto") -> Collector:
    """Return the collector of that name; ``auto`` is Nsight Systems where it answers, else annot's recorder.

    Raises:
        ValueError: there is no collector of that name.
        AnnotError: Nsight Systems was asked for and is not there.
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
        "no Nsight Systems answers: put nsys on PATH or name it in ANNOT_NSYS, install it "
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

    The command has this process's streams and gets the signals that are sent to this process.

    Args:
        command: what to run.
        collector: from `choose`.
        out: the profile to write; None takes the first free of annot1, annot2, ... in the current folder.
        force: whether an existing `out` may be replaced.
        say: takes lines on what goes on.

    Raises:
        CommandError: the command does not exist or cannot be executed.
        AnnotError: `out` cannot be written; the command was not run.
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
    except (AnnotError, OSError, ModuleNotFoundError) as error:  # the last: annot was installed for its ranges alone
        leftover = f"; what was recorded is in {parts.path}" if parts.leave() else ""
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
                f"{out}.parts exists: a run that writes {out} goes on or was killed; remove it or use --force"
            ) from None
    for number in itertools.count(1):
        out = Path(f"annot{number}{collector.suffix}")
        if any(os.path.lexists(path) for path in (out, *_beside(out, collector))):
            continue
        try:
            return out, PartsFolder(out, force=False)
        except FileExistsError:
            continue
    raise AssertionError("there is always a next number")


def _check_free(out: Path, collector: Collector, force: bool) -> None:
    if out.is_dir():
        raise AnnotError(f"{out} is a folder: name the file to write with -o")
    if out.suffix == ".nsys-rep":
        raise AnnotError(f"{out} is Nsight's own file: name its export, {out.with_suffix('.sqlite')}")
    for path in (out, *_beside(out, collector)):
        if os.path.lexists(path) and not force:
            raise AnnotError(f"{path} exists: name another file with -o, or replace it with --force")
        if path.exists() and not path.is_file():
            raise AnnotError(f"{path} is not a regular file: name another one with -o")


def _beside(out: Path, collector: Collector) -> list[Path]:
    return [report_of(out)] if collector.name == "nsys" else []
