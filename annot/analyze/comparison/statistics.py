"""Statistics of small samples, on sequences of numbers: shifts, t distribution, moderated variances, drift.

Sources: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods (2014); Smyth, Linear models and empirical
Bayes methods (Stat. Appl. Genet. Mol. Biol. 3, 2004); Benjamini and Hochberg (J. R. Stat. Soc. B 57, 1995); Geyer,
Practical Markov chain Monte Carlo (Stat. Sci. 7, 1992); Press et al., Numerical Recipes (2007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist, fmean, median
from typing import Final

_PRECISION: Final = 1e-14
_TINY: Final = 1e-300


def shift(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the Hodges–Lehmann estimate of b minus a: the median of all differences.

    Example:
        >>> shift([1.0, 2.0, 3.0], [2.0, 3.0, 400.0])
        1.0
    """
    return median(_differences(a, b))


def shift_interval(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, float, float] | None:
    """Return the exact interval of the shift from the Mann–Whitney test, and its error level.

    The interval is the narrowest between two of the sorted differences whose error level is at most `level`. It holds
    for samples of any distribution. None: the samples are too small for the level.

    Example:
        >>> low, high, attained = shift_interval([1, 2, 3, 4, 5], [12, 13, 14, 15, 16], 0.01)
        >>> (low, high, round(attained, 4))
        (7, 15, 0.0079)
    """
    counts = _rank_sums(len(a), len(b))
    tails = [2 * below / sum(counts) for below in accumulate(counts)]
    outside = sum(tail <= level for tail in tails[: len(tails) // 2])
    if not outside:
        return None
    differences = sorted(_differences(a, b))
    return differences[outside - 1], differences[-outside], tails[outside - 1]


def _differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [second - first for first in a for second in b]


@lru_cache(maxsize=64)
def _rank_sums(a: int, b: int) -> tuple[int, ...]:
    """Return how many orders of two samples have each value of the Mann–Whitney statistic.

    These are the coefficients of the Gaussian binomial coefficient, a product of (1 - q^(b+i)) / (1 - q^i).
    """
    counts = [1] + [0] * (a * b)
    for factor in range(1, a + 1):
        for place in range(a * b, b + factor - 1, -1):
            counts[place] -= counts[place - b - factor]
        for place in range(factor, a * b + 1):
            counts[place] += counts[place - factor]
    return tuple(counts)


def t_p_value(t: float, freedom: float) -> float:
    """Return the probability of a larger absolute value in a t distribution; infinite `freedom`: the normal one.

    Example:
        >>> round(t_p_value(2.306, 8), 4)
        0.05
    """
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    if t * t < 1:  # 1 - x has more digits than x
        return 1 - _incomplete_beta(t * t / (freedom + t * t), 0.5, freedom / 2)
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(level: float, freedom: float) -> float:
    """Return the value that a t distribution exceeds in absolute value with this probability, by bisection.

    Example:
        >>> round(t_quantile(0.05, 8), 3)
        2.306
    """
    if math.isinf(freedom):
        return NormalDist().inv_cdf(1 - level / 2)
    low, high = 0.0, 1.0
    while t_p_value(high, freedom) > level:
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_p_value(middle, freedom) > level else (low, middle)
    return high


def f_p_value(ratio: float, freedom: float, other: float) -> float:
    """Return the probability of a larger ratio of two variances of the same size, with their degrees of freedom.

    Example:
        >>> round(f_p_value(3.84, 4, 8), 3)
        0.05
    """
    return _incomplete_beta(other / (other + freedom * ratio), other / 2, freedom / 2)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function from its continued fraction (Numerical Recipes 6.4)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x > (a + 1) / (a + b + 2):
        return 1 - math.exp(scale) * _beta_fraction(1 - x, b, a) / b
    return math.exp(scale) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method."""
    upper, lower = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower, upper = 1 / _nonzero(1 + term * lower), _nonzero(1 + term / upper)
            value *= lower * upper
        if abs(lower * upper - 1) < _PRECISION:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def digamma(x: float) -> float:
    """Return the derivative of the logarithm of the gamma function, for x above 0.

    Example:
        >>> round(digamma(1.0), 6)
        -0.577216
    """
    result = 0.0
    while x < 10:
        result, x = result - 1 / x, x + 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return result + math.log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    """Return the derivative of `digamma`, for x above 0.

    Example:
        >>> round(trigamma(1.0), 6)
        1.644934
    """
    result = 0.0
    while x < 10:
        result, x = result + 1 / (x * x), x + 1
    square = 1 / (x * x)
    series = 1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66)))
    return result + 1 / x + square / 2 + square / x * series


def _inverse_trigamma(y: float) -> float:
    """Return the x whose `trigamma` is y, by Newton's method on 1 / trigamma (Smyth 2004, appendix)."""
    if y > 1e7:
        return 1 / math.sqrt(y)
    if y < 1e-6:
        return 1 / y
    x = 0.5 + 1 / y
    for _ in range(50):
        value = trigamma(x)
        slope = (trigamma(x * (1 + 1e-6)) - trigamma(x * (1 - 1e-6))) / (2e-6 * x)
        step = value * (1 - value / y) / slope
        x += step
        if -step < 1e-8 * x:
            break
    return x


def prior_variance(variances: Sequence[float], freedom: float) -> tuple[float, float]:
    """Return the variance that many small samples have in common, and its degrees of freedom.

    The prior is estimated from the moments of the logarithms (empirical Bayes; Smyth 2004). A sample with variance v
    then has the moderated variance (prior freedom * prior + freedom * v) / (prior freedom + freedom). An infinite
    number of degrees of freedom means that the variances differ by no more than chance. Variances of 0 are left out.

    Args:
        variances: the variances of samples.
        freedom: their degrees of freedom.

    Example:
        >>> prior_variance([1.0, 1.0, 1.0], 4)
        (1.0, inf)
    """
    logarithms = [math.log(variance) for variance in variances if variance > 0]
    if not logarithms:
        return 0.0, 0.0
    mean, count = fmean(logarithms) - digamma(freedom / 2) + math.log(freedom / 2), len(logarithms)
    if count < 2:
        return math.exp(mean), 0.0
    spread = sum((value - fmean(logarithms)) ** 2 for value in logarithms) / (count - 1) - trigamma(freedom / 2)
    if spread <= 0:
        return fmean(variances), math.inf
    prior_freedom = 2 * _inverse_trigamma(spread)
    return math.exp(mean + digamma(prior_freedom / 2) - math.log(prior_freedom / 2)), prior_freedom


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Benjamini and Hochberg: the level at which each is the last to be significant.

    Example:
        >>> adjusted([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.03]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True)
    result, least = [1.0] * len(p_values), 1.0
    for behind, place in enumerate(order):
        least = min(least, p_values[place] * len(p_values) / (len(p_values) - behind))
        result[place] = least
    return result


def effective_number(values: Sequence[float]) -> float:
    """Return how many independent values have a mean as precise as these in a row, at most their number.

    Autocorrelations are added in pairs as long as they decrease and are positive (Geyer's initial monotone sequence).

    Example:
        >>> effective_number([1, 1, 1, 1, 5, 5, 5, 5]) < 4
        True
    """
    count, mean = len(values), fmean(values)
    residuals = [value - mean for value in values]
    variance = math.fsum(value * value for value in residuals)
    if not variance:
        return float(count)
    total, last = 0.0, math.inf
    for lag in range(0, count - 1, 2):
        both = sum(
            math.fsum(map(float.__mul__, residuals[behind:], residuals[: count - behind])) for behind in (lag, lag + 1)
        )
        last = min(last, both / variance)
        if last <= 0:
            break
        total += last
    return min(float(count), count / max(2 * total - 1, 1 / count))


def drift(values: Sequence[float]) -> tuple[float, float]:
    """Return the Theil–Sen slope of values in a row, and the p-value of the Mann–Kendall test.

    The test uses the effective number of values: autocorrelated values have trends by chance (Yue and Wang 2004).

    Example:
        >>> slope, p = drift([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0])
        >>> (slope, p < 0.01)
        (1.0, True)
    """
    pairs = [(after - before, right - left) for left, before in enumerate(values)
             for right, after in enumerate(values[left + 1 :], left + 1)]  # fmt: skip
    slope = median(rise / run for rise, run in pairs)
    score = sum((rise > 0) - (rise < 0) for rise, _ in pairs)
    effective = effective_number([value - slope * place for place, value in enumerate(values)])
    return slope, t_p_value(score / math.sqrt(_score_variance(values) * len(values) / effective), math.inf)


def _score_variance(values: Sequence[float]) -> float:
    """Return the variance of Kendall's score of values without a trend, corrected for equal values."""
    every = [len(values), *(-list(values).count(value) for value in set(values))]
    return max(sum(math.copysign(1, n) * abs(n) * (abs(n) - 1) * (2 * abs(n) + 5) for n in every) / 18, 1.0)
