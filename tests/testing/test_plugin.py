"""The fixture `annot_gate` in sessions of pytest: real runs, baselines and failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import entry_points

import polars as pl
import pytest
from commands import needs_recorder

from annot.runs.baselines import list_baselines, origins, sealed
from annot.testing.gate import Limits, baseline_name

pytest_plugins = ["pytester"]

INSTALLED = any(entry.name == "annot" for entry in entry_points(group="pytest11"))
pytestmark = pytest.mark.skipif(not INSTALLED, reason="annot was installed without its plugin: install it again")
TESTS = """
import os
import time

import annot


def work(milliseconds):
    end = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < end:
        pass


def step(slow=1.0):
    for layer, milliseconds in (("first", 20), ("second", 20 * slow), (os.environ.get("THIRD", "third"), 10)):
        with annot.trace(layer):
            work(milliseconds)


def test_speed(annot_gate):
    annot_gate(step, float(os.environ.get("SLOW", 1)), steps=12)
"""
"""A test of a step in three ranges. The variable SLOW is a factor for the second range, THIRD names the third."""
FEW = ("-o", "annot_runs=2")
"""Options of sessions whose result does not depend on the number of runs."""
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs pytest on `TESTS`, with options, and variables of the environment."""
    pytester.makeini("[pytest]\nannot_runs = 3\nannot_above = 1.5\nannot_collector = recorder")
    pytester.makepyfile(test_speed=TESTS)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # Each session and each of its runs is a process, which other plugins would take half of its start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*options: str, **environ: str) -> pytest.RunResult:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        result = pytester.runpytest_subprocess("-p", "annot", "-p", "no:cacheprovider", "-rA", *options)
        for name in environ:
            monkeypatch.delenv(name)
        return result

    return run


def test_name_of_a_baseline_is_that_of_one_test() -> None:
    names = {
        baseline_name(f"tests/test_a.py::{test}") for test in ("test_b[a/b]", "test_b[a-b]", "Test::test_b", "é" * 200)
    }
    assert len(names) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name) for name in names)


@pytest.mark.parametrize("wrong", [{"runs": 1}, {"above": 0.0}, {"level": 0.0}, {"level": 1.0}])
def test_limits_have_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]


def test_unused_plugin_imports_nothing_of_annot(pytester: pytest.Pytester) -> None:
    """It adds options and a fixture; a session that does not use them loads neither annot nor polars."""
    pytester.makepyfile(test_x="import sys\ndef test_x():\n    assert {'annot', 'polars'}.isdisjoint(sys.modules)")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--fixtures", "-q")
    result.stdout.fnmatch_lines(["annot_gate*"])
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_without_a_baseline_it_decides_nothing(session: Run) -> None:
    result = session()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*SKIPPED*annot_gate cannot decide: the test has no baseline in*--annot-update*"])
    session("--annot-require").assert_outcomes(failed=1)


@pytest.mark.slow
@needs_recorder
def test_slower_layer_fails_with_its_name(session: Run, pytester: pytest.Pytester) -> None:
    """A baseline is written; a slower layer fails; JSON has the runs."""
    written = session("--annot-update")
    written.assert_outcomes(passed=1)
    written.stdout.fnmatch_lines(["annot: wrote the baseline of test_speed.py::test_speed in *baselines (3 runs)"])
    slower = session("--annot-json", "times.json", SLOW="4")
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(
        ["second *takes * times as long in B*", "A: baseline test_speed.py-test_speed-* (3 runs); B: *"]
    )
    (entry,) = json.loads((pytester.path / "times.json").read_text())["benchmarks"]
    assert entry["fullname"] == "test_speed.py::test_speed"
    assert entry["stats"]["rounds"] == 3
    assert entry["stats"]["min"] > 0.11
    blind = session("-o", "annot_level=1e-100", SLOW="4")  # beyond any evidence of six runs
    blind.assert_outcomes(passed=1)
    blind.stdout.fnmatch_lines(["*the runs differ so much that * is slower only if *"])
    other = session(*FEW, THIRD="fourth")
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(["*only in*"])


@pytest.mark.slow
@needs_recorder
def test_slower_module_of_a_model_fails_with_its_path(session: Run, pytester: pytest.Pytester) -> None:
    """The only change: a module inside the model repeats its work."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytester.makepyfile(
        test_speed="""
        import os
        import torch

        class Repeated(torch.nn.Linear):
            def forward(self, x):
                for _ in range(int(os.environ.get("SLOW", 1))):
                    y = super().forward(x)
                return y

        def test_speed(annot_gate):
            blocks = [torch.nn.Linear(256, 256), Repeated(256, 256), torch.nn.Linear(256, 256)]
            model = torch.nn.Sequential(*blocks)
            x = torch.randn(256, 256)

            def step():
                model(x).sum().backward()

            annot_gate(step, model=model, steps=15)
        """
    )
    session("--annot-update").assert_outcomes(passed=1)
    slower = session(SLOW="8")
    slower.assert_outcomes(failed=1)
    slower.stdout.re_match_lines([r"1 forward takes .* times as long in B"])


@pytest.mark.slow
@needs_recorder
def test_update_adds_the_same_and_replaces_the_changed(session: Run, pytester: pytest.Pytester) -> None:
    store = str(pytester.path / "stored")
    options = ("--annot-update", "--annot-baselines", store)
    counts = []
    for factor in ("1", "1", "4", "1"):  # slower and faster runs replace the baseline
        session(*options, *FEW, SLOW=factor).assert_outcomes(passed=1)
        (name,) = list_baselines(store)
        counts.append(origins(name, store).height)
    assert counts == [2, 4, 2, 2]


@pytest.mark.slow
@needs_recorder
def test_baseline_of_another_machine_is_refused(session: Run, pytester: pytest.Pytester) -> None:
    """The same one is accepted. Only the runs tell the GPU: their digests get a name here, so that none is needed."""
    pytester.makeconftest(
        """
        import dataclasses
        import os

        import annot.testing.gate as gate

        digest = gate.digest

        def on_gpu(attribution):
            run = digest(attribution)
            return dataclasses.replace(run, meta=run.meta | {"devices": [os.environ["GPU"]]})

        gate.digest = on_gpu
        """
    )
    session(*FEW, "--annot-update", GPU="A100").assert_outcomes(passed=1)
    session(*FEW, "--annot-require", GPU="A100").assert_outcomes(passed=1)
    result = session(*FEW, GPU="H100")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*the baseline is from another machine: the devices differ: A100 and H100*"])
    (path,) = (pytester.path / ".annot/baselines").glob("*.parquet")
    path.write_bytes(sealed(pl.read_parquet(path).with_columns(cpu=pl.lit("Z80"))))
    result = session(*FEW, GPU="A100")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*the baseline is from another machine: cpu Z80, here *"])
    session(*FEW, "--annot-update", GPU="A100").stdout.fnmatch_lines(["annot: replaced the baseline of *"])


@pytest.mark.slow
@needs_recorder
def test_failure_in_a_run_is_shown(session: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_speed="def test_speed(annot_gate):\n    annot_gate(lambda: 1 / 0)")
    result = session("--annot-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["run 1 of run (*pytest*) failed: exit status 1*", "*ZeroDivisionError*"])


@pytest.mark.slow
@needs_recorder
def test_run_has_the_options_of_the_session(session: Run, pytester: pytest.Pytester) -> None:
    """The command line, addopts and the parameter of the test are those of the session, but no report is written."""
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--device')")
    pytester.makeini(
        "[pytest]\nannot_runs = 2\nannot_collector = recorder\naddopts = -m chosen --strict-markers\nmarkers = chosen"
    )
    pytester.makepyfile(
        test_speed="""
        import os, pytest
        import annot

        class TestSteps:
            @pytest.mark.chosen
            @pytest.mark.parametrize("size", ["a/b", "2"])
            def test_step(self, annot_gate, pytestconfig, size, tmp_path):
                with open("seen", "a") as file:
                    print(pytestconfig.getoption("device"), size, file=file)
                with annot.trace("setup"):
                    pass
                (tmp_path / "file").touch()
                annot_gate(lambda: annot.mark("step"))
                assert [path.name for path in tmp_path.iterdir()] == ["file"]
        """
    )
    done = session(
        "--device", "gpu", "--annot-update", "--junitxml=report.xml", "-k", "b", f"--basetemp={pytester.path}/t"
    )
    done.assert_outcomes(passed=1, deselected=1)
    assert (pytester.path / "seen").read_text() == "gpu a/b\n" * 3
    assert 'skipped="0"' in (pytester.path / "report.xml").read_text()
    assert {"run1.sqlite", "run2.sqlite"} < {path.name for path in (pytester.path / "t").glob("annot_gate*/*")}


@needs_recorder
def test_second_call_is_an_error(session: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_speed="""
        import pytest

        def test_speed(annot_gate):
            with pytest.raises(TypeError, match="expects a function, got int"):
                annot_gate(3)
            with pytest.raises(pytest.skip.Exception):
                annot_gate(print)
            with pytest.raises(RuntimeError, match="write a test for each function"):
                annot_gate(print)
        """
    )
    session().assert_outcomes(passed=1)


def test_wrong_settings_are_usage_errors(session: Run) -> None:
    for setting in ("annot_runs=1", "annot_level=x", "annot_collector=perf"):
        result = session("-o", setting)
        assert setting.partition("=")[0] in result.stdout.str()
        result.assert_outcomes(errors=1)


@pytest.mark.slow
@needs_recorder
def test_with_xdist_it_measures_on_one_worker_only(session: Run) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    beside = session("-p", "xdist", "-n", "2", "--annot-update")
    beside.assert_outcomes(skipped=1)
    beside.stdout.fnmatch_lines(["*2 processes of pytest-xdist run tests at the same time*use -n 0*"])
    session("-p", "xdist", "-n", "1", *FEW, "--annot-update").assert_outcomes(passed=1)
