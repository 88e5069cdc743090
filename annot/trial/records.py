"""Runs that a trial has finished, and the folder with their records: a trial that was killed continues.

FOLDER/try.lock             locked while a trial uses the folder
FOLDER/trial.json           what the folder is for; see `Identity`
FOLDER/NAME.KIND1.json      a finished run, written last; NAME is "base", a change, or changes joined by "+"
FOLDER/NAME.KIND1.txt       output of the run
FOLDER/NAME.check1.sqlite   profile of a run that checks training
FOLDER/answer.json          the answer, written at the end; the same command then starts another trial
FOLDER/answer.html          the answer as a page, if the user asks for it
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from annot.errors import AnnotError
from annot.live.request import Request, Result
from annot.util.distribution import version
from annot.util.json_files import read_json, write_json
from annot.util.locked_folder import locked
from annot.util.program import Program, digest_of_modules

Kind: TypeAlias = Literal["check", "timed"]
"""check: under the profiler, with losses; timed: as the user runs it."""
BASE: Final = "base"
"""Name of the runs without a change."""
ROUNDED: Final = "rounding"
"""Name of the run without a change whose parameters differ in their last bit."""
ANSWER: Final = "answer.json"
"""Name of the file with the answer."""
_FOLDER: Final = "annot-try-"
_IDENTITY: Final = "trial.json"
_CACHE: Final = "cache"
"""Folder for kernels that PyTorch compiles in the runs: the first run of a change compiles all, as for the user."""


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The program of a trial. Runs of another program are measured again."""

    program: Program
    modules: str
    """SHA-256 of the Python files in the folder of the script."""
    collector: str
    version: str
    """Version of annot."""

    @classmethod
    def of(cls, command: Sequence[str], collector: str) -> Identity:
        """Return the identity of a command in the working directory."""
        return cls(
            program=Program.of(command),
            modules=digest_of_modules(command),
            collector=collector,
            version=version(),
        )


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finished run."""

    name: str
    """`BASE`, `ROUNDED`, a change, or changes joined by "+"."""
    kind: Kind
    number: int
    """Number of the run among those of this name and kind, from 1."""
    stage: int = 0
    """Number of the alternation that a timed run belongs to: 0 for single changes, then those of combinations."""
    request: Request
    """What was asked of the process. Its path of the result is empty."""
    status: int
    """Exit status, as a shell reports it."""
    seconds: float
    """Time of the whole run."""
    problem: str = ""
    """Why the run says nothing about the change, a clause; empty: it does."""
    result: Result = msgspec.field(default_factory=Result)
    """Measurements; empty: the process wrote none."""
    profile: str = ""
    """File name of the profile; empty: none."""

    @property
    def stem(self) -> str:
        """The name of its files without a suffix."""
        return stem(self.name, self.kind, self.number)


def stem(name: str, kind: Kind, number: int) -> str:
    """Return the name of the files of a run without a suffix."""
    return f"{name}.{kind}{number}"


@contextmanager
def open_folder(keep: Path | None, identity: Identity, *, restart: bool = False) -> Iterator[Path]:
    """Lock and yield the folder of a trial: that of an unfinished trial of the same program, else a new one.

    Args:
        keep: the folder; None: the first unused name of annot-try-1, annot-try-2, ... in the working directory.
        identity: the program.
        restart: remove the runs of an unfinished trial.

    Raises:
        AnnotError: another trial uses the folder, it has other files, or it cannot be written.
    """
    folder = keep or _unfinished(identity) or _unused()
    if folder.exists() and not folder.is_dir():
        raise AnnotError(f"{folder} is not a folder: use the name of a new folder with -o")
    is_new = not folder.exists() or not any(folder.iterdir())
    if not is_new and not _continues(folder, identity):
        raise AnnotError(f"{folder} has files of something else: use the name of a new folder with -o")
    with locked(folder, "try.lock", "another annot try: wait for it, or use another folder with -o"):
        try:
            shutil.rmtree(folder / "running", ignore_errors=True)  # of a killed trial
            for path in [*folder.glob("*.*[0-9].*")] if restart else ():
                path.unlink()
            write_json(folder / _IDENTITY, identity)
            yield folder
        finally:
            shutil.rmtree(folder / _CACHE, ignore_errors=True)


def cache_variables(folder: Path) -> dict[str, str]:
    """Return variables with which programs keep compiled kernels in the folder of a trial, and not in the user's."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    return {} if name in os.environ else {name: str((folder / _CACHE).absolute())}


def _continues(folder: Path, identity: Identity) -> bool:
    """Whether a folder has an unfinished trial of a program."""
    return not (folder / ANSWER).exists() and read_json(folder / _IDENTITY, Identity) == identity


def _unfinished(identity: Identity) -> Path | None:
    numbered = ((path, re.fullmatch(rf"{_FOLDER}(\d+)", path.name)) for path in Path().glob(f"{_FOLDER}*"))
    folders = sorted((int(match[1]), path) for path, match in numbered if match and path.is_dir())
    return next((path for _, path in reversed(folders) if _continues(path, identity)), None)


def _unused() -> Path:
    return next(path for number in itertools.count(1) if not os.path.lexists(path := Path(f"{_FOLDER}{number}")))
