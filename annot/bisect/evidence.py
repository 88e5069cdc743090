"""Sequential decision whether a commit is like the good or like the bad one, with a stated probability of an error.

The data of a commit are differences d of logarithms of times between paired runs. They are normal with the mean 0 (like
good) or the size of the change (like bad), and with a variance about which earlier pairs tell s² with f degrees of
freedom. Integrated over the variance, the ratio of both likelihoods of n differences is

    ((f s² + Σ d²) / (f s² + Σ (d - size)²)) ** ((f + n) / 2)

A pair that differs from the others makes both sums large, and so decides nothing. Differences beyond -size and 2 size
count as these: a commit that is much slower than the bad one is like the bad one. Wald's sequential probability ratio
test measures pairs until the ratio is above 1 / error or below error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

Likeness: TypeAlias = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of differences of pairs: the sum of squared deviations from their mean, and its degrees of freedom.

    Example:
        >>> Spread.of([0.1, 0.3]) + Spread.of([0.1])
        Spread(squares=0.02, freedom=1)
    """

    squares: float
    freedom: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Spread:
        """Return the spread of differences of one comparison."""
        mean = fmean(differences)
        return cls(math.fsum((value - mean) ** 2 for value in differences), len(differences) - 1)

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.squares + other.squares, self.freedom + other.freedom)

    @property
    def variance(self) -> float:
        """Variance of a difference; 0 without degrees of freedom."""
        return self.squares / self.freedom if self.freedom else 0.0


def smallest_size(differences: Sequence[float]) -> float:
    """Return the size of a change that decisions use: the mean of the differences less its standard error.

    A size below the true one needs more pairs, but keeps the probability of errors. A size above it does not.

    Example:
        >>> round(smallest_size([0.28, 0.32, 0.3, 0.3]), 3)
        0.292
    """
    spread = Spread.of(differences)
    return fmean(differences) - math.sqrt(spread.variance / len(differences))


def log_ratio(differences: Sequence[float], size: float, spread: Spread) -> float:
    """Return the logarithm of the likelihood ratio of "like bad" over "like good".

    Args:
        differences: logarithms of the ratios of times, of pairs of runs of a commit and the good one.
        size: difference of the bad commit.
        spread: spread of differences of other commits.

    Example:
        >>> log_ratio([0.29, 0.31], size=0.3, spread=Spread(squares=0.004, freedom=4)) > 10
        True
    """
    values = [min(max(value, -size), 2 * size) for value in differences]
    like_good = spread.squares + math.fsum(value**2 for value in values)
    like_bad = spread.squares + math.fsum((value - size) ** 2 for value in values)
    tiny = size**2 * 1e-9  # times without any spread, such as counted ones
    return (spread.freedom + len(differences)) / 2 * math.log((like_good + tiny) / (like_bad + tiny))


def likeness(differences: Sequence[float], size: float, spread: Spread, error: float) -> Likeness | None:
    """Return which of both commits a commit is like; None: more pairs are needed.

    Args:
        differences, size, spread: see `log_ratio`.
        error: probability of a wrong decision, such as 0.002.

    Example:
        >>> likeness([0.01, -0.02], size=0.3, spread=Spread(0.004, 4), error=0.002)
        'good'
    """
    ratio = log_ratio(differences, size, spread)
    if abs(ratio) < -math.log(error):
        return None
    return "bad" if ratio > 0 else "good"


def expected_pairs(size: float, spread: Spread, error: float) -> int:
    """Return about how many pairs a decision needs, from the mean of the log ratio per pair.

    Example:
        >>> expected_pairs(0.3, Spread(squares=0.09, freedom=4), error=0.002)
        4
    """
    return max(1, math.ceil(-2 * math.log(error) * spread.variance / size**2))
