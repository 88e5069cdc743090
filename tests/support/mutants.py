"""Mutants: do tests fail when the code is wrong?

    python tests/support/mutants.py [--sample N] [--seed S] [--jobs J] [--least P] [FILE OR FOLDER ...]

Each mutant is a module of annot with one small change (`mutations`). The tests of each room run once without a mutant,
to note which blocks each test executes. With a mutant, the tests that execute its block run until one fails: first
those of the file of tests of the module, then the others, the quickest first, as many as take `_SECONDS`. The mutants
that none of these notices are listed. A sample is the same for the same seed and sources; another seed draws another
one (``--seed 1``).
"""

from __future__ import annotations

import argparse
import ast
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from equivalent_mutants import is_equivalent
from mutant_tests import ROOT, Processes, Test, measure, run_with_mutant
from mutations import mutations

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Room:
    """Modules whose mutants the same tests find.

    Args:
        path: file or folder in annot.
        tests: test files and folders. The examples of the modules are tests, too.
        guards: whether only conditions of guards change, for modules that the fuzzers cover otherwise.
    """

    path: str
    tests: tuple[str, ...]
    guards: bool = False


_SECONDS: Final = 15
"""CPU time of the tests that run with a mutant. What slower tests alone notice counts as survived."""
_ADVICE: Final = tuple(
    f"tests/analyze/advice/test_{name}.py"
    for name in (
        "advice",
        "facts",
        "loop",
        "kernels",
        "cpu",
        "operators",
        "gemm_causes",
        "operator_causes",
        "evidence",
        "planted",
    )
)
_VERDICT: Final = ("tests/analyze/test_verdict.py", "tests/analyze/test_ranks_verdict.py")
_READ: Final = (
    "limits",
    "bad_input",
    "native_scan",
    "ncu_csv",
    "ncu_rep",
    "nsys_parquet",
    "nsys_report",
    "nsys_sqlite",
    "nvprof_csv",
    "nvprof_sqlite",
    "proton",
    "recording",
    "xplane",
    "xplane_bad_input",
)
ROOMS: Final = (
    Room(
        "annot/labels", ("tests/labels", "tests/attribution/test_name_scopes.py", "tests/attribution/test_updates.py")
    ),
    Room("annot/attribution", ("tests/attribution", "tests/analyze/test_slices.py", "tests/analyze/test_step_time.py")),
    Room("annot/analyze/verdict.py", (*_VERDICT, "tests/analyze/advice/test_operators.py")),
    Room("annot/analyze/advice", _ADVICE),
    Room("annot/report/units.py", ("tests/report/test_units.py",)),
    Room("annot/read", tuple(f"tests/read/test_{name}.py" for name in _READ), guards=True),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module (path relative to the repository) of a room; `block` as in `Mutation`."""

    path: Path
    number: int
    line: int
    block: int
    change: str
    room: Room

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def mutants(paths: Sequence[str]) -> list[Mutant]:
    """Return all mutants of these files and folders, or of all rooms, except the equivalent ones."""
    return [mutant for room in ROOMS for path in _modules(room, paths) for mutant in _of_module(path, room)]


def _modules(room: Room, paths: Sequence[str]) -> list[Path]:
    top = ROOT / room.path
    modules = [path.relative_to(ROOT) for path in (sorted(top.rglob("*.py")) if top.is_dir() else [top])]
    return [path for path in modules if not paths or any(path.is_relative_to(chosen) for chosen in paths)]


def _of_module(path: Path, room: Room) -> Iterator[Mutant]:
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, mutation in enumerate(mutations(ast.parse(text))):
        code = lines[mutation.line - 1].strip()
        if (mutation.guards or not room.guards) and not is_equivalent(str(path), code, mutation.change):
            yield Mutant(path, number, mutation.line, mutation.block, mutation.change, room)


class Runner:
    """Runs tests of rooms with mutants.

    Args:
        folder: folder for temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes = Processes(folder)
        self._tests: dict[Room, dict[str, Test]] = {}

    def measure(self, room: Room) -> None:
        """Run the tests of a room and the examples of its modules without a mutant: they must pass."""
        began = time.monotonic()
        modules = [_name(path) for path in _modules(room, ())]
        results = self._folder / f"{len(modules)}-{modules[0]}.pickle"
        status, output = self._processes.run(None, measure, modules, [room.path, *room.tests], results)
        if status:
            raise SystemExit(f"{output}\ntests of {room.path} fail without a mutant")
        self._tests[room] = pickle.loads(results.read_bytes())
        print(f"{'measured':8} {time.monotonic() - began:6.1f} s  {room.path}", flush=True)

    def survives(self, mutant: Mutant) -> bool:
        """Whether the tests that execute the place of a mutant pass with it. Prints it, with the time of the tests."""
        began = time.monotonic()
        tests = self._tests[mutant.room]
        name = mutant.path.parent.name if mutant.path.stem == "__init__" else mutant.path.stem
        own = f"/test_{name}.py::"
        seconds = {name: tests[name].seconds for name in _executing(mutant, tests)}
        names = sorted(seconds, key=lambda name: (own not in name or seconds[name] > 1, seconds[name]))
        sums = [*accumulate((seconds[name] for name in names), initial=0.0)]
        names = names[: bisect_right(sums, _SECONDS) - 1]
        limit = 5 + 3 * sums[len(names)]
        status, _ = self._processes.run(limit, run_with_mutant, _name(mutant.path), mutant.number, names)
        result = "killed" if status else "survived"
        print(f"{result:8} {time.monotonic() - began:6.1f} s  {mutant} ({len(names)} tests)", flush=True)
        return not status

    def close(self) -> None:
        """End all processes."""
        self._processes.close()


def _executing(mutant: Mutant, tests: Mapping[str, Test]) -> list[str]:
    """The tests that execute the block of a mutant, or outside of functions those that execute any of the module."""
    module = _name(mutant.path)
    if mutant.block:
        return [name for name, test in tests.items() if (module, mutant.block) in test.blocks]
    return [name for name, test in tests.items() if any(block[0] == module for block in test.blocks)] or [*tests]


def _name(path: Path) -> str:
    """Name of the module of a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sample of mutants, and return the exit status: 1 if the tests kill too few."""
    parser = argparse.ArgumentParser(
        description="Run the tests with mutants of annot, and list those that none notices."
    )
    parser.add_argument("paths", nargs="*", help="files and folders, such as annot/labels (default: all rooms)")
    parser.add_argument("--sample", type=int, metavar="N", help="number of mutants (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="another number draws another sample (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time (default: 1)")
    parser.add_argument("--least", type=float, default=85, metavar="P", help="percentage to kill (default: 85)")
    options = parser.parse_args(arguments)
    chosen = mutants([os.path.relpath(path, ROOT) for path in options.paths])
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ThreadPoolExecutor(options.jobs) as pool:
        runner = Runner(Path(folder))
        try:
            list(pool.map(runner.measure, dict.fromkeys(mutant.room for mutant in chosen)))
            survivors = [m for m, survives in zip(chosen, pool.map(runner.survives, chosen), strict=True) if survives]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.close()
    return _report(chosen, survivors, options.least)


def _report(chosen: Sequence[Mutant], survivors: Sequence[Mutant], least: float) -> int:
    """Print the results, and return the exit status."""
    for mutant in sorted(survivors, key=lambda mutant: (mutant.path, mutant.line)):
        print(f"survived: {mutant}")
    alive = Counter(mutant.room.path for mutant in survivors)
    for room, number in sorted(Counter(mutant.room.path for mutant in chosen).items()):
        print(f"{number - alive[room]} of {number} mutants of {room} killed")
    killed = len(chosen) - len(survivors)
    share = 100 * killed / len(chosen)
    print(f"{killed} of {len(chosen)} mutants killed: {share:.1f} %, at least {least:g} % are expected")
    return int(share < least)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the processes of mutants, too
    sys.exit(main())
