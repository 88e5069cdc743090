"""Which runs a trial makes: the order of rounds, what fails, combinations, the budget. The runs are made records."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from documents import ROOT
from measured_results import LOSSES, result

from annot.changes.registry import all_changes
from annot.errors import AnnotError
from annot.live.request import Request, Result
from annot.trial.records import BASE, ROUNDED, Kind, Record
from annot.trial.runs import Program, Runs
from annot.trial.trial import ALL, Question, Trial, choose

SPEED = {
    "compile": 0.5,
    "compile-blocks": 0.6,
    "foreach": 0.95,
    "bf16": 0.8,
    "sdpa-math": 0.85,
    "fused": 0.9,
    "set-to-none": 1.0,
    ROUNDED: 1.0,
}


class MadeRuns(Runs):
    """Runs of a program with a step of 10 ms, which changes shorten; each run takes `seconds`."""

    def __init__(self, folder: Path, failing: Mapping[tuple[str, Kind], str] = {}, seconds: float = 1.0) -> None:
        super().__init__(folder, Program(command=("python", "train.py"), warmup=2))
        self._failing, self._seconds, self.count = failing, seconds, 40
        profile = gzip.decompress((ROOT / "tests/data/transformer.sqlite.gz").read_bytes())
        (folder / "base.sqlite").write_bytes(profile)

    def _perform(self, name: str, kind: Kind, number: int, stage: int, request: Request) -> Record:
        time = 10.0 + 0.01 * number
        for change in request.changes:
            helps = change != "sdpa-math" or "compile" not in request.changes
            time *= SPEED[change] if helps else 1.0
        steps = min(request.steps, self.count - request.warmup)
        made = result([time] * steps, losses=list(LOSSES) if request.losses else [], ended="steps")
        problem = self._failing.get((name, kind), "")
        return Record(
            name=name,
            kind=kind,
            number=number,
            stage=stage,
            request=request,
            status=1 if problem else 0,
            seconds=self._seconds,
            problem=problem,
            result=Result() if problem else made,
            profile="base.sqlite" if kind == "check" and not problem else "",
        )


NAMES = ("compile", "bf16", "fused")


def trial(runs: MadeRuns, **question: object) -> tuple[Trial, list[str]]:
    said: list[str] = []
    values = {"changes": NAMES, "rounds": 3, "steps": 12, **question}
    return Trial(Question(**values), runs, said.append), said  # type: ignore[arg-type]


def test_rounds_are_in_turns(tmp_path: Path) -> None:
    runs = MadeRuns(tmp_path)
    tried, said = trial(runs)
    tried.run()
    kinds = [(record.name, record.kind) for record in runs.records]
    assert kinds[:6] == [(name, "check") for name in (BASE, BASE, ROUNDED, *NAMES)]
    order = [name for name, _ in kinds[6:]]
    assert order == [BASE, *NAMES, *reversed([BASE, *NAMES]), BASE, *NAMES]
    answer = tried.answer()
    assert [row.name for row in answer.rows] == ["compile", "bf16", "fused"]
    assert answer.best is not None
    assert answer.best.speedup == pytest.approx(2.0)
    assert answer.trains
    assert (answer.complete, answer.steps, answer.step_ns) == (True, 12, pytest.approx(10.02e6))
    assert any(line.startswith("plan: compile, bf16, fused; 3 rounds of 12 steps each, about") for line in said)


def test_a_change_that_fails_its_check_is_not_timed(tmp_path: Path) -> None:
    runs = MadeRuns(tmp_path, {("compile", "check"): "BackendCompilerFailed"})
    tried, said = trial(runs)
    tried.run()
    assert Counter(record.name for record in runs.records if record.kind == "timed") == {BASE: 3, "bf16": 3, "fused": 3}
    assert "compile: BackendCompilerFailed" in said
    assert tried.answer().rows[-1].reason == "BackendCompilerFailed"


def test_a_change_that_fails_in_a_round_is_left_out_of_the_others(tmp_path: Path) -> None:
    runs = MadeRuns(tmp_path, {("bf16", "timed"): "out of memory"})
    tried, _ = trial(runs)
    tried.run()
    timed = Counter(record.name for record in runs.records if record.kind == "timed")
    assert timed == {BASE: 3, "compile": 3, "bf16": 1, "fused": 3}
    assert tried.answer().rows[-1].verdict == "failed"


def test_a_program_that_fails_by_itself(tmp_path: Path) -> None:
    tried, _ = trial(MadeRuns(tmp_path, {(BASE, "check"): "exit status 1: no data"}))
    with pytest.raises(
        AnnotError, match=r"does not run without changes: exit status 1: no data; output: .*base\.check1"
    ):
        tried.run()
    tried, _ = trial(MadeRuns(tmp_path, {(BASE, "timed"): "killed"}))
    with pytest.raises(AnnotError, match="a run without changes failed: killed"):
        tried.run()


def test_combinations_keep_what_helps(tmp_path: Path) -> None:
    runs = MadeRuns(tmp_path)
    tried, _ = trial(runs, changes=(*NAMES, "set-to-none", "sdpa-math"), combine=True)
    tried.run()
    best = tried.answer().best
    assert best is not None
    assert best.name == "compile+bf16+fused"
    assert best.speedup == pytest.approx(1 / (0.5 * 0.8 * 0.9), rel=1e-2)
    stages = {record.stage: record.name for record in runs.records if "+" in record.name and record.kind == "timed"}
    assert stages == {1: "compile+bf16", 2: "compile+bf16+sdpa-math", 3: "compile+bf16+fused"}
    asked = next(record.request for record in runs.records if record.name == "compile+bf16")
    assert asked.changes == {name: all_changes()[name].live for name in ("compile", "bf16")}


def test_changes_that_exclude_each_other_are_not_combined(tmp_path: Path) -> None:
    runs = MadeRuns(tmp_path)
    trial(runs, changes=("compile", "compile-blocks", "fused", "foreach"), combine=True)[0].run()
    assert {record.name for record in runs.records if "+" in record.name} == {"compile+fused"}


def test_the_budget_ends_rounds_and_leaves_changes_out(tmp_path: Path) -> None:
    runs = MadeRuns(tmp_path, seconds=10.0)
    tried, _ = trial(runs, budget=205.0, rounds=9)
    tried.run()
    assert tried.left_out == {}
    assert runs.spent <= 205.0
    few = MadeRuns(tmp_path, seconds=10.0)
    (tried, _) = trial(few, budget=100.0, rounds=9)
    tried.run()
    assert tried.left_out == {"bf16": "the budget is too small", "fused": "the budget is too small"}
    assert {record.name for record in few.records} == {BASE, ROUNDED, "compile"}


def test_a_short_program_has_fewer_measured_steps(tmp_path: Path) -> None:
    runs = MadeRuns(tmp_path)
    runs.count = 10
    tried, said = trial(runs, steps=30)
    tried.run()
    assert (tried.steps, runs.records[-1].request.steps) == (8, 8)
    assert "the program has 10 steps: 8 are measured" in said
    short = MadeRuns(tmp_path)
    short.count = 4
    with pytest.raises(AnnotError, match=r"has 4 steps, and the first 2 warm up: .* longer run of it, or --warmup 1$"):
        trial(short)[0].run()
    short.count, short.program = 2, replace(short.program, warmup=1)
    with pytest.raises(AnnotError, match=r"has 3 steps, and the first 1 warm up: try a longer run of it$"):
        trial(short)[0].run()


def test_an_interrupted_trial_answers_what_is_measured(tmp_path: Path) -> None:
    class Interrupted(MadeRuns):
        def _perform(self, name: str, kind: Kind, number: int, stage: int, request: Request) -> Record:
            if len(self.records) == 6 + 4 * 2 + 1:
                raise KeyboardInterrupt
            return super()._perform(name, kind, number, stage, request)

    tried, _ = trial(Interrupted(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        tried.run()
    answer = tried.answer()
    assert (answer.complete, answer.best is not None) == (False, True)
    assert answer.best is not None
    assert (answer.best.name, answer.best.runs) == ("compile", 2)


def test_a_trial_continues_with_the_runs_of_the_same_requests(tmp_path: Path) -> None:
    first = MadeRuns(tmp_path)
    trial(first)[0].run()
    said: list[str] = []
    again = MadeRuns(tmp_path)
    tried = Trial(Question(changes=NAMES, rounds=3, steps=12), again, said.append)
    tried.run()
    assert again.records == first.records
    assert [line for line in said if "check" in line or "run" in line.split(", ")[-1]] == []
    other = MadeRuns(tmp_path)
    other.program = Program(command=other.program.command, warmup=2, seed=1)
    said.clear()
    Trial(Question(changes=NAMES, rounds=3, steps=12), other, said.append).run()
    assert sum("check" in line for line in said) == 6


def test_which_changes_are_tried() -> None:
    every = all_changes()
    assert list(choose(["fused", "bf16"], {}, "torch")) == ["fused", "bf16"]
    assert set(choose([ALL], {}, "keras")) == {name for name, change in every.items() if change.framework == "keras"}
    with pytest.raises(AnnotError, match="fused is a change of torch, and the program uses keras"):
        choose(["fused"], {}, "keras")
