"""Hiccups and drift in the steps of compared runs, and steps that depend on each other: what a reader should know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Final

from annot.analyze.comparison.runs import Runs
from annot.analyze.comparison.statistics import drift, effective_number

_FAR: Final = 3
"""Interquartile ranges above the third quartile of values that are far out (Tukey, Exploratory Data Analysis, 1977)."""
_MATTERS: Final = 0.01
"""Share of the time of a run that the steps far out add to it, to be worth a sentence."""
_NOTICED: Final = 0.01
"""Error level of drift within a run."""
_NOTICED_OVER_RUNS: Final = 0.05
"""The same over runs: of five runs in order, none has less than 0.0143."""
_FEWEST: Final = 5
_MOST: Final = 100
"""Most values whose drift is tested: all pairs of values count."""


def notes(runs: Runs) -> tuple[str, ...]:
    """Return sentences without full stops about the steps of each side, and about the order of its runs."""
    series, size = runs.step_totals, runs.sizes[0]
    sentences = []
    if runs.fastest is not None:
        sentences.append(
            f"typical steps vary more: speedups are those of the fastest {runs.fastest:.0%} of the steps of each run"
        )
    for name, side in (("A", series[:size]), ("B", series[size:])):
        long = [each for each in side if len(each) >= _FEWEST]
        sentences += [*_hiccups(name, long), *_drifts(name, long)]
        if not runs.between_runs:
            sentences += _dependent(name, long)
        order = [median(each) for each in side]
        if len(side) >= _FEWEST and order[0] and drift(order)[1] <= _NOTICED_OVER_RUNS:
            sentences.append(f"the runs of {name} change in their order by {order[-1] / order[0] - 1:+.0%}")
    return tuple(sentences)


def _hiccups(name: str, side: Sequence[Sequence[float]]) -> Iterator[str]:
    """Say which steps are far longer than the others, if they change a mean."""
    side = [series for series in side if median(series)]  # a GPU without work in most steps has no typical step
    far = [[step for step in series if step > _far_out(series)] for series in side]
    matters = any(
        sum(steps) - len(steps) * median(series) > _MATTERS * sum(series)
        for steps, series in zip(far, side, strict=True)
        if steps
    )
    if matters:
        longest = max(max(steps) / median(series) for steps, series in zip(far, side, strict=True) if steps)
        count, number = sum(map(len, far)), sum(map(len, side))
        yield (
            f"{count:,} of {number:,} steps of {name} {'is' if count == 1 else 'are'} far longer than the others, "
            f"up to {longest:.1f} times the median; the means contain them, speedups and decisions do not"
        )


def _far_out(series: Sequence[float]) -> float:
    first, _, third = quantiles(series, n=4, method="inclusive")
    return third + _FAR * (third - first)


def _drifts(name: str, side: Sequence[Sequence[float]]) -> Iterator[str]:
    """Say how much steps change from the first to the last, if it is more than they differ otherwise."""
    changes = []
    for series in side:
        values = _shortened(series)
        slope, p = drift(values)
        first, middle, third = quantiles(values, n=4, method="inclusive")
        change = slope * (len(values) - 1)
        if p <= _NOTICED and abs(change) > third - first and middle:
            changes.append(change / middle)
    if changes:
        runs = f"{len(changes)} of {len(side)} runs of {name} drift" if len(side) > 1 else f"{name} drifts"
        yield f"{runs}: from the first to the last step, its time changes by {max(changes, key=abs):+.0%}"


def _dependent(name: str, side: Sequence[Sequence[float]]) -> Iterator[str]:
    for series in side:
        independent = effective_number(series)
        if independent < len(series) / 2:
            yield f"the {len(series):,} steps of {name} are as much evidence as {independent:.0f} independent steps"


def _shortened(series: Sequence[float]) -> Sequence[float]:
    """The values, or the means of as many blocks as are tested."""
    count = len(series)
    if count <= _MOST:
        return series
    bounds = [block * count // _MOST for block in range(_MOST + 1)]
    return [fmean(series[start:end]) for start, end in pairwise(bounds)]
