"""Run commands in turns under a collector, each several times: A B, B A, A B, ...

A drift of the machine, such as a rising temperature, then affects all commands alike.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from annot.collect.collectors import choose
from annot.collect.logged_run import LoggedRun
from annot.collect.run import resolve_command
from annot.errors import AnnotError, writing

T = TypeVar("T")
RUNNING: Final = "running"
"""Name of the folder of a run that has not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of an alternation.

    Example:
        >>> Command(name="before", words=("python", "train.py")).name
        'before'
    """

    name: str
    """Name in messages and file names. The names of an alternation differ."""
    words: Sequence[str]
    """Command and arguments."""
    folder: Path | None = None
    """Working directory; None: that of this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the environment."""

    def check(self) -> None:
        """Raise CommandError if the command does not exist or cannot be executed, AnnotError without its folder."""
        try:
            with chdir(self.folder or "."):
                resolve_command(self.words)
        except OSError as error:
            raise AnnotError(f"{self.folder} cannot be used as working directory: {error.strerror}") from None


class RunFailedError(AnnotError):
    """A command failed or recorded nothing: its `name`, and the `problem`, such as "exit status 1: no GPU"."""

    def __init__(self, message: str, name: str, problem: str) -> None:
        super().__init__(message)
        self.name, self.problem = name, problem


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished run."""

    name: str
    """Name of the command."""
    number: int
    """Number of the run among those of the command, from 1."""
    profile: Path
    """Profile in the folder of the alternation: ``before1.sqlite``; its log is ``before1.txt``."""


def alternate(
    commands: Sequence[Command],
    times: int,
    folder: Path,
    *,
    collector: str = "auto",
    layers: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Recorded]:
    """Run each command `times` times in turns, with one profile per run in a folder, and yield each finished run.

    The order of the commands is reversed in every other round. The caller can stop after any run. A profile that is
    already in the folder is from a finished run: its run is yielded and not repeated. Standard input of the commands is
    empty, and their output goes to log files in the folder. If this process is interrupted, the command that runs is
    terminated, and the folder contains the profiles of the finished runs only.

    Args:
        commands: the commands.
        times: number of rounds.
        folder: folder for profiles and logs; created if missing.
        collector: name of the collector, see `annot.collect.collectors.choose`.
        layers: emit ranges of all models that the commands call.
        say: receives a line before each run.

    Raises:
        CommandError: before any run, if a command does not exist or cannot be executed.
        RunFailedError: a command failed or recorded nothing.
        AnnotError: the collector is not installed, or the folder cannot be written.
    """
    suffix = choose(collector).suffix
    for command in commands:
        command.check()
    total = times * len(commands)
    for index in range(total):
        number = index // len(commands)
        command = in_turn(commands, number)[index % len(commands)]
        recorded = Recorded(command.name, number + 1, folder / f"{command.name}{number + 1}{suffix}")
        if not recorded.profile.exists():
            say(f"run {index + 1} of {total}: {command.name}, {shlex.join(command.words)}")
            _record(command, recorded, collector, layers)
        yield recorded


def in_turn(commands: Sequence[T], number: int) -> Sequence[T]:
    """Return the commands in the order of a round, from 0: that of every other one is reversed.

    Example:
        >>> in_turn("abc", 0), in_turn("abc", 1)
        ('abc', 'cba')
    """
    return commands[::-1] if number % 2 else commands


def _record(command: Command, recorded: Recorded, collector: str, layers: bool) -> None:
    """Run a command. Its files are in a folder inside that of the alternation until it has succeeded."""
    folder, name = recorded.profile.parent, f"{recorded.name}{recorded.number}"
    run = LoggedRun(
        command=command.words,
        profile=folder / RUNNING / recorded.profile.name,
        log=folder / f"{name}.txt",
        collector=collector,
        layers=layers,
        folder=command.folder,
        environment=command.environment,
    )
    with writing(folder), running_folder(folder):
        problem = run.problem(run.run())
        if problem is None:
            keep_files(folder, last=run.profile.name)
    if problem is not None:
        words = shlex.join(command.words)
        message = f"run {recorded.number} of {recorded.name} ({words}) failed: {problem}; output: {run.log}"
        raise RunFailedError(message, recorded.name, problem)


@contextmanager
def running_folder(folder: Path) -> Iterator[None]:
    """Create a folder inside another for the files of a run. It is removed at the end; data that annot left stays."""
    running = folder / RUNNING
    running.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for path in running.iterdir():
            if path.is_file():
                path.unlink()
        if not any(running.iterdir()):
            running.rmdir()


def keep_files(folder: Path, *, last: str) -> None:
    """Move the files of a finished run out of its folder, that with the name `last` after the others."""
    files = [path for path in (folder / RUNNING).iterdir() if path.is_file()]
    for path in sorted(files, key=lambda path: path.name == last):
        os.replace(path, folder / path.name)
