"""pytest plugin of annot: options, and the fixture `annot_gate`.

pytest imports this module in every run. It lies beside the package `annot`, which only the fixture imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from annot.testing.gate import Gate, Gates
    from annot.testing.measured_run import MeasuredRun

_GATES: pytest.StashKey[Gates] = pytest.StashKey()
_SETTINGS = {
    "annot_baselines": ("folder or URL of the baselines; default: $ANNOT_BASELINES, else .annot/baselines", ""),
    "annot_above": ("allowed factor between the times of the baseline and of the test", "1.05"),
    "annot_level": ("probability of a failure by chance, see annot guide compare", "0.01"),
    "annot_runs": ("number of runs, each in a process of its own", "5"),
    "annot_collector": ("collector: auto, nsys, recorder or torch", "auto"),
}
"""Settings in the configuration file of pytest, with their defaults."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and settings of annot."""
    group = parser.getgroup("annot", "times of layers, see annot guide compare")
    group.addoption(
        "--annot-update", action="store_true", help="measure the tests with annot_gate, and write their baselines"
    )
    group.addoption(
        "--annot-require", action="store_true", help="fail, instead of skip, where annot_gate cannot decide"
    )
    group.addoption("--annot-baselines", metavar="FOLDER", help="folder or URL of the baselines")
    group.addoption("--annot-json", metavar="PATH", help="write the times of the tests in pytest-benchmark's format")
    for name, (text, default) in _SETTINGS.items():
        parser.addini(name, f"annot_gate: {text}", default=default)


@pytest.fixture
def annot_gate(request: pytest.FixtureRequest) -> Gate | MeasuredRun:
    """Compare the times of layers with the baseline of this test; see `annot guide compare`."""
    from annot.testing.gate import Gate, Gates
    from annot.testing.measured_run import PLUGIN, MeasuredRun

    if request.config.pluginmanager.hasplugin(PLUGIN):
        return MeasuredRun()
    return Gate(request, request.config.stash.setdefault(_GATES, Gates(request.config)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print which files were written."""
    gates = config.stash.get(_GATES, None)
    for line in gates.summary() if gates else ():
        terminalreporter.write_line(f"annot: {line}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the JSON file."""
    gates = session.config.stash.get(_GATES, None)
    if gates:
        gates.write_json()
