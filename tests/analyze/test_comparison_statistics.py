"""Statistics of small samples against scipy, and against simulations."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot.analyze.comparison import statistics

numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))
samples = st.lists(numbers, min_size=1, max_size=8)


@settings(max_examples=examples(100), deadline=None)
@given(samples, samples, st.floats(0.001, 0.5))
def test_the_interval_has_the_shifts_that_the_rank_test_accepts(a: list[float], b: list[float], level: float) -> None:
    """A shift just inside the interval has a p-value of Mann and Whitney above the attained level, one outside not."""
    differences = sorted(second - first for first in a for second in b)
    assume(len(set(differences)) == len(differences) and min(np.diff(differences), default=1) > 0.01)
    assert statistics.shift(a, b) == pytest.approx(np.median(differences))
    interval = statistics.shift_interval(a, b, level)
    least = 2 / math.comb(len(a) + len(b), len(a))
    assert (interval is None) == (least > level)
    if interval is None:
        return
    low, high, attained = interval
    assert attained <= level
    for shift, is_inside in ((low - 1e-3, False), (low + 1e-3, True), (high - 1e-3, True), (high + 1e-3, False)):
        shifted = [second - shift for second in b]
        p = scipy.stats.mannwhitneyu(a, shifted, method="exact").pvalue
        assert (p > attained * (1 + 1e-9)) == is_inside or low == high
    assert attained == pytest.approx(
        scipy.stats.mannwhitneyu(a, [second - low + 1e-3 for second in b], method="exact").pvalue
    )


def test_orders_of_two_samples() -> None:
    """The numbers of orders with each statistic are those of counting."""
    for a, b in ((1, 1), (2, 3), (4, 2), (3, 4)):
        counts = [0] * (a * b + 1)
        for places in combinations(range(a + b), a):
            counts[sum(places) - a * (a - 1) // 2] += 1
        assert statistics._rank_sums(a, b) == tuple(counts)


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(-60, 60), st.floats(0.5, 1e4))
def test_the_t_distribution(t: float, freedom: float) -> None:
    expected = 2 * scipy.stats.t.sf(abs(t), freedom)
    assert statistics.t_p_value(t, freedom) == pytest.approx(expected, rel=1e-8, abs=1e-290)


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(1e-8, 0.99), st.one_of(st.floats(1, 1e4), st.just(math.inf)))
def test_quantiles_of_the_t_distribution(level: float, freedom: float) -> None:
    assert statistics.t_quantile(level, freedom) == pytest.approx(scipy.stats.t.isf(level / 2, freedom), rel=1e-7)


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(0, 1e3), st.floats(0.5, 1e4), st.floats(0.5, 1e4))
def test_ratios_of_variances(ratio: float, freedom: float, other: float) -> None:
    expected = scipy.stats.f.sf(ratio, freedom, other)
    assert statistics.f_p_value(ratio, freedom, other) == pytest.approx(expected, rel=1e-7, abs=1e-200)


def test_the_normal_distribution_is_that_of_many_degrees_of_freedom() -> None:
    assert statistics.t_p_value(2.5, math.inf) == pytest.approx(2 * scipy.stats.norm.sf(2.5))


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(1e-3, 1e6))
def test_derivatives_of_the_gamma_function(x: float) -> None:
    assert statistics.digamma(x) == pytest.approx(float(scipy.special.digamma(x)), rel=1e-10, abs=1e-12)
    assert statistics.trigamma(x) == pytest.approx(float(scipy.special.polygamma(1, x)), rel=1e-10)
    assert statistics._inverse_trigamma(statistics.trigamma(x)) == pytest.approx(x, rel=1e-5)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_adjusted_p_values(p_values: list[float]) -> None:
    assert statistics.adjusted(p_values) == pytest.approx(list(scipy.stats.false_discovery_control(p_values)))


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize(("freedom", "prior", "prior_freedom"), [(8, 2.0, 4.0), (4, 0.5, 20.0), (2, 3.0, 8.0)])
def test_the_prior_of_variances(freedom: int, prior: float, prior_freedom: float) -> None:
    """Variances drawn from a prior have this prior (Smyth 2004); equal ones have infinite degrees of freedom."""
    random = np.random.default_rng(0)
    variances = prior * prior_freedom / random.chisquare(prior_freedom, 20_000)
    drawn = variances * random.chisquare(freedom, 20_000) / freedom
    estimated = statistics.prior_variance(drawn.tolist(), freedom)
    assert estimated == (pytest.approx(prior, rel=0.05), pytest.approx(prior_freedom, rel=0.2))
    assert statistics.prior_variance([4.0] * 5, freedom) == (4.0, math.inf)
    assert statistics.prior_variance([0.0, 0.0], freedom) == (0.0, 0.0)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_dependent_values_count_less(correlation: float) -> None:
    """Of an autoregressive series, (1 - r) / (1 + r) of the values are independent."""
    random = np.random.default_rng(1)
    values = [0.0]
    for noise in random.normal(size=20_000):
        values.append(correlation * values[-1] + noise)
    expected = (1 - correlation) / (1 + correlation)
    assert statistics.effective_number(values) / len(values) == pytest.approx(expected, rel=0.15)
    assert statistics.effective_number([3.0, 3.0, 3.0]) == 3


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(-5, 5).map(float), min_size=4, max_size=25))
def test_drift(values: list[float]) -> None:
    """Slope and p-value are those of scipy, whose test assumes independent values."""
    slope, p = statistics.drift(values)
    assert slope == pytest.approx(scipy.stats.theilslopes(values)[0])
    residuals = [value - slope * place for place, value in enumerate(values)]
    if statistics.effective_number(residuals) == len(values) and len(set(values)) > 1:
        expected = scipy.stats.kendalltau(range(len(values)), values, method="asymptotic").pvalue
        assert p == pytest.approx(expected)
    assert 0 <= p <= 1
