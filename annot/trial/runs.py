"""Runs of the program of a trial, each in a fresh process, with or without changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from annot.collect.alternate import RUNNING, keep_files, running_folder
from annot.collect.collectors import choose
from annot.collect.logged_run import problem_of
from annot.collect.measured_run import MeasuredRun
from annot.errors import writing
from annot.live.request import Request, Result
from annot.trial.records import BASE, ROUNDED, Kind, Record, cache_variables, stem
from annot.util.json_files import read_json, write_json

LOSSES: Final = 6
"""First steps whose losses are compared. Rounding grows from step to step."""
NO_STEP: Final = (
    "no step of a model was seen: the program uses no model of PyTorch or Keras, compiles backward and update to one "
    "graph, or trains in a forked process"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is run.

    Args:
        command: command and arguments.
        collector: collector of profiled runs, see `annot.collect.collectors.choose`.
        warmup: steps before the measured ones.
        keep_going: whether the program runs to its own end.
        seed: seed of all runs; None: none is set.
    """

    command: tuple[str, ...]
    collector: str = "auto"
    warmup: int = 3
    keep_going: bool = False
    seed: int | None = 0


class Runs:
    """Runs in a folder. Those that an earlier trial has finished are not repeated.

    Args:
        folder: the folder of the trial.
        program: what is run.
        say: receives a line before each run.
    """

    def __init__(self, folder: Path, program: Program, say: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self.program, self.say = folder, program, say
        self.records: list[Record] = []
        """The finished runs, in order."""
        self.framework = ""
        """The framework that applies changes; empty: not known yet."""

    @property
    def spent(self) -> float:
        """Seconds that all runs took."""
        return sum(record.seconds for record in self.records)

    def of(self, name: str, kind: Kind) -> list[Record]:
        """Return the finished runs of a name and a kind."""
        return [record for record in self.records if (record.name, record.kind) == (name, kind)]

    def run(self, name: str, kind: Kind, changes: Mapping[str, str], *, steps: int, stage: int = 0) -> Record:
        """Run the program, or return the record of an earlier trial with the same request.

        Args:
            name: name for `Record.name`.
            kind: see `Record.kind`.
            changes: see `Request.changes`.
            steps: number of measured steps.
            stage: see `Record.stage`.

        Raises:
            CommandError: the command does not exist or cannot be executed.
            AnnotError: the folder cannot be written, or the collector is not installed.
        """
        checks, program = kind == "check", self.program
        request = Request(
            result="",
            changes=dict(changes),
            framework=self.framework,
            warmup=program.warmup,
            steps=steps,
            keep_going=program.keep_going,
            losses=LOSSES if checks else 0,
            parameters=checks,
            seed=program.seed,
        )
        number = len(self.of(name, kind)) + 1
        path = self.folder / f"{stem(name, kind, number)}.json"
        record = read_json(path, Record)
        if record is None or (record.request, record.stage) != (request, stage) or (name == BASE and record.problem):
            label = "without changes, rounded parameters" if name == ROUNDED else name
            self.say(f"{label}, check" if kind == "check" else f"{label}, run {number}")
            with writing(self.folder):
                record = self._perform(name, kind, number, stage, request)
            write_json(path, record)
        self.records.append(record)
        return record

    def log(self, record: Record) -> Path:
        """Return the file with the output of a run."""
        return self.folder / f"{record.stem}.txt"

    def profile(self, name: str) -> Path | None:
        """Return the profile of the first check of a name, or None if no profile was written."""
        profiles = [record.profile for record in self.of(name, "check") if record.profile]
        return self.folder / profiles[0] if profiles else None

    def _perform(self, name: str, kind: Kind, number: int, stage: int, request: Request) -> Record:
        files, start = stem(name, kind, number), time.monotonic()
        profile, running = f"{files}{choose(self.program.collector).suffix}", (self.folder / RUNNING).absolute()
        run = MeasuredRun(
            command=self.program.command,
            request=msgspec.structs.replace(request, result=str(running / f"{files}.result")),
            log=self.folder / f"{files}.txt",
            environment=cache_variables(self.folder),
            profile=running / profile if kind == "check" else None,
            collector=self.program.collector,
        )
        with running_folder(self.folder):
            status = run.run()
            seconds, result = time.monotonic() - start, run.result(status)
            Path(run.request.result).unlink(missing_ok=True)
            keep_files(self.folder, last=profile)
        return Record(
            name=name,
            kind=kind,
            number=number,
            stage=stage,
            request=request,
            status=status,
            seconds=round(seconds, 3),
            problem=problem(result, problem_of(status, run.log), request) if isinstance(result, Result) else result,
            result=result if isinstance(result, Result) else Result(),
            profile=profile if (self.folder / profile).exists() else "",
        )


def problem(result: Result, failure: str | None, request: Request) -> str:
    """Return why a run says nothing about its changes, a clause; empty: it does.

    Args:
        result: what the process measured.
        failure: why the command failed; None: its exit status is 0.
        request: what was asked.

    Example:
        >>> asked = Request(result="", changes={"fused": "..."}, warmup=1, steps=2)
        >>> problem(Result(step_ns=[5, 5, 5], skipped={"fused": "no optimizer"}), None, asked)
        'not applied: no optimizer'
    """
    if result.error:
        return result.error
    skipped = [reason for name, reason in result.skipped.items() if name in request.changes]
    if skipped:
        return f"not applied: {'; '.join(skipped)}"
    missing = [name for name in request.changes if name not in result.applied]
    if not result.step_ns:
        return failure or NO_STEP
    if missing:
        return f"not applied: the program does not use what {' and '.join(missing)} would change"
    expected, steps = request.warmup + request.steps, len(result.step_ns)
    if steps < expected and request.changes:
        return failure or f"the program ended after {steps} of {expected} steps"
    return failure or "" if steps < expected else ""
