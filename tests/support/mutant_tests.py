"""Runs tests in processes of their own, with notes of what each test executes, or with one mutant of annot.

A server that has imported pytest and polars, but not annot, forks the processes. The files stay as they are: a process
compiles the modules from a changed syntax tree when the tests import them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import math
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

import hypothesis
import pytest
from mutations import NOTE, mutations, note_blocks

__all__ = ["ROOT", "Block", "Processes", "Test", "measure", "run_with_mutant"]

ROOT: Final = Path(__file__).parents[2]
Block = tuple[str, int]
"""Name of a module, and the name of a block of it: the line of its first statement."""
_PRELOADED: Final = ("hypothesis", "numpy", "polars", "pytest")
_MEMORY: Final = 32 << 30
"""Address space of a process (bytes): a loop that grows a list fails before the machine is full."""
_FIRST: Final = 10
"""Number of the quickest tests, which run before pytest reads the files of the others."""


@dataclass(frozen=True, slots=True)
class Test:
    """What a test takes (CPU seconds, with those of its children), and the blocks of annot that it executes."""

    seconds: float
    blocks: frozenset[Block]


class _Loader(SourceFileLoader):
    """Loader that changes the tree of a module."""

    def __init__(self, name: str, path: str, change: Callable[[ast.Module], None], executed: set[Block]) -> None:
        super().__init__(name, path)
        self._change, self._executed = change, executed

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        self._change(tree)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, NOTE, self._executed.add)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finder of modules whose trees change.

    Args:
        changes: the changes by the names of the modules.
        executed: gets the blocks that run, if the change adds notes.
    """

    def __init__(self, changes: Mapping[str, Callable[[ast.Module], None]], executed: set[Block]) -> None:
        self._changes, self._executed = changes, executed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._changes else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._changes[fullname], self._executed)
        return spec


class _Plugin:
    """Pytest plugin that runs chosen tests in their order, or measures all.

    Args:
        modules: modules to import first; their examples are tests of the modules that all others import, too.
        executed: the blocks that ran.
        chosen: names of the tests to run; all if it is empty.
    """

    def __init__(self, modules: Sequence[str], executed: set[Block], chosen: Sequence[str] = ()) -> None:
        self.tests: dict[str, Test] = {}
        self._modules, self._executed = modules, executed
        self._imported: frozenset[Block] = frozenset()
        self._order = {test: place for place, test in enumerate(chosen)}

    def pytest_collection(self) -> None:
        for module in self._modules:
            importlib.import_module(module)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order:
            chosen = [item for item in items if item.nodeid in self._order]
            items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_collection_finish(self) -> None:
        self._imported = frozenset(self._executed)  # what runs on import is part of each test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._executed.clear()
        began = _cpu_seconds()
        result = yield
        self.tests[item.nodeid] = Test(_cpu_seconds() - began, self._imported | self._executed)
        return result


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def measure(modules: Sequence[str], paths: Sequence[str], results: Path) -> int:
    """Run all tests, and write what each takes and executes of some modules (a dictionary of `Test` by name).

    What a cache or a fixture of a module of tests keeps counts for the test that runs first.

    Returns:
        The exit status of pytest.
    """
    executed: set[Block] = set()
    sys.meta_path.insert(0, _Finder({name: partial(note_blocks, module=name) for name in modules}, executed))
    plugin = _Plugin(modules, executed)
    status = _pytest(paths, plugin)
    results.write_bytes(pickle.dumps(plugin.tests))
    return status


def run_with_mutant(module: str, number: int, tests: Sequence[str]) -> int:
    """Run tests with a mutation of a module until one fails.

    Returns:
        The exit status of pytest, 0 if no test notices the mutation.
    """
    sys.meta_path.insert(0, _Finder({module: lambda tree: mutations(tree)[number].apply()}, set()))
    groups = [group for group in (tests[:_FIRST], tests[_FIRST:]) if group]
    return next(filter(None, (_pytest(_files(group), _Plugin([module], set(), group)) for group in groups)), 0)


def _files(tests: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def _pytest(paths: Sequence[str], plugin: _Plugin) -> int:
    return int(pytest.main(["--doctest-modules", "-x", "-q", *paths], plugins=[plugin]))


class Processes:
    """Runs functions in processes of their own, one after the other or in threads.

    Args:
        folder: folder for temporary files and what the processes print.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))
        self._running: set[BaseProcess] = set()

    def run(self, seconds: float | None, function: Callable[..., int], *arguments: object) -> tuple[int, str]:
        """Run a function.

        Args:
            seconds: limit of its CPU time, and for a process that waits for ever a tenth of its limit of time.
            function: returns the exit status.
            arguments: its arguments.

        Returns:
            The exit status, which a signal makes negative, and the text that the process printed.
        """
        handle, output = tempfile.mkstemp(dir=self._folder)
        os.close(handle)
        process = self._context.Process(target=_alone, args=(output, seconds, function, *arguments))
        process.start()
        self._running.add(process)
        try:
            process.join(seconds and 10 * seconds)
            status = process.exitcode
        finally:
            _end(process)
            self._running.discard(process)
        return -signal.SIGKILL if status is None else status, Path(output).read_text(errors="replace")

    def close(self) -> None:
        """End all processes."""
        for process in list(self._running):
            _end(process)


def _end(process: BaseProcess) -> None:
    """End a process and what it started."""
    process.kill()
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _alone(output: str, seconds: float | None, function: Callable[..., int], *arguments: object) -> None:
    """Run a function in this process, which the server has just forked."""
    os.setsid()  # the limit of time ends what tests started, too
    os.chdir(ROOT)
    os.environ["TMPDIR"] = os.path.dirname(output)
    tempfile.tempdir = None
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    _limit(resource.RLIMIT_AS, _MEMORY)
    if seconds is not None:
        _limit(resource.RLIMIT_CPU, math.ceil(seconds))
    # Hypothesis reports the first failure as it is, stores none, and takes no slow example for one.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", phases=phases, database=None, derandomize=True, deadline=None)
    hypothesis.settings.load_profile("mutants")
    status = 1
    try:
        status = function(*arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _limit(kind: int, limit: int) -> None:
    resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
