"""Times of steps and speedups of measured runs."""

from __future__ import annotations

from random import Random

import pytest
from measured_results import result

from annot.live.request import Result
from annot.trial import speed


def runs(*times: float) -> list[Result]:
    return [result([time] * 12) for time in times]


def test_a_speedup_and_its_interval() -> None:
    times = speed.speedup(runs(12.0, 12.1, 11.9, 12.0, 12.2), runs(8.0, 8.1, 7.9, 8.0, 8.2), 1.0)
    assert times is not None
    assert times.factor == pytest.approx(1.5, rel=0.01)
    assert times.low is not None
    assert times.high is not None
    assert times.low < 1.5 < times.high
    assert (times.is_faster, times.is_slower, times.runs) == (True, False, 5)
    assert (times.before_ns, times.after_ns) == (12e6, pytest.approx(12e6 / times.factor))
    slower = speed.speedup(runs(8.0, 8.1, 7.9, 8.0, 8.2), runs(12.0, 12.1, 11.9, 12.0, 12.2), 1.0)
    assert slower is not None
    assert (slower.is_faster, slower.is_slower) == (False, True)


def test_runs_that_do_not_separate() -> None:
    times = speed.speedup(runs(12.0, 10.0, 11.0), runs(11.0, 9.5, 10.1), 1.0)
    assert times is not None
    assert times.factor > 1.05
    assert (times.is_faster, times.is_slower) == (False, False)


def test_one_round_has_no_interval() -> None:
    times = speed.speedup(runs(12.0), runs(6.0), 1.0)
    assert times is not None
    assert (times.factor, times.low, times.is_faster) == (pytest.approx(2.0), None, False)
    assert speed.speedup([], runs(6.0), 1.0) is None


def test_the_time_of_a_step_on_a_gpu_is_that_of_the_window() -> None:
    run = result([1.0] * 6 + [5.0] * 6, device="cuda", window_ns=120_000_000)
    assert [speed.step_ns(run, share) for share in (1.0, 0.25)] == [10e6, 10e6]


def test_the_fastest_blocks_of_a_run_on_a_cpu() -> None:
    run = result([1.0, 3.0] * 4 + [9.0, 9.0] * 2)
    assert speed.step_ns(run, 0.5) == 2e6  # steps of a block, which take turns, stay together
    assert speed.step_ns(run, 1.0) == sum(run.step_ns[2:]) / 12
    ended = result([1.0, 3.0] * 3, window_ns=None)
    assert speed.step_ns(ended, 1.0) == 2e6


def test_the_steadiest_share() -> None:
    random = Random(1)
    calm = [result([10.0] * 12) for _ in range(3)]
    busy = [result([10.0 + (random.random() * 9 if step >= 6 else 0) for step in range(12)]) for _ in range(3)]
    assert speed.steadiest([calm]) == 1.0
    assert speed.steadiest([busy]) < 1.0
    assert speed.steadiest([busy[:1]]) == 1.0
    assert {speed.step_ns(run, speed.steadiest([busy])) for run in busy} == {10e6}


def test_when_slower_first_steps_are_paid_back() -> None:
    before, after = runs(10.0, 10.0), [result([8.0] * 12, first=first) for first in (30.0, 90.0)]
    times = speed.speedup(before, after, 1.0)
    assert times is not None
    # The first 2 steps take 80 ms more, and each later one 2 ms less.
    assert speed.pays_back([(before, after)], times) == 2 + 40
    assert speed.pays_back([(before, runs(8.0))], times) == 0
    # Under the profiler, they take 200 ms more than without the change: this run compiles.
    profiled = runs(10.0), [result([8.0] * 4, first=210.0)]
    assert speed.pays_back([(before, after), profiled, ([], [])], times) == 2 + 100
    assert speed.pays_back([(before, runs(8.0)), (after, after)], times) == 2 + 15
    slower = speed.speedup(after, before, 1.0)
    assert slower is not None
    assert speed.pays_back([(after, before)], slower) is None


def test_times_agree_with_the_speedup() -> None:
    """A run with a pause makes the mean of the faster side larger than that of the other."""
    before, after = runs(10.0, 10.2, 10.1, 10.3), [*runs(9.0, 9.1, 9.2), result([40.0] * 12, first=90.0)]
    times = speed.speedup(before, after, 1.0)
    assert times is not None
    assert times.factor > 1
    assert times.after_ns == pytest.approx(times.before_ns / times.factor)
    steps = speed.pays_back([(before, after)], times)
    assert steps is not None
    assert steps > 2


@pytest.mark.parametrize(("slow", "expected"), [(11.0, False), (16.0, True)])
def test_unequal_steps(slow: float, expected: bool) -> None:
    uneven = [result(([10.0] * 4 + [slow] * 4) + [10.0] * 2 + [slow] * 2)]
    assert speed.unequal(runs(10.0), uneven) is expected
    assert not speed.unequal(uneven, uneven)
    assert not speed.unequal(runs(10.0), [result(([10.0] * 4 + [slow] * 4) + [10.0] * 2 + [slow] * 2, device="cuda")])
    assert not speed.unequal(runs(10.0), [result([10.0, slow] * 6)])
    assert not speed.unequal(runs(10.0), [result([10.0, slow, 10.0])])
