"""What the records of a trial say about each change."""

from __future__ import annotations

import pytest
from measured_results import Records, candidates, change

from annot.changes.registry import Candidate
from annot.trial.answer import Evaluation, Row, together
from annot.trial.speed import Speedup

FAST, BASE_TIMES = (8.0, 8.1, 7.9, 8.0, 8.2), (12.0, 12.1, 11.9, 12.0, 12.2)


def base() -> Records:
    records = Records()
    records.check()
    records.check()
    return records


def measured(name: str = "fused", **values: object) -> tuple[Records, Row]:
    records = base()
    records.check(name)
    records.timed("base", *BASE_TIMES)
    records.timed(name, *FAST, **values)  # type: ignore[arg-type]
    return records, Evaluation(records, candidates(name)).row(name)


def test_a_change_that_is_faster() -> None:
    records = base()
    records.check("fused", applied={"fused": "AdamW"})
    records.timed("base", *BASE_TIMES, peak_bytes=100)
    records.timed("fused", *FAST, first=34.0, peak_bytes=130)
    row = Evaluation(records, candidates("fused", fused=0.2)).row("fused")
    assert (row.verdict, row.reason, row.training, row.runs) == ("faster", "", "equal", 5)
    assert row.speedup == pytest.approx(1.5, rel=0.01)
    assert (row.first_steps_ns, row.pays_back, row.peak_bytes) == (34_000_000, 2 + 6, 130)
    assert (row.bound, row.promised) == (pytest.approx(0.2), pytest.approx(1.25))
    assert (row.applied, row.code, row.profile) == ({"fused": "AdamW"}, "apply(fused)", "fused.check1.sqlite")


def test_the_first_run_of_a_change_compiles() -> None:
    records = base()
    records.check("compile", first=50.0)
    records.timed("base", 12.0, 12.0)
    records.timed("compile", 8.0, 8.0, first=14.0)
    row = Evaluation(records, candidates("compile")).row("compile")
    assert (row.first_steps_ns, row.pays_back) == (50_000_000, 2 + 10)


def test_a_change_that_changes_training_is_never_recommended() -> None:
    records = base()
    records.check("bf16", losses=[2.0, 1.8, 1.1, 1.0])
    records.timed("base", *BASE_TIMES)
    records.timed("bf16", *FAST)
    row = Evaluation(records, candidates("bf16")).row("bf16")
    assert (row.verdict, row.training) == ("other training", "changed")
    assert row.reason.startswith("changes training from step 3 on")
    assert row.speedup is not None


def test_a_change_that_draws_other_random_numbers() -> None:
    records = base()
    records.check("workers", losses=[2.0, 1.8, 1.1, 1.0])
    random = change("workers", other_random="workers draw others")
    row = Evaluation(records, {"workers": Candidate(random, None)}).row("workers")
    assert (row.training, row.training_text) == ("unknown", "workers draw others, and losses differ by 24%")


@pytest.mark.parametrize(("draws", "training"), [(True, "unknown"), (False, "changed")])
def test_other_random_numbers_of_a_model_count_if_its_steps_draw_some(draws: bool, training: str) -> None:
    records = Records()
    records.check(draws=draws)
    records.check("jit", losses=[2.0, 1.8, 1.1, 1.0], draws=draws)
    jit = change("jit", other_random_in_model="XLA draws others")
    assert Evaluation(records, {"jit": Candidate(jit, None)}).row("jit").training == training


def test_a_change_that_diverges_or_fails() -> None:
    records = base()
    records.check("fp16", losses=[2.0, None])
    records.check("compile", losses=[], problem="BackendCompilerFailed: no compiler")
    evaluation = Evaluation(records, candidates("fp16", "compile"))
    fp16, compiled = evaluation.row("fp16"), evaluation.row("compile")
    assert (fp16.verdict, fp16.reason) == ("other training", "loss is NaN or infinite from step 2 on")
    assert (compiled.verdict, compiled.reason) == ("failed", "BackendCompilerFailed: no compiler")


@pytest.mark.parametrize(("graphs", "verdict"), [(2, "faster"), (3, "unsteady")])
def test_a_change_that_compiles_again_and_again(graphs: int, verdict: str) -> None:
    row = measured(recompiled=graphs)[1]
    assert row.verdict == verdict
    assert row.notes == [f"{graphs} graphs were compiled in measured steps"]
    if verdict == "unsteady":
        assert row.reason == "it compiles again and again: 3 graphs in 12 steps"


def test_a_change_that_fails_in_a_timed_run() -> None:
    records, _ = measured()
    records.append(records[-1].__class__(**{**_fields(records[-1]), "problem": "out of memory"}))
    row = Evaluation(records, candidates("fused")).row("fused")
    assert (row.verdict, row.reason) == ("failed", "out of memory")


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}  # type: ignore[attr-defined]


def test_a_change_that_was_only_checked() -> None:
    records = base()
    records.check("fused")
    row = Evaluation(records, candidates("fused")).row("fused")
    assert (row.verdict, row.speedup, row.training) == ("not measured", None, "equal")


def test_one_round_recommends_nothing() -> None:
    records = base()
    records.check("fused")
    records.timed("base", 12.0)
    records.timed("fused", 8.0)
    row = Evaluation(records, candidates("fused")).row("fused")
    assert (row.verdict, row.reason, row.speedup) == ("undecided", "one round has no interval", pytest.approx(1.5))


@pytest.mark.parametrize(("spread", "verdict"), [(0.2, "same speed"), (0.8, "undecided"), (6.0, "undecided")])
def test_an_interval_that_has_1(spread: float, verdict: str) -> None:
    records = base()
    records.check("fused")
    for name, late in (("base", 0.0), ("fused", 0.01)):
        records.timed(name, *(12.0 + late + spread * place / 4 for place in range(5)))
    row = Evaluation(records, candidates("fused")).row("fused")
    assert row.verdict == verdict
    assert ("more --repeat" in row.reason) is (verdict == "undecided")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.953, 1.049, True), (0.952, 1.049, False), (0.953, 1.051, False), (1.001, 1.01, False), (None, None, False)],
)
def test_the_same_speed(low: float | None, high: float | None, expected: bool) -> None:
    assert Speedup(12.0, 12.0, 1.0, low, high, 5).is_same is expected


def test_the_order_of_changes() -> None:
    records = base()
    names = ("slow", "fused", "compile", "failed", "bf16")
    for name in names:
        records.check(name, losses=[2.0, 1.0] if name == "bf16" else [2.0, 1.8, 1.5, 1.3])
    records.check("failed", problem="no GPU")
    records.timed("base", *BASE_TIMES)
    for name, factor in (("slow", 2.0), ("fused", 0.9), ("compile", 0.5), ("bf16", 0.1)):
        records.timed(name, *(time * factor for time in BASE_TIMES))
    rows = Evaluation(records, candidates(*names)).rows()
    assert [row.name for row in rows] == ["compile", "fused", "slow", "bf16", "failed"]
    assert [row.verdict for row in rows] == ["faster", "faster", "slower", "other training", "failed"]


def test_combinations_are_compared_with_the_runs_that_took_turns_with_them() -> None:
    records, _ = measured("compile")
    drifted = [2 * time for time in BASE_TIMES]
    records.timed("base", *drifted, stage=1)
    records.timed("compile", *(2 * time for time in FAST), stage=1)
    records.check("compile+fused")
    records.timed("compile+fused", *FAST, stage=1)
    evaluation = Evaluation(records, candidates("compile", "fused", compile=0.5, fused=0.2))
    row = evaluation.row("compile+fused")
    assert (row.speedup, row.before_ns) == (pytest.approx(3.0, rel=0.01), pytest.approx(24e6))
    gained = evaluation.speedup("compile+fused", "compile")
    assert gained is not None
    assert gained.factor == pytest.approx(2.0, rel=0.01)
    assert evaluation.row("compile").speedup == pytest.approx(1.5, rel=0.01)
    assert (row.bound, row.code) == (pytest.approx(0.6), "apply(compile)\napply(fused)")


def test_changes_together_may_do_what_each_may() -> None:
    changes = [change("a", "same bits", 0.0), change("b", "another algorithm", 0.02), change("c", tolerance=0.01)]
    both = together(changes)
    assert (both.name, both.numbers, both.tolerance) == ("a+b+c", "another algorithm", pytest.approx(0.03))
    workers = change("w", other_random="workers draw others")
    assert (both.other_random, together([changes[0], workers]).other_random) == ("", "workers draw others")
    assert together([changes[0], changes[2]]).numbers == "rounding"


def test_the_runs_without_changes() -> None:
    records, _ = measured()
    evaluation = Evaluation(records, candidates("fused"))
    assert evaluation.base().before_ns == pytest.approx(12e6)
    assert evaluation.repeats() == "two runs have the same losses"
    assert Evaluation(Records(), {}).repeats() == ""
    assert Evaluation(Records(), {}).base().before_ns is None
