"""The fixture `annot_gate`: it measures a test in several runs and compares them with the baseline of the test."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from annot.analyze.comparison.causes import causes_of
from annot.analyze.comparison.compare import Comparison, compare
from annot.analyze.comparison.digest import Digest, digest
from annot.analyze.comparison.gate import Decision, check_limits, decide
from annot.analyze.comparison.same_run import differ
from annot.collect.alternate import Command, alternate
from annot.collect.collectors import COLLECTORS
from annot.emit.machine import cpu_name
from annot.errors import AnnotError
from annot.runs.baselines import Baseline, current_commit, default_store, list_baselines, read, save
from annot.runs.profile_files import is_url
from annot.runs.run import Run
from annot.testing.benchmark_json import benchmark, document
from annot.testing.measured_run import command_of, environment_of
from annot.util.whole_files import write_file

_LONGEST: Final = 80
"""Characters of a node id in the name of a baseline."""
_LOG_LINES: Final = 60
"""Lines of the output of a run in the message about its failure."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Number of runs, and what the gate decides.

    Args:
        runs: number of runs, 2 or more.
        above: allowed factor between the times of the baseline and of the test, above 0.
        level: probability of a failure by chance, above 0 and below 1.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> Limits(runs=1)
        Traceback (most recent call last):
        ValueError: runs must be at least 2, got 1
    """

    runs: int = 5
    above: float = 1.05
    level: float = 0.01

    def __post_init__(self) -> None:
        if self.runs < 2:
            raise ValueError(f"runs must be at least 2, got {self.runs}")
        check_limits(self.above, self.level)


class Gates:
    """The settings of a session, and the results of its tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.updates: bool = config.getoption("annot_update")
        self.requires: bool = config.getoption("annot_require")
        self.store = _store(config)
        self.collector = config.getini("annot_collector")
        if self.collector not in COLLECTORS:
            raise pytest.UsageError(f"annot_collector must be one of {', '.join(COLLECTORS)}, got {self.collector!r}")
        try:
            runs, above, level = (config.getini(f"annot_{name}") for name in ("runs", "above", "level"))
            self.limits = Limits(int(runs), float(above), float(level))
        except ValueError as error:
            raise pytest.UsageError(f"annot_runs, annot_above or annot_level: {error}") from None
        self._json: str | None = config.getoption("annot_json")
        self._benchmarks: list[dict[str, Any]] = []
        self._lines: list[str] = []

    def add(self, node: pytest.Item, runs: Sequence[Digest]) -> None:
        """Add the times of a test to the JSON file."""
        callspec = getattr(node, "callspec", None)
        entry = benchmark(node.name, node.nodeid, callspec and callspec.params, runs)
        if entry["stats"]["rounds"]:
            self._benchmarks.append(entry)

    def say(self, line: str) -> None:
        """Add a line to the summary of the session."""
        self._lines.append(line)

    def summary(self) -> Iterator[str]:
        """Yield the lines at the end of the session."""
        yield from self._lines

    def write_json(self) -> None:
        """Write the JSON file, if the session has one and tests were measured."""
        if self._json and self._benchmarks:
            text = json.dumps(document(self._benchmarks, *current_commit()), indent=4)
            try:
                write_file(Path(self._json), [text.encode()], force=True)
            except AnnotError as error:
                self.say(str(error))
            else:
                self.say(f"wrote {self._json}")
        elif self._json:
            self.say(f"did not write {self._json}: no test was measured")


def _store(config: pytest.Config) -> str:
    """The store of the baselines. The configuration file names a folder relative to the root folder of pytest."""
    option: str | None = config.getoption("annot_baselines")
    if option:
        return option
    store: str = config.getini("annot_baselines") or default_store()
    return store if is_url(store) else str(config.rootpath / store)


class Gate:
    """The fixture `annot_gate` of pytest.

    It runs the test in several processes of its own, each under a collector, and compares the times of the steps and
    layers with the baseline of the test. The test fails if they are slower.

    Example:
        >>> def test_training_speed(annot_gate):  # in a file of tests
        ...     model, step = make_training()
        ...     annot_gate(step, model=model)
    """

    def __init__(self, request: pytest.FixtureRequest, gates: Gates) -> None:
        self._request, self._gates = request, gates
        self._called = False
        self._folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("annot_gate")

    def __call__(
        self,
        function: Callable[..., object],
        *args: Any,
        model: Any = None,
        steps: int | None = 20,
        runs: int | None = None,
        above: float | None = None,
        level: float | None = None,
    ) -> None:
        """Measure a function, and compare its times with the baseline of the test.

        The function is not called in this process: each run is a process that runs this test up to this call.

        Args:
            function: a step, such as a training step; with ``steps=None``, a loop that marks its steps itself.
            *args: arguments of the function.
            model: the model whose layers have ranges; None: all models that the test calls.
            steps: number of steps in a run, the first of which are warm-up; None: the function is called once.
            runs: number of runs; None: the setting annot_runs.
            above: allowed factor between the times of the baseline and of the test; None: the setting annot_above.
            level: probability of a failure by chance; None: the setting annot_level.

        Raises:
            TypeError: `function` is not callable, or `steps` is neither an int nor None.
            ValueError: an argument is out of range.
            RuntimeError: the test called the fixture before.
        """
        if not callable(function):
            raise TypeError(f"annot_gate expects a function, got {type(function).__name__}")
        if steps is not None and not isinstance(steps, int):
            raise TypeError(f"steps must be an int or None, got {type(steps).__name__}")
        if self._called:
            raise RuntimeError("annot_gate was called before: write a test for each function")
        self._called = True
        given: dict[str, Any] = {"runs": runs, "above": above, "level": level}
        limits = replace(self._gates.limits, **{name: value for name, value in given.items() if value is not None})
        try:
            self._decide(limits, layers=model is None)
        except AnnotError as error:
            pytest.fail(str(error), pytrace=False)

    def _decide(self, limits: Limits, *, layers: bool) -> None:
        gates, name = self._gates, baseline_name(self._request.node.nodeid)
        baseline = read(name, gates.store) if name in list_baselines(gates.store) else None
        if obstacle := self._obstacle(baseline):
            self._give_up(obstacle)
        measured = self._measure(limits.runs, layers=layers)
        gates.add(self._request.node, measured)
        if gates.updates or baseline is None:
            self._update(name, baseline, measured, limits)
        else:
            self._judge(baseline, measured, limits)

    def _obstacle(self, baseline: Baseline | None) -> str:
        """Return why the test cannot be measured or compared with its baseline; empty: it can."""
        workers = getattr(self._request.config, "workerinput", {}).get("workercount", 1)
        if workers > 1:
            return f"{workers} processes of pytest-xdist run tests at the same time, which slows the runs: use -n 0"
        if self._gates.updates:
            return ""
        if baseline is None:
            return f"the test has no baseline in {self._gates.store}: write it with pytest --annot-update"
        return _other_machine(baseline)

    def _measure(self, runs: int, *, layers: bool) -> list[Digest]:
        """Run the test in processes of its own."""
        request, folder = self._request, self._folder
        command = Command(
            name="run",
            words=command_of(request.config),
            folder=request.config.invocation_params.dir,
            environment=environment_of(request, folder / "temporary"),
        )
        try:
            recorded = list(alternate([command], runs, folder, collector=self._gates.collector, layers=layers))
        except AnnotError as error:
            logs = sorted(folder.glob("run*.txt"), key=lambda path: path.stat().st_mtime)
            lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
            raise AnnotError("\n".join([str(error), *lines[-_LOG_LINES:]])) from None
        return [digest(Run(run.profile).attribution) for run in recorded]

    def _update(self, name: str, before: Baseline | None, measured: Sequence[Digest], limits: Limits) -> None:
        """Write the baseline. Runs on the same machine that are neither slower nor faster are added to it."""
        store = self._gates.store
        same = before is not None and not _other_machine(before) and _are_equal(before.runs, measured, limits)
        count = save(name, measured, store, force=before is not None and not same, append=same).height
        how = f"added {len(measured)} runs to" if same else "wrote" if before is None else "replaced"
        self._gates.say(f"{how} the baseline of {self._request.node.nodeid} in {store} ({count} runs)")

    def _judge(self, baseline: Baseline, measured: Sequence[Digest], limits: Limits) -> None:
        comparison, decision = _decided(baseline.runs, measured, limits)
        if devices := differ("the devices differ", *comparison.devices):
            self._give_up(f"the baseline is from another machine: {devices}")
        self._request.node.user_properties.append(("annot", decision.status))
        text = "\n".join(decision.sentences)
        if decision.status == "undecided":
            self._give_up(text)
        if decision.status == "same":
            for sentence in decision.sentences:
                self._gates.say(f"{self._request.node.nodeid}: {sentence}")
        else:
            why = causes_of(comparison, decision, baseline.runs, measured)
            files = f"A: baseline {baseline}; B: profiles in {self._folder}"
            pytest.fail("\n".join([text, *(cause.text for cause in why), files]), pytrace=False)

    def _give_up(self, reason: str) -> NoReturn:
        """Skip the test, or fail with --annot-require."""
        if self._gates.requires:
            pytest.fail(f"annot_gate cannot decide: {reason}", pytrace=False)
        pytest.skip(f"annot_gate cannot decide: {reason}")


def baseline_name(nodeid: str) -> str:
    """Return the name of the baseline of a test.

    Example:
        >>> baseline_name("tests/test_speed.py::test_step[fp16]")
        'tests-test_speed.py-test_step-fp16-a8780a36'
    """
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", nodeid)[-_LONGEST:].strip("-.")
    return f"{readable}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"


def _other_machine(baseline: Baseline) -> str:
    """Return how the machine of the last run of a baseline differs from this one; empty: it does not."""
    there, here = baseline.origins.row(-1, named=True), {"cpu": " ".join(cpu_name().split()), "cores": os.cpu_count()}
    differences = [
        f"{name} {there[name]}, here {value}" for name, value in here.items() if there[name] not in (value, None)
    ]
    return f"the baseline is from another machine: {'; '.join(differences)}" if differences else ""


def _decided(before: Sequence[Digest], after: Sequence[Digest], limits: Limits) -> tuple[Comparison, Decision]:
    comparison = compare(before, after, level=limits.level)
    return comparison, decide(comparison, above=limits.above, level=limits.level)


def _are_equal(before: Sequence[Digest], after: Sequence[Digest], limits: Limits) -> bool:
    """Return whether runs are neither slower nor faster than others."""
    sides = (before, after), (after, before)
    return all(_decided(*each, limits)[1].status == "same" for each in sides)
