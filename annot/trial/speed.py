"""Time of a step in a measured run, and speedups from several runs.

On a GPU the time is that of all measured steps between two waits for the device. On a CPU other programs of the machine
only ever add time, so that the fastest blocks of consecutive steps vary less. A block has several steps, because steps
may take turns: a step that waits for data, and a step whose data is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Final

from annot.analyze.comparison.evidence import Evidence
from annot.live.request import Result

LEVEL: Final = 0.01
"""Error level of the intervals, at most."""
_BLOCKS: Final = 6
"""Most blocks of steps in a run."""
_SHARES: Final = (1.0, 0.5, 0.25)
"""Shares of the blocks, the fastest, that the time of a run may be from."""
_UNEVEN: Final = 0.2
"""Interquartile range of the times of blocks, relative to their median, from which steps are unequal."""
_SAME: Final = 1.05
"""Factor, up or down, that an interval excludes if it shows that speeds are the same."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Times of a step on two sides, and their ratio.

    Args:
        before_ns: middle of the times of the runs (ns).
        after_ns: `before_ns` / `factor` (ns).
        factor: before / after, the middle of the ratios of all pairs of runs; above 1: faster.
        low, high: interval of the factor; None: too few runs.
        runs: number of runs of the side with fewer.
    """

    before_ns: float
    after_ns: float
    factor: float
    low: float | None
    high: float | None
    runs: int

    def numbers(self) -> dict[str, float | None]:
        """Return the times, and the factor with its interval, by the names that answers give them."""
        ends = {"low": self.low, "high": self.high}
        return {"before_ns": self.before_ns, "after_ns": self.after_ns, "speedup": self.factor, **ends}

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval is above 1."""
        return self.low is not None and self.low > 1

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval is below 1."""
        return self.high is not None and self.high < 1

    @property
    def is_same(self) -> bool:
        """Whether the interval has 1, and excludes that a step is 5 % faster or slower."""
        if self.low is None or self.high is None:
            return False
        return 1 / _SAME <= self.low <= 1 <= self.high <= _SAME


def speedup(before: Sequence[Result], after: Sequence[Result], share: float) -> Speedup | None:
    """Return the speedup of runs over others; None: a side has no run.

    Args:
        before, after: the runs of both sides, each with measured steps.
        share: share of the fastest blocks, see `steadiest`.

    Example:
        >>> slow, fast = (Result(step_ns=[ns] * 12, device="cpu") for ns in (3_000_000, 2_000_000))
        >>> round(speedup([slow, slow], [fast, fast], 1.0).factor, 3)
        1.5
    """
    if not before or not after:
        return None
    return ratio(*([step_ns(run, share) for run in runs] for runs in (before, after)))


def ratio(before: Sequence[float], after: Sequence[float]) -> Speedup | None:
    """Return the speedup of independent times (ns) over others; None if a side is empty or has a time of 0.

    Example:
        >>> round(ratio([3.0, 3.0], [2.0, 2.0]).factor, 3)
        1.5
    """
    shift = Evidence((len(before), len(after)), True, LEVEL).shift((*before, *after)) if before and after else None
    if shift is None:
        return None
    low, high = (1 / factor if factor else None for factor in (shift.high, shift.low))
    middle, factor = median(before), 1 / shift.factor
    return Speedup(middle, middle / factor, factor, low, high, min(len(before), len(after)))


def step_ns(run: Result, share: float) -> float:
    """Return the time of a measured step (ns): the mean, or that of a share of the blocks, the fastest, on a CPU."""
    if run.window_ns is not None and (run.device != "cpu" or share == 1.0):
        return run.window_ns / len(run.step_ns[run.warmup :])
    blocks = sorted(_blocks(run))
    return fmean(blocks[: math.ceil(share * len(blocks))])


def steadiest(sides: Iterable[Sequence[Result]]) -> float:
    """Return the share of blocks with which the times of runs of a side differ least; sides have runs of one change."""
    several = [runs for runs in sides if len(runs) > 1]
    return min(_SHARES, key=lambda share: math.fsum(_squares(runs, share) for runs in several))


def _squares(runs: Sequence[Result], share: float) -> float:
    logarithms = [math.log(step_ns(run, share)) for run in runs]
    mean = fmean(logarithms)
    return math.fsum((value - mean) ** 2 for value in logarithms)


def _blocks(run: Result) -> list[float]:
    """The mean times of blocks of consecutive measured steps (ns)."""
    steps = run.step_ns[run.warmup :]
    count = min(_BLOCKS, len(steps))
    places = [place * len(steps) // count for place in range(count + 1)]
    return [fmean(steps[start:end]) for start, end in pairwise(places)]


def first_steps_ns(run: Result) -> int:
    """Return the time of the steps before the measured ones (ns), in which a change may compile."""
    return sum(run.step_ns[: run.warmup])


def pays_back(sides: Iterable[tuple[Sequence[Result], Sequence[Result]]], times: Speedup) -> int | None:
    """Return after how many steps a program has made up for slower first steps; None: never; 0: they are not slower.

    The longest first steps count: later runs may use what the first one compiled.

    Args:
        sides: runs without and with the change, those with a profiler apart from those without.
        times: times of the measured steps.
    """
    gained = times.before_ns - times.after_ns
    if gained <= 0:
        return None
    pairs = [(before, after) for before, after in sides if before and after]
    more = max(max(map(first_steps_ns, after)) - median(map(first_steps_ns, before)) for before, after in pairs)
    return math.ceil(more / gained) + pairs[0][1][0].warmup if more > 0 else 0


def unequal(before: Sequence[Result], after: Sequence[Result]) -> bool:
    """Return whether blocks of steps take unequal times after a change, and those before do not.

    False on a GPU, where a step ends for the CPU long before it ends for the GPU.
    """
    if any(run.device != "cpu" for run in after):
        return False
    a, b = (median(map(_unevenness, runs)) for runs in (before, after))
    return b >= _UNEVEN and b >= 2 * a


def _unevenness(run: Result) -> float:
    """The interquartile range of the times of blocks over their median."""
    blocks = _blocks(run)
    if len(blocks) < 4:
        return 0.0
    low, middle, high = quantiles(blocks, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0
