"""Mutants: do tests fail when the code is wrong?

    python tests/support/mutants.py [--sample N] [--seed S] [--jobs J] [FILE OR FOLDER ...]

Each mutant is a module of annot with one small change (`mutations`). The tests of its room run with it until the first
of them fails, and the mutants that no test notices are listed. A sample is the same for the same seed and sources.
Mutants live in processes of their own: no file of the working tree changes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from equivalent_mutants import EQUIVALENT
from mutations import MUTANT, mutations

__all__ = ["main"]

_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Room:
    """Modules whose mutants the same tests find.

    Args:
        path: file or folder in annot.
        tests: test files and folders, the most specific first.
        guards: whether only the guards are changed, for modules that the fuzzers cover otherwise.
    """

    path: str
    tests: tuple[str, ...]
    guards: bool = False


ROOMS: Final = (
    Room("annot/labels", ("tests/labels",)),
    Room("annot/attribution", ("tests/attribution", "tests/analyze/test_slices.py", "tests/analyze/test_step_time.py")),
    Room("annot/analyze/verdict.py", ("tests/analyze/test_verdict.py",)),
    Room("annot/analyze/advice", ("tests/analyze/test_advice.py", "tests/analyze")),
    Room("annot/report/units.py", ("tests/report/test_units.py",)),
    Room("annot/read", ("tests/read",), guards=True),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module, with the tests that must notice it."""

    path: Path
    number: int
    line: int
    change: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"

    @property
    def module(self) -> str:
        """Name of the module."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def mutants(paths: Sequence[str]) -> list[Mutant]:
    """Return all mutants of these files and folders except the equivalent ones."""
    return [mutant for room in ROOMS for file in _files(room, paths) for mutant in _of_file(file, room)]


def _files(room: Room, paths: Sequence[str]) -> Iterator[Path]:
    """The modules of a room, relative to the repository, that are or lie in one of these paths."""
    files = (path.relative_to(_ROOT) for path in [_ROOT / room.path, *sorted((_ROOT / room.path).rglob("*.py"))])
    return (path for path in files if path.suffix and any(path.is_relative_to(part) for part in (paths or [room.path])))


def _of_file(file: Path, room: Room) -> Iterator[Mutant]:
    text = (_ROOT / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    own = (str(path.relative_to(_ROOT)) for path in sorted((_ROOT / "tests").rglob(f"test_{file.stem}.py")))
    tests = *(path for path in own if Path(path).is_relative_to(Path("tests", file.parts[1]))), *room.tests
    for number, mutation in enumerate(mutations(ast.parse(text))):
        equivalent = (str(file), lines[mutation.line - 1].strip(), mutation.change) in EQUIVALENT
        if not equivalent and (mutation.guards or not room.guards):
            yield Mutant(file, number, mutation.line, mutation.change, tests)


def _passes(tests: Sequence[str], limit: float | None, folder: str, mutant: str = "") -> bool:
    """Whether these tests pass in a process of their own, within a time limit (s)."""
    support = os.pathsep.join(filter(None, (str(_ROOT / "tests/support"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {MUTANT: mutant, "PYTHONPATH": support, "TMPDIR": folder}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutations", "-p", "no:xdist", *tests]
    with tempfile.TemporaryFile(dir=folder) as output:
        process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _survives(mutant: Mutant, limits: dict[tuple[str, ...], float], folder: str) -> bool:
    began = time.monotonic()
    survives = _passes(mutant.tests, limits[mutant.tests], folder, f"{mutant.module}:{mutant.number}")
    print(f"{'survived' if survives else 'killed  '} {time.monotonic() - began:6.1f} s  {mutant}", flush=True)
    return survives


def _limits(tests: set[tuple[str, ...]], folder: str) -> dict[tuple[str, ...], float]:
    """The time limit (s) of each group of tests: several times what it takes without a mutant."""
    limits = {}
    for group in sorted(tests):
        began = time.monotonic()
        if not _passes(group, None, folder):
            raise SystemExit(f"these tests fail without a mutant: {' '.join(group)}")
        limits[group] = 30 + 5 * (time.monotonic() - began)
    return limits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sample of mutants, and return the number of survivors."""
    parser = argparse.ArgumentParser(
        description="Run the tests with mutants of annot, and list those that none notices."
    )
    parser.add_argument("paths", nargs="*", help="files and folders, such as annot/labels (default: all rooms)")
    parser.add_argument("--sample", type=int, metavar="N", help="number of mutants (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time (default: 1)")
    options = parser.parse_args(arguments)
    chosen = mutants([os.path.relpath(path, _ROOT) for path in map(os.path.abspath, options.paths)])
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        limits = _limits({mutant.tests for mutant in chosen}, folder)
        survives = pool.map(partial(_survives, limits=limits, folder=folder), chosen)
        survivors = [mutant for mutant, survived in zip(chosen, survives, strict=True) if survived]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    print(*(f"survived: {mutant}" for mutant in sorted(survivors, key=lambda one: (one.path, one.line))), sep="\n")
    return len(survivors)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
