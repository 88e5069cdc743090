"""Decisions of a bisection: their error probability by simulation, and their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from annot.bisect.evidence import Spread, expected_pairs, likeness, log_ratio, smallest_size

Noise = Callable[[np.random.Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]
NOISES: dict[str, Noise] = {
    "normal": lambda random, count: random.normal(0, 1, count),
    "heavy tails": lambda random, count: random.standard_t(3, count) / math.sqrt(3),
    "hiccups": lambda random, count: (
        random.normal(0, 1, count)
        + (random.random(count) < 0.2) * random.choice([-1.0, 1.0], count) * random.exponential(5, count)
    ),
    "variances": lambda random, count: random.normal(0, 1, count) * np.exp(random.normal(0, 0.5, count)),
}
ERROR = 0.002


def decide(random: np.random.Generator, noise: Noise, spread: float, change: float) -> tuple[str | None, int]:
    """Decide about a commit after five pairs of a bad one with the change 1, and return the number of pairs."""
    reference = (1 + spread * noise(random, 5)).tolist()
    size = smallest_size(reference)
    if size <= 0:
        return None, 0
    pairs = (change + spread * noise(random, 40)).tolist()
    for count in range(2, 41):
        if decision := likeness(pairs[:count], size, Spread.of(reference), ERROR):
            return decision, count
    return None, 40


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_decisions_are_rarely_wrong(noise: str, spread: float) -> None:
    """Also for other noise than the normal one of the model."""
    random = np.random.default_rng(7)
    for change, wrong in ((0.0, "bad"), (1.0, "good")):
        decisions = [decide(random, NOISES[noise], spread, change)[0] for _ in range(1000)]
        assert decisions.count(wrong) <= 7  # 1,000 times 0.002, and what chance adds in 1 of 1,000 cases
        assert decisions.count(None) <= (300 if noise == "hiccups" else 150)


def test_clear_changes_need_two_pairs() -> None:
    random = np.random.default_rng(8)
    counts = [decide(random, NOISES["normal"], 0.1, change)[1] for change in (0.0, 1.0) for _ in range(200)]
    assert np.mean(counts) < 2.1


def test_a_change_between_both_is_not_decided() -> None:
    """A commit with half of the change is like neither."""
    spread = Spread(squares=0.04, freedom=4)
    assert likeness([0.5] * 40, 1.0, spread, ERROR) is None
    assert likeness([0.45, 0.55] * 20, 1.0, spread, ERROR) is None
    assert (likeness([0.1] * 5, 1.0, spread, ERROR), likeness([0.9] * 5, 1.0, spread, ERROR)) == ("good", "bad")
    assert (likeness([-3.0] * 6, 1.0, spread, ERROR), likeness([8.0] * 6, 1.0, spread, ERROR)) == ("good", "bad")


def test_one_pair_that_differs_decides_nothing() -> None:
    spread = Spread(squares=0.04, freedom=4)
    pairs = [0.0, 0.1, -0.1]
    assert likeness(pairs, 1.0, spread, ERROR) == "good"
    assert likeness([*pairs, 30.0], 1.0, spread, ERROR) is None


def test_the_ratio_integrates_the_variance() -> None:
    """The closed form equals numerical integration over a scaled inverse chi-squared variance."""
    differences, size, spread = [0.2, 0.5, 0.1], 0.4, Spread(squares=0.3, freedom=4)

    def likelihood(mean: float) -> float:
        precision = np.linspace(1e-6, 200, 400_001)
        squares = spread.squares + sum((value - mean) ** 2 for value in differences)
        density = precision ** ((spread.freedom + len(differences)) / 2 - 1) * np.exp(-precision * squares / 2)
        return float(density.sum())

    expected = math.log(likelihood(size) / likelihood(0.0))
    assert log_ratio(differences, size, spread) == pytest.approx(expected, rel=1e-4)


def test_times_without_spread_decide() -> None:
    nothing = Spread.of([0.3, 0.3])
    assert likeness([0.0, 0.0], 0.3, nothing, ERROR) == "good"
    assert likeness([0.3, 0.3], 0.3, nothing, ERROR) == "bad"
    assert likeness([0.15, 0.15], 0.3, nothing, ERROR) is None


def test_expected_pairs_follow_noise_and_size() -> None:
    assert expected_pairs(1.0, Spread(0.0, 4), ERROR) == 1
    few, many = (expected_pairs(size, Spread(0.4, 4), ERROR) for size in (0.6, 0.3))
    assert many == pytest.approx(4 * few, abs=3)
