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
from pathlib import Path
from typing import Final

from equivalent_mutants import is_equivalent
from mutations import MUTANT, mutations

__all__ = ["main"]

_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Room:
    """Modules whose mutants the same tests find.

    Args:
        path: file or folder in annot.
        tests: test files and folders. The examples of a module and the test file with its name run before them.
        guards: whether only conditions of guards change, for modules that the fuzzers cover otherwise.
    """

    path: str
    tests: tuple[str, ...]
    guards: bool = False


_ADVICE: Final = ("advice", "advice_cpu", "operator_advice", "advice_evidence", "planted")
ROOMS: Final = (
    Room(
        "annot/labels", ("tests/labels", "tests/attribution/test_name_scopes.py", "tests/attribution/test_updates.py")
    ),
    Room("annot/attribution", ("tests/attribution", "tests/analyze/test_slices.py", "tests/analyze/test_step_time.py")),
    Room("annot/analyze/verdict.py", ("tests/analyze/test_verdict.py", "tests/analyze/test_operator_advice.py")),
    Room("annot/analyze/advice", tuple(f"tests/analyze/test_{name}.py" for name in _ADVICE)),
    Room("annot/report/units.py", ("tests/report/test_units.py",)),
    Room("annot/read", ("tests/read",), guards=True),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module (path relative to the repository) of a room."""

    path: Path
    number: int
    line: int
    change: str
    room: Room

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"

    @property
    def module(self) -> str:
        """Name of the module."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")

    @property
    def tests(self) -> list[str]:
        """What must notice it: the examples of the module, its test file, the tests of its room."""
        own = (_ROOT / "tests" / self.path.parts[1]).glob(f"test_{self.path.stem}.py")
        return list(dict.fromkeys(map(str, (self.path, *(path.relative_to(_ROOT) for path in own), *self.room.tests))))


def mutants(paths: Sequence[str]) -> list[Mutant]:
    """Return all mutants of these files and folders, or of all rooms, except the equivalent ones."""
    return [mutant for room in ROOMS for path in _modules(room, paths) for mutant in _of_module(path, room)]


def _modules(room: Room, paths: Sequence[str]) -> list[Path]:
    top = _ROOT / room.path
    modules = [path.relative_to(_ROOT) for path in (sorted(top.rglob("*.py")) if top.is_dir() else [top])]
    return [path for path in modules if not paths or any(path.is_relative_to(chosen) for chosen in paths)]


def _of_module(path: Path, room: Room) -> Iterator[Mutant]:
    text = (_ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, mutation in enumerate(mutations(ast.parse(text))):
        code = lines[mutation.line - 1].strip()
        if (mutation.guards or not room.guards) and not is_equivalent(str(path), code, mutation.change):
            yield Mutant(path, number, mutation.line, mutation.change, room)


class Runner:
    """Runs tests in processes of their own.

    Args:
        folder: folder for temporary files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._limits: dict[Room, float] = {}
        self._processes: set[subprocess.Popen[bytes]] = set()

    def measure(self, room: Room) -> None:
        """Run the tests of a room without a mutant: they must pass, and their time sets the limit for mutants."""
        began = time.monotonic()
        if not self._passes(room.tests, None):
            raise SystemExit(f"tests fail without a mutant: {' '.join(room.tests)}")
        self._limits[room] = 30 + 5 * (time.monotonic() - began)

    def survives(self, mutant: Mutant) -> bool:
        """Whether the tests pass with a mutant. Prints it, with the time of the tests."""
        began = time.monotonic()
        survives = self._passes(mutant.tests, self._limits[mutant.room], f"{mutant.module}:{mutant.number}")
        print(f"{'survived' if survives else 'killed':8} {time.monotonic() - began:6.1f} s  {mutant}", flush=True)
        return survives

    def close(self) -> None:
        """End all processes."""
        for process in list(self._processes):
            _end(process)

    def _passes(self, tests: Sequence[str], limit: float | None, mutant: str = "") -> bool:
        paths = os.pathsep.join(filter(None, (str(_ROOT / "tests/support"), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {MUTANT: mutant, "PYTHONPATH": paths, "TMPDIR": self._folder}
        command = [sys.executable, "-m", "pytest", "--doctest-modules", "-x", "-q", "-p", "mutations", *tests]
        with tempfile.TemporaryFile(dir=self._folder) as output:
            process = subprocess.Popen(
                command, cwd=_ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            self._processes.add(process)
            try:
                return process.wait(limit) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                _end(process)
                self._processes.discard(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sample of mutants, and return the number of survivors."""
    parser = argparse.ArgumentParser(
        description="Run the tests with mutants of annot, and list those that none notices."
    )
    parser.add_argument("paths", nargs="*", help="files and folders, such as annot/labels (default: all rooms)")
    parser.add_argument("--sample", type=int, metavar="N", help="number of mutants (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="another number draws another sample (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time (default: 1)")
    options = parser.parse_args(arguments)
    chosen = mutants([os.path.relpath(path, _ROOT) for path in options.paths])
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        runner = Runner(folder)
        try:
            list(pool.map(runner.measure, dict.fromkeys(mutant.room for mutant in chosen)))
            survives = list(pool.map(runner.survives, chosen))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.close()
    survivors = [mutant for mutant, survived in zip(chosen, survives, strict=True) if survived]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    for mutant in sorted(survivors, key=lambda mutant: (mutant.path, mutant.line)):
        print(f"survived: {mutant}")
    return len(survivors)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the processes of mutants, too
    sys.exit(min(main(), 1))
