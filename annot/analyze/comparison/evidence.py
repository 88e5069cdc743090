"""What the samples of two sides say about the changes of rows: estimates, intervals, p-values.

All is done on logarithms. Other programs on the machine, its clock and its temperature slow all layers of a run alike.
The change of a layer therefore has two estimates: as measured, and relative to the other layers of each run. The
p-value of a layer is that of the relative change, from a moderated t statistic: few runs say little about the variance
of a layer, so that its variance is averaged with that of all layers.

With one run on each side, samples are blocks of steps, and the variance between runs is unknown. The variance of a
change is then that of the blocks and that of the changes of the other layers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from annot.analyze.comparison.nesting import Times
from annot.analyze.comparison.statistics import prior_variance, shift, shift_interval, t_p_value, t_quantile

_COUNTS: Final = 0.01
"""Share of the time of the rows that variances are averaged over."""
_REFERENCES: Final = 200
"""Most rows, the longest, that a row is relative to."""
_FEWEST: Final = 5
"""Fewest other rows whose spread alone is evidence."""
_MAD: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_ROUNDING: Final = 1e-12
_LARGEST: Final = 700.0


@dataclass(frozen=True, slots=True)
class Shift:
    """Change of a time from a to b.

    Args:
        factor: b / a (Hodges–Lehmann).
        low, high: interval of the factor; None: unknown.
        p: two-sided p-value; None: unknown.
        relative: the factor relative to the other rows of each run; None: there are none.
    """

    factor: float
    low: float | None
    high: float | None
    p: float | None
    relative: float | None = None


class Evidence:
    """Changes between samples of two sides.

    Args:
        sizes: number of samples of a, which come first, and of b.
        between_runs: whether samples are runs; else they are blocks of steps of one run on each side.
        level: error level of intervals, at most.
    """

    def __init__(self, sizes: tuple[int, int], between_runs: bool, level: float) -> None:
        self.sizes, self.between_runs, self.level = sizes, between_runs, level
        self.freedom = sum(sizes) - 2

    @property
    def attained(self) -> float | None:
        """Error level of the intervals; None: there are none."""
        exact = shift_interval(range(self.sizes[0]), range(self.sizes[1]), self.level)
        return exact[2] if exact else self.level if self.freedom else None

    def shift(self, samples: Times) -> Shift | None:
        """Return the change of a time, tested as measured; None: it is 0 on a side."""
        if min(samples) <= 0:
            a, b = self.means(samples)
            return Shift(b / a, None, None, None) if min(a, b) > 0 else None
        logarithms = [math.log(sample) for sample in samples]
        estimate = shift(*self._sides(logarithms))
        error = math.sqrt(self._variance(logarithms) * self._scale) if self.freedom else None
        low, high = self._interval(logarithms, estimate, error)
        p = (
            None
            if error is None or not self.between_runs
            else p_value(self._difference(logarithms), error, self.freedom)
        )
        return Shift(math.exp(estimate), low, high, p)

    def means(self, times: Times) -> tuple[float, float]:
        """Return the mean of the samples of each side."""
        a, b = map(fmean, self._sides(times))
        return a, b

    @property
    def _scale(self) -> float:
        """The variance of the difference of the means of both sides over that of a sample."""
        return sum(1 / size for size in self.sizes)

    def _sides(self, values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
        return values[: self.sizes[0]], values[self.sizes[0] :]

    def _difference(self, values: Sequence[float]) -> float:
        a, b = self._sides(values)
        return fmean(b) - fmean(a)

    def _variance(self, values: Sequence[float]) -> float:
        """The variance of samples around the mean of their side."""
        squares = (math.fsum((value - fmean(side)) ** 2 for value in side) for side in self._sides(values))
        return sum(squares) / self.freedom

    def _interval(
        self, logarithms: Sequence[float], estimate: float, error: float | None
    ) -> tuple[float | None, float | None]:
        exact = shift_interval(*self._sides(logarithms), self.level)
        if exact is not None:
            return _exp(exact[0]), _exp(exact[1])
        if error is None:
            return None, None
        half = t_quantile(self.level, self.freedom) * error
        return _exp(estimate - half), _exp(estimate + half)


class RowEvidence(Evidence):
    """Changes of rows, tested relative to the other rows.

    Args:
        of: how samples are compared.
        samples: samples of each row.
        own: samples of the time of each row that is in no other row.
        inside: the rows inside each row.
        longer: time of everything on the longer side.
    """

    def __init__(
        self,
        of: Evidence,
        samples: Sequence[Times],
        own: Sequence[Times],
        inside: Mapping[int, Collection[int]],
        longer: float,
    ) -> None:
        super().__init__(of.sizes, of.between_runs, of.level)
        self._inside = inside
        longest = sorted(((fmean(times), row) for row, times in enumerate(own) if min(times) > 0), reverse=True)
        deviations = [(row, weight, self._centered(own[row])) for weight, row in longest[:_REFERENCES]]
        columns = range(sum(self.sizes)) if deviations else ()
        self._orders = [sorted((each[place], weight, row) for row, weight, each in deviations) for place in columns]
        self._shifts = sorted((self._difference(each), weight, row) for row, weight, each in deviations)
        self._prior, self._cap = (0.0, 0.0), 0.0
        if self.freedom:
            rows = [row for row, times in enumerate(samples) if min(times) > 0 and fmean(times) >= _COUNTS * longer]
            relative = (self._relative(row, samples[row]) for row in rows)
            variances = [self._variance(values) for values in relative if values is not None]
            self._prior, self._cap = prior_variance(variances, self.freedom), self.freedom * len(variances)
        self.shifts = [self.of_row(row, times) for row, times in enumerate(samples)]
        """Change of each row; see `of_row`."""

    def of_row(self, row: int, samples: Times) -> Shift | None:
        """Return the change of the time that counts to a row, tested relative to others; None: it is 0 on a side."""
        measured = self.shift(samples)
        values = None if min(samples) <= 0 else self._relative(row, samples)
        if measured is None or values is None:
            return measured
        return replace(measured, relative=math.exp(shift(*self._sides(values))), p=self._p(row, values))

    def _centered(self, samples: Times) -> list[float]:
        """The logarithms of samples minus the mean of both sides."""
        logarithms = [math.log(sample) for sample in samples]
        center = fmean(map(fmean, self._sides(logarithms)))
        return [value - center for value in logarithms]

    def _relative(self, row: int, samples: Times) -> list[float] | None:
        """The logarithms of samples minus the median change of the other rows, weighted by time, of each sample."""
        without = {row, *self._inside.get(row, ())}
        common = [_weighted_median(order, without) for order in self._orders]
        if not common or common[0] is None:
            return None
        return [math.log(sample) - (other or 0.0) for sample, other in zip(samples, common, strict=True)]

    def _p(self, row: int, values: Sequence[float]) -> float | None:
        """The p-value of a relative change."""
        variance, freedom = self._moderated(values)
        if not self.between_runs:
            spread, others = self._spread(row)
            if others >= _FEWEST:
                variance, freedom = _added((variance, freedom), (spread**2, others - 1))
        return p_value(self._difference(values), math.sqrt(variance), freedom) if freedom else None

    def _moderated(self, values: Sequence[float]) -> tuple[float, float]:
        """The variance of the difference of the means, and its degrees of freedom."""
        if not self.freedom:
            return 0.0, 0.0
        prior, freedom = self._prior
        if math.isinf(freedom):
            return prior * self._scale, self._cap
        both = freedom + self.freedom
        variance = (freedom * prior + self.freedom * self._variance(values)) / both
        return variance * self._scale, min(both, self._cap)

    def _spread(self, row: int) -> tuple[float, int]:
        """The standard deviation of the changes of the other rows, and their number."""
        without = {row, *self._inside.get(row, ())}
        others = [each for each in self._shifts if each[2] not in without]
        middle = _weighted_median(others, ()) or 0.0
        apart = sorted((abs(value - middle), weight, other) for value, weight, other in others)
        return _MAD * (_weighted_median(apart, ()) or 0.0), len(others)


def p_value(difference: float, error: float, freedom: float) -> float:
    """Return the two-sided p-value of a difference with a standard error."""
    if error:
        return t_p_value(difference / error, freedom)
    return 1.0 if abs(difference) < _ROUNDING else 0.0


def _added(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """The sum of two variances with their degrees of freedom (Welch–Satterthwaite equation)."""
    squares = sum(variance**2 / freedom for variance, freedom in (first, second) if freedom)
    total = first[0] + second[0]
    return total, total**2 / squares if squares else max(first[1], second[1])


def _weighted_median(ordered: Iterable[tuple[float, float, int]], without: Collection[int]) -> float | None:
    """The median of sorted values, weights and rows, without some rows; None: there are no others."""
    others = [each for each in ordered if each[2] not in without]
    half, below = math.fsum(weight for _, weight, _ in others) / 2, 0.0
    for place, (value, weight, _) in enumerate(others):
        below += weight
        if below >= half:
            return (value + others[place + 1][0]) / 2 if below == half and place + 1 < len(others) else value
    return None


def _exp(logarithm: float) -> float:
    return math.exp(min(logarithm, _LARGEST))
