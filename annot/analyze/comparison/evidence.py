"""Evidence of samples of two sides for changes of rows: estimates, intervals, p-values.

All is done on logarithms. Other programs on the machine, its clock and its temperature slow all layers of a run alike.
The change of a layer therefore has two estimates: as measured, and relative to the other layers of each run. The
p-value of a layer is that of the relative change, from a moderated t statistic: few runs say little about the variance
of a layer, so that its variance is averaged with that of all layers.

With one run on each side, samples are blocks of steps, and the variance between runs is unknown. The variance of a
change is then that of the blocks and that of the changes of the other layers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import fmean, median
from typing import Final

from annot.analyze.comparison.nesting import Times
from annot.analyze.comparison.statistics import (
    f_p_value,
    prior_variance,
    shift,
    shift_interval,
    t_p_value,
    t_quantile,
)

_COUNTS: Final = 0.01
"""Share of the time of the rows that variances are averaged over."""
_MOST: Final = 0.9
"""Share of the time that the rows have together that others are relative to."""
_FEW, _REFERENCES = 20, 200
"""Least and most of these rows."""
_FEWEST: Final = 5
"""Fewest rows whose spread is evidence, and fewest repeated layers that are relative to each other."""
_MAD: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_ROUNDING: Final = 1e-12
_LARGEST: Final = 700.0
"""Largest absolute logarithm of a factor; e**710 overflows, and a factor of 0 means unknown."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Change of a time from a to b.

    Args:
        factor: b / a (Hodges–Lehmann).
        low, high: interval of the factor; None: unknown.
        p: two-sided p-value; None: unknown. That of a row with other rows is the p-value of its relative change.
        relative: the change relative to the other rows of each run; None: there are none.
    """

    factor: float
    low: float | None
    high: float | None
    p: float | None
    relative: Shift | None = None


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

    @property
    def is_exact(self) -> bool:
        """Whether intervals hold for samples of any distribution."""
        return shift_interval(range(self.sizes[0]), range(self.sizes[1]), self.level) is not None

    def shift(self, samples: Times) -> Shift | None:
        """Return the change of a time, tested as measured; None: it is 0 on a side."""
        if min(samples) <= 0:
            a, b = self.means(samples)
            return Shift(b / a, None, None, None) if min(a, b) > 0 else None
        logarithms, p = [math.log(sample) for sample in samples], None
        error = math.sqrt(self._variance(logarithms) * self._scale) if self.freedom else None
        if error is not None and self.between_runs:
            p = p_value(self._difference(logarithms), error, self.freedom)
        return self._estimated(logarithms, error, p, self.freedom)

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

    def _estimated(self, logarithms: Sequence[float], error: float | None, p: float | None, freedom: float) -> Shift:
        """The change of samples, with the exact interval, or that of a t distribution with a standard error."""
        estimate, interval = shift(*self._sides(logarithms)), shift_interval(*self._sides(logarithms), self.level)
        if interval is None and error is not None:
            half = t_quantile(self.level, freedom) * error
            interval = estimate - half, estimate + half, self.level
        low, high = map(_exp, interval[:2]) if interval else (None, None)
        return Shift(math.exp(estimate), low, high, p)


class RowEvidence(Evidence):
    """Changes of rows, tested relative to other rows.

    These are the longest rows, and those of repeated layers: whatever slows the machine slows `h.*.fc` most alike. The
    reference with the smaller p-value counts, at twice this p-value. With one run on each side, a change must stand out
    from both: the larger p-value counts.

    Args:
        of: how samples are compared.
        samples: samples of each row.
        own: samples of the time of each row that is in no other row.
        inside: the rows inside each row.
        groups: the group of repeated layers of each row, or None for none.
        whole: samples of the time of everything.
    """

    def __init__(
        self,
        of: Evidence,
        samples: Sequence[Times],
        own: Sequence[Times],
        inside: Mapping[int, Collection[int]],
        groups: Sequence[Hashable],
        whole: Times,
    ) -> None:
        super().__init__(of.sizes, of.between_runs, of.level)
        self._samples, self._own, self._inside, self._whole = samples, own, inside, whole
        self._group_of, self._groups = groups, defaultdict[Hashable, list[int]](list)
        for row, group in enumerate(groups):
            if group is not None and min(own[row]) > 0:
                self._groups[group].append(row)
        self._longest = self._references()
        self._deviations = {row: self._centered(own[row]) for row in {*self._longest, *chain(*self._groups.values())}}
        references = [self._others(row)[0] for row in self._tested()]
        changes = [self._relative(samples[row], others) for row, others in zip(self._tested(), references, strict=True)]
        self._variances = [self._variance(change) for change in changes if change] if self.freedom else []
        self._prior = prior_variance(self._variances, self.freedom) if self.freedom else (0.0, 0.0)

    @cached_property
    def shifts(self) -> list[Shift | None]:
        """Change of each row; see `of_row`."""
        return [self.of_row(row, times) for row, times in enumerate(self._samples)]

    @cached_property
    def shares(self) -> list[float]:
        """Share of each row; see `share`."""
        return [self.share(times) for times in self._samples]

    @property
    def noise(self) -> float:
        """Variance of samples relative to other rows, in the middle of all rows; 0: unknown."""
        return median(self._variances) if self._variances else 0.0

    def share(self, samples: Times) -> float:
        """Return the share of a time in the middle run, on the side where it is longer."""
        shares = [sample / whole if whole else 0.0 for sample, whole in zip(samples, self._whole, strict=True)]
        return max(map(median, self._sides(shares)))

    def of_row(self, row: int, samples: Times) -> Shift | None:
        """Return the change of the time that counts to a row, tested relative to others; None: it is 0 on a side."""
        measured = self.shift(samples)
        references = [others for others in self._others(row) if others]
        if measured is None or not references or min(samples) <= 0:
            return measured
        changes = [self._relative_change(samples, others) for others in references]
        which, times = (min, len(changes)) if self.between_runs else (max, 1)
        relative = which(changes, key=lambda change: 1.0 if change.p is None else change.p)
        p = None if relative.p is None else min(relative.p * times, 1.0)
        return replace(measured, relative=relative, p=p)

    def _relative_change(self, samples: Times, others: Sequence[int]) -> Shift:
        values = self._relative(samples, others)
        variance, freedom = self._moderated(values)
        if freedom and self._is_noisier(values):  # the variance of other rows says too little about this one
            variance, freedom = self._variance(values) * self._scale, self.freedom
        error = math.sqrt(variance) if freedom else None
        return self._estimated(values, error, self._p(values, others), freedom)

    def _is_noisier(self, values: Sequence[float]) -> bool:
        """Whether a row varies significantly more than rows have in common."""
        prior, freedom = self._prior
        freedom = min(freedom, self.freedom * len(self._variances))  # the rows together have no more
        if not (prior and freedom):
            return False
        return f_p_value(self._variance(values) / prior, self.freedom, freedom) < self.level

    def _tested(self) -> list[int]:
        """The rows that variances are averaged over."""
        return [row for row, times in enumerate(self._samples) if min(times) > 0 and self.share(times) >= _COUNTS]

    def _references(self) -> list[int]:
        """The longest rows, which have most of the time together."""
        times = sorted(((fmean(own), row) for row, own in enumerate(self._own) if min(own) > 0), reverse=True)
        most, references = _MOST * math.fsum(time for time, _ in times), list[int]()
        for time, row in times[:_REFERENCES]:
            if most > 0 or len(references) < _FEW:
                references.append(row)
            most -= time
        return references

    def _others(self, row: int) -> list[list[int]]:
        """The rows that a row is relative to: the longest, and those that repeat the row."""
        without = {row, *self._inside.get(row, ())}
        longest = [other for other in self._longest if other not in without]
        repeated = [other for other in self._groups.get(self._group_of[row], ()) if other not in without]
        return [longest, repeated] if len(repeated) >= _FEWEST - 1 else [longest]

    def _centered(self, samples: Times) -> list[float]:
        """The logarithms of samples minus the mean of both sides."""
        logarithms = [math.log(sample) for sample in samples]
        center = fmean(map(fmean, self._sides(logarithms)))
        return [value - center for value in logarithms]

    def _relative(self, samples: Times, others: Sequence[int]) -> list[float]:
        """The logarithms of samples minus the median change of other rows."""
        if not others:
            return []
        common = map(median, zip(*(self._deviations[other] for other in others), strict=True))
        return [math.log(sample) - other for sample, other in zip(samples, common, strict=True)]

    def _p(self, values: Sequence[float], others: Sequence[int]) -> float | None:
        """The p-value of a change relative to other rows."""
        variance, freedom = self._moderated(values)
        if not self.between_runs and len(others) >= _FEWEST:
            changes = [self._difference(self._deviations[other]) for other in others]
            spread = _MAD * median(abs(change - median(changes)) for change in changes)
            variance, freedom = _added((variance, freedom), (spread**2, len(others) - 1))
        return p_value(self._difference(values), math.sqrt(variance), freedom) if freedom else None

    def _moderated(self, values: Sequence[float]) -> tuple[float, float]:
        """The variance of the difference of the means, and its degrees of freedom."""
        if not self.freedom:
            return 0.0, 0.0
        prior, freedom = self._prior
        most = self.freedom * max(len(self._variances), 1)  # the rows together have no more
        if math.isinf(freedom):
            return prior * self._scale, most
        both = freedom + self.freedom
        variance = (freedom * prior + self.freedom * self._variance(values)) / both
        return variance * self._scale, min(both, most)


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


def _exp(logarithm: float) -> float:
    return math.exp(min(max(logarithm, -_LARGEST), _LARGEST))
