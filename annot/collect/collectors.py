"""Collectors by name, and `collect`: run a command under a collector and convert its output to one profile file."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from annot.collect.nsys import NsysCollector, report_of
from annot.collect.parts_folder import FolderExistsError, PartsFolder, check_free
from annot.collect.run import (
    SIGNALED,
    Collected,
    Collector,
    Job,
    built_recorder,
    nothing_recorded,
    resolve_command,
    run_child,
)
from annot.errors import AnnotError, EmptyProfileError, require_linux
from annot.util.distribution import version
from annot.util.installed_tools import find_nsys, python_of
from annot.util.program import FILE as PROGRAM_FILE
from annot.util.program import Program

_WITHOUT_MODEL: Final = "before it called a model"
_WITHOUT_TRACE: Final = f"{_WITHOUT_MODEL}, or ran Python with -I, -E or -S: torch.profiler wrote no trace"
_KILLED: Final = "before torch.profiler wrote a trace, at the end of the process: use --collector recorder or nsys"

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


class RecorderCollector:
    """Collector for all NVTX calls of the command and its children, with annot's recorder as NVTX injection library."""

    name = "recorder"
    suffix = ".sqlite"

    def run(self, job: Job) -> int:
        """Run the command with the recorder loaded; see `annot.collect.run.Collector.run`."""
        library = built_recorder()
        job.say(f"recording with {library}")
        return run_child(job, NVTX_INJECTION64_PATH=library, ANNOT_RECORD_DIR=str(job.parts))

    def convert(self, job: Job, status: int) -> Collected:
        """Assemble the files of all processes; see `annot.collect.run.Collector.convert`."""
        from annot.read.recording.export import assemble

        meta = {
            **{f"ANNOT_{name.upper()}": text for name, text in job.program.facts().items()},
            "ANNOT_HOST": socket.gethostname(),
            "ANNOT_COLLECTOR": self.name,
            "ANNOT_VERSION": version(),
            "ANNOT_EXIT_STATUS": str(status),
        }
        recording = assemble(job.parts, job.out, meta=meta, even_empty=False)
        loss = recording.loss(job.parts)
        if loss and not recording.ranges:
            return Collected(0, tuple(recording.notes), obstacle=loss)
        notes = [loss] if loss else []
        if recording.open_ranges:
            notes.append(f"{recording.open_ranges} ranges were still open when their process ended")
        notes += recording.notes
        return Collected(recording.ranges, tuple(notes)) if recording.ranges else nothing_recorded(job, *notes)


class TorchCollector:
    """Collector for the first Python process of the command, from the import of torch to its exit.

    The profile is the Chrome trace of torch.profiler, compressed if its name ends in ``.gz``.
    """

    name = "torch"
    suffix = ".json.gz"

    def run(self, job: Job) -> int:
        """Run the command with torch.profiler set up by `sitecustomize`; see `annot.collect.run.Collector.run`."""
        if python_of(job.executable) is None:
            raise AnnotError(
                f"{job.command[0]} is not a Python command: --collector torch needs `python ...` "
                "or a script with Python in its first line (#!)"
            )
        job.say("running under torch.profiler")
        with contextlib.suppress(OSError):  # reports then do not know the command
            (job.parts / PROGRAM_FILE).write_text(json.dumps(job.program.facts()), encoding="utf-8")
        return run_child(job, ANNOT_ENABLE="1", ANNOT_TORCH_TRACE=str(self._trace(job)))

    def convert(self, job: Job, status: int) -> Collected:
        """Check the trace and move it to ``job.out``; see `annot.collect.run.Collector.convert`."""
        from annot.read.formats import load

        trace = self._trace(job)
        if status and not trace.exists():
            return Collected(0, too_early=_WITHOUT_TRACE if status <= SIGNALED else _KILLED)
        if not trace.exists():
            raise AnnotError(
                "torch.profiler wrote no trace: the first Python process of the command did not import torch, or ran "
                "with -I, -E or -S. For a program without PyTorch, use --collector nsys or recorder"
            )
        try:
            ranges = load(trace).ranges.height
        except EmptyProfileError:
            return Collected(0, too_early=_WITHOUT_MODEL)
        os.replace(trace, job.out)
        return Collected(ranges)

    def _trace(self, job: Job) -> Path:
        return job.parts / ("trace.json.gz" if job.out.suffix == ".gz" else "trace.json")


def choose(name: str = "auto") -> Collector:
    """Return a collector by name.

    Args:
        name: one of `COLLECTORS`. ``auto`` is Nsight Systems if it is installed, else annot's recorder.

    Raises:
        ValueError: the name is unknown.
        AnnotError: ``nsys`` is requested and Nsight Systems is not installed, or this system is not Linux.
    """
    require_linux("recording a profile")
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
    layers: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a command under a collector and write the profile.

    The command inherits the streams of this process and receives the signals sent to this process.

    Args:
        command: command and arguments.
        collector: collector from `choose`.
        out: path of the profile; None: the first unused name of annot1, annot2, ... in the current folder.
        force: replace an existing `out`.
        layers: emit ranges of all models that the command calls, see `annot.collect.model_search`.
        say: receives progress messages, one line each.

    Raises:
        CommandError: the command does not exist or cannot be executed.
        AnnotError: `out` cannot be written. The command was not run.
    """
    executable = resolve_command(command)
    target, folder = _reserve(out, collector, force)
    program = Program.of(command)
    job = Job(program, executable=executable, out=target, parts=folder.path, say=say, layers=layers)
    try:
        status = collector.run(job)
    except AnnotError:
        folder.remove()
        raise
    try:
        collected = collector.convert(job, status)
    except (AnnotError, OSError, ModuleNotFoundError) as error:  # the last: installed without polars
        leftover = f"; the recorded data is in {folder.path}" if folder.leave() else ""
        return Outcome(status, target, None, f"{error}{leftover}")
    folder.remove()
    return Outcome(status, target, collected)


def _reserve(out: Path | None, collector: Collector, force: bool) -> tuple[Path, PartsFolder]:
    if out is not None:
        _check_free(out, collector, force)
        return out, PartsFolder(out, force=force, flag="--force")
    for number in itertools.count(1):
        out = Path(f"annot{number}{collector.suffix}")
        if any(os.path.lexists(path) for path in (out, *_extra_outputs(out, collector))):
            continue
        try:
            return out, PartsFolder(out, force=False)
        except FolderExistsError:
            continue
    raise AssertionError("unreachable: the numbers are unlimited")


def _check_free(out: Path, collector: Collector, force: bool) -> None:
    if out.suffix == ".nsys-rep":
        raise AnnotError(f"{out} is a report of Nsight Systems: use -o {out.with_suffix('.sqlite')}, its export")
    for path in (out, *_extra_outputs(out, collector)):
        check_free(path, force=force, other="another name with -o", flag="--force")


def _extra_outputs(out: Path, collector: Collector) -> list[Path]:
    return [report_of(out)] if collector.name == "nsys" else []
