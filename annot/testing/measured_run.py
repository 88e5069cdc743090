"""A run of a test in a process of its own, under a collector.

The process is pytest with the command line of the session, and this module as a plugin. It runs one test, in which the
fixture `annot_gate` is a `MeasuredRun`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from annot.dispatch import emit_ranges
from annot.emit.loop import batches

PLUGIN: Final = __name__
_TEST: Final = "ANNOT_GATE_TEST"
"""Environment variable with the test to run: its absolute path and its names."""
_TEMPORARY: Final = "ANNOT_GATE_TEMPORARY"
"""Environment variable with the folder for temporary files, so that no folder of an earlier session is removed."""
_ALONE: Final[dict[str, Any]] = {
    "cacheclear": False,
    "dist": "no",
    "failedfirst": False,
    "lf": False,
    "newfirst": False,
    "numprocesses": None,
    "pyargs": False,
    "stepwise": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}
"""Options of pytest and pytest-xdist that other processes, or files of the session, depend on."""


def command_of(config: pytest.Config) -> list[str]:
    """Return the command of a run, for a session with this configuration.

    Python puts the working directory on the module path if it is there in this process.
    """
    here = "" in sys.path or str(config.invocation_params.dir) in sys.path
    coverage = ["--no-cov"] if config.pluginmanager.hasplugin("pytest_cov") else []
    words = [*map(str, config.invocation_params.args), *coverage, "-p", PLUGIN]
    return [sys.executable, *([] if here else ["-P"]), "-m", "pytest", *words]


def environment_of(request: pytest.FixtureRequest, temporary: Path) -> dict[str, str]:
    """Return variables for the environment of a run. Nothing measures the coverage of a run."""
    path, names = request.node.nodeid.partition("::")[::2]
    without_coverage = dict.fromkeys(("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"), "")
    test = f"{request.config.rootpath / path}::{names}"
    return {_TEST: test, _TEMPORARY: str(temporary), **without_coverage}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Select the test."""
    alone = {**_ALONE, "basetemp": os.environ[_TEMPORARY]}
    vars(config.option).update({name: value for name, value in alone.items() if hasattr(config.option, name)})
    config.args = [os.environ[_TEST]]


class MeasuredRun:
    """The fixture `annot_gate` in the process of a run: it emits ranges around the callable, and ends the test."""

    def __call__(
        self, function: Callable[..., object], *args: Any, model: Any = None, steps: int | None = 20, **limits: Any
    ) -> NoReturn:
        """Call the function in each step; see `annot.testing.gate.Gate`."""
        with nullcontext() if model is None else emit_ranges(model):
            if steps is None:
                function(*args)
            else:
                for _ in batches(range(steps)):
                    function(*args)
        pytest.skip("annot_gate has measured the test")
