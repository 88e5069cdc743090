"""Pairs of runs of two commits, measured one directly after the other, and kept for a bisection that continues.

FOLDER/bisect.lock          locked while a process uses the folder
FOLDER/a, FOLDER/b          worktrees; paths of the same length
FOLDER/HASH-HASH/0.parquet  the digests of a pair: a row per run
FOLDER/HASH-HASH/skip.txt   why the second commit does not run
FOLDER/HASH-HASH/runs       profiles and output of the pair that is measured now
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import polars as pl

from annot.analyze.comparison.digest import Digest, as_row, digest, from_row
from annot.bisect.repository import Commit, Repository, Worktree
from annot.collect.alternate import Command, RunFailedError, alternate
from annot.collect.logged_run import last_line, run_logged
from annot.collect.parts_folder import LOCK
from annot.errors import AnnotError
from annot.runs.run import Run
from annot.util.locked_folder import locked

if sys.platform != "win32":
    import fcntl
from annot.util.whole_files import created, write_file

Pair: TypeAlias = tuple[Digest, Digest]
Say: TypeAlias = Callable[[str], None]
_NAMES: Final = ("a", "b")


class SkipError(AnnotError):
    """The second commit of a pair does not run; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is run of a commit."""

    command: tuple[str, ...]
    """Command and arguments."""
    setup: str = ""
    """Shell command that prepares the worktree of a commit; empty: none."""
    collector: str = "auto"
    """Name of the collector, see `annot.collect.collectors.choose`."""
    layers: bool = False
    """Whether Python processes of the command emit ranges of all their models."""


class Pairs:
    """Pairs of runs of two commits; from `open_pairs`."""

    def __init__(
        self, folder: Path, repository: Repository, trees: tuple[Worktree, Worktree], program: Program
    ) -> None:
        self._folder, self._repository, self._trees, self._program = folder, repository, trees, program
        self._read: dict[Path, Pair] = {}

    def pair(self, a: Commit, b: Commit, number: int) -> Pair:
        """Return a pair of runs of two commits by its number, from 0. A missing pair is measured.

        Raises:
            SkipError: the second commit does not run.
            AnnotError: the first commit does not run, or the folder cannot be written.
        """
        folder = self._folder / f"{a.hash}-{b.hash}"
        path, skipped = folder / f"{number}.parquet", folder / "skip.txt"
        try:
            if skipped.exists():
                raise SkipError(skipped.read_text(encoding="utf-8"))
            if path not in self._read:
                if not path.exists():
                    pair = self._measure(folder / "runs", a, b, backwards=number % 2 == 1)
                    with created(path, force=True) as file:
                        pl.concat(map(as_row, pair)).write_parquet(file)
                    shutil.rmtree(folder / "runs", ignore_errors=True)
                rows = pl.read_parquet(path)
                self._read[path] = from_row(rows[:1]), from_row(rows[1:])
        except SkipError as error:
            write_file(skipped, [str(error).encode()], force=True)
            raise
        except OSError as error:
            raise AnnotError(f"{folder} cannot be written: {error.strerror}") from None
        return self._read[path]

    def kept(self) -> int:
        """Return the number of runs that are measured."""
        return sum(len(_NAMES) for _ in self._folder.glob("*-*/*.parquet"))

    def _measure(self, runs: Path, a: Commit, b: Commit, *, backwards: bool) -> Pair:
        """Run both commits, in the other order in every second pair: a drift of the machine cancels out."""
        program = self._program
        shutil.rmtree(runs, ignore_errors=True)  # of a killed process: its pair lacks a run
        runs.mkdir(parents=True)
        try:
            commands = [self._prepare(runs, name, commit) for name, commit in zip(_NAMES, (a, b), strict=True)]
            commands = commands[:: -1 if backwards else 1]
            alternation = alternate(commands, 1, runs, collector=program.collector, layers=program.layers)
            profiles = {run.name: run.profile for run in alternation}
        except RunFailedError as error:
            if error.name == "b":
                raise SkipError(error.problem) from None
            raise AnnotError(f"{a.short} does not run: {error.problem}; its output is in {runs}") from None
        first = _digest(profiles["a"])
        try:
            return first, _digest(profiles["b"])
        except AnnotError as error:
            raise SkipError(str(error)) from None

    def _prepare(self, runs: Path, name: str, commit: Commit) -> Command:
        """Put a commit into its worktree, and return its command. Raise RunFailedError if it cannot run."""
        tree = self._trees[_NAMES.index(name)]
        is_new, folder = tree.checkout(commit.hash), tree.folder / self._repository.prefix
        variables = {"PWD": str(folder), "ANNOT_BISECT_TOP": str(self._repository.top)}
        command = Command(name=name, words=self._program.command, folder=folder, environment=variables)
        try:
            if not folder.is_dir():
                raise AnnotError(f"it has no folder {self._repository.prefix}")
            if is_new and self._program.setup:
                _set_up(self._program.setup, command, runs / f"setup-{name}.txt")
            command.check()
        except AnnotError as error:
            raise RunFailedError(str(error), name, str(error)) from None
        return command


def _set_up(setup: str, command: Command, log: Path) -> None:
    """Prepare a worktree, with the output in a log file. Raise AnnotError if that fails."""
    status = run_logged(["sh", "-c", setup], {**os.environ, **command.environment}, log, folder=command.folder)
    if status:
        raise AnnotError(f"--setup ended with status {status}: {last_line(log)}")


@contextmanager
def open_pairs(folder: Path, repository: Repository, program: Program, *, restart: bool, say: Say) -> Iterator[Pairs]:
    """Open the folder of a bisection, and remove its worktrees at the end.

    Args:
        folder: the folder; created if missing.
        repository: the repository of the commits.
        program: what is run.
        restart: remove the runs of an earlier bisection.
        say: receives messages.

    Raises:
        AnnotError: another process uses the folder, or it cannot be written.
    """
    with locked(folder, "bisect.lock", "another annot bisect: wait for it"), ExitStack() as trees:
        for path in folder.rglob(LOCK):
            _wait_for_run(path, say)
        a, b = (trees.enter_context(Worktree(repository, folder / name)) for name in _NAMES)
        if restart:
            for path in folder.glob("*-*"):
                shutil.rmtree(path)
        yield Pairs(folder, repository, (a, b), program)


def _wait_for_run(path: Path, say: Say) -> None:
    """Wait until a run ends that a killed bisection left."""
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for a run of the bisection that was killed, process {path.read_text().strip()}")
            fcntl.flock(lock, fcntl.LOCK_EX)


def _digest(profile: Path) -> Digest:
    return digest(Run(profile).attribution)
