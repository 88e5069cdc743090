"""The plan of a trial within a budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_results import result

from annot.live.request import Result
from annot.trial.plan import Cost, Plan, another_round, in_words, parse_seconds, plan, steps_within

NAMES = ["compile", "bf16", "fused"]


def planned(names: list[str] = NAMES, **values: Any) -> Plan:
    options: dict[str, Any] = {"steps": 30, "least_steps": None, "rounds": 5, "budget": 600.0, "spent": 4.0}
    cost = values.pop("cost", Cost(start=1.0, step=0.1))
    return plan(names, cost, **{**options, **values})


def test_a_large_budget_leaves_everything() -> None:
    assert planned() == Plan(tuple(NAMES), (), 5, 30, 4.0 + 4.0 * (2 + 3 + 5 * 4))
    assert planned(budget=float("inf"), rounds=40).rounds == 40


def test_a_small_budget_leaves_fewer_rounds_then_steps_then_changes() -> None:
    assert planned(budget=103.9).rounds == 4  # 5 rounds take 104 s
    assert planned(budget=104.0).rounds == 5
    fewer = planned(budget=60.0)  # 3 rounds of 30 steps take 72 s
    assert (fewer.rounds, fewer.steps, fewer.left_out) == (4, 15, ())
    tiny = planned(budget=25.0)
    assert (tiny.rounds, tiny.steps, tiny.names, tiny.left_out) == (4, 8, ("compile",), ("bf16", "fused"))
    assert planned(budget=1.0).names == ("compile",)


def test_the_steps_that_the_user_asks_for_stay() -> None:
    exact = planned(budget=30.0, least_steps=30)
    assert (exact.steps, exact.names) == (30, ("compile",))
    assert planned(budget=1.0, rounds=1).rounds == 1


@given(
    st.integers(1, 8),
    st.integers(1, 60),
    st.integers(1, 9),
    st.floats(1.0, 500.0),
    st.floats(0.0, 3.0),
    st.floats(0, 9),
)
def test_a_plan_fits_its_budget_or_is_the_smallest(
    count: int, steps: int, rounds: int, budget: float, step: float, start: float
) -> None:
    names = [f"c{number}" for number in range(count)]
    made = planned(names, steps=steps, rounds=rounds, budget=budget, cost=Cost(start, step), spent=0.0)
    assert [*made.names, *made.left_out] == names
    assert 1 <= made.steps <= steps
    assert 1 <= made.rounds <= rounds
    if made.seconds > budget:
        assert (len(made.names), made.rounds, made.steps) == (1, min(3, rounds), min(8, steps))
    elif made.left_out:
        one_more = Cost(start, step).run(made.steps) * (3 + len(made.names) + min(3, rounds) * (2 + len(made.names)))
        assert one_more > budget


def test_no_changes() -> None:
    assert planned([]).names == ()


@pytest.mark.parametrize(
    ("done", "spent", "expected"), [(0, 700, True), (1, 700, True), (2, 700, False), (2, 590, True), (2, 591, False)]
)
def test_another_round(done: int, spent: float, expected: bool) -> None:
    assert another_round(done, 5, last=10.0, budget=600.0, spent=spent) is expected
    assert not another_round(5, 5, last=1.0, budget=600.0, spent=0.0)


def test_the_steps_of_a_short_program() -> None:
    assert steps_within(result([1.0] * 7), warmup=2, steps=30) == 7
    assert steps_within(result([1.0] * 40), warmup=2, steps=30) == 30
    assert steps_within(Result(step_ns=[1]), warmup=2, steps=30) == 0


def test_the_cost_of_a_run() -> None:
    cost = Cost.of(result([500.0] * 4), seconds=5.0)
    assert (cost.start, cost.step, cost.run(10)) == (3.0, 0.5, 8.0)
    assert Cost.of(Result(), 5.0).run(10) == 5.0


def test_durations() -> None:
    assert [parse_seconds(text) for text in ("90", "90s", "10m", "2h")] == [90, 90, 600, 7200]
    for text in ("", "m", "ten", "10d"):
        with pytest.raises(ValueError, match="float"):
            parse_seconds(text)
    assert in_words(0.2) == "1 s"
