"""The plan of `annot try` within a budget: the changes, the number of rounds, and the number of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from annot.live.request import Result

ROUNDS: Final = 5
"""Default number of rounds: the fewest for an exact interval, see `annot.analyze.comparison.statistics`."""
_FEWEST_ROUNDS: Final = 3
"""Rounds that a plan has at least, if the user wants no fewer."""
FEWEST_TIMED: Final = 2
"""Rounds that are measured even beyond the budget: one round has no interval."""
STEPS: Final = 30
"""Default number of measured steps."""
_FEWEST_STEPS: Final = 8
"""Measured steps that a budget leaves at least."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a run (s): that of the program without measured steps, and that of a step."""

    start: float
    step: float

    @classmethod
    def of(cls, result: Result, seconds: float) -> Cost:
        """Return the cost of runs like one that took some seconds."""
        steps = result.step_ns[result.warmup :]
        step = sum(steps) / len(steps) / 1e9 if steps else 0.0
        return cls(max(seconds - step * len(steps), 0.0), step)

    def run(self, steps: int) -> float:
        """Return the time of a run with a number of measured steps (s)."""
        return self.start + steps * self.step


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried.

    Args:
        names: the changes, in order.
        left_out: changes for which the budget is too small.
        rounds: number of rounds of timed runs; a round has a run of the base and one of each change.
        steps: measured steps of a run.
        seconds: estimated time of all runs.
    """

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    rounds: int
    steps: int
    seconds: float


def plan(
    names: Sequence[str], cost: Cost, *, steps: int, least_steps: int | None, rounds: int, budget: float, spent: float
) -> Plan:
    """Plan the runs after the first run of the base.

    A small budget first leaves fewer rounds and steps, then fewer changes, at least one. The last ones are left out.

    Args:
        names: the changes, the most promising one first.
        cost: time of a run of the base.
        steps: most measured steps.
        least_steps: fewest measured steps; None: as usual.
        rounds: most rounds.
        budget: seconds for all runs.
        spent: seconds that runs took until now.

    Example:
        >>> options = dict(steps=30, least_steps=None, rounds=5, budget=600, spent=10)
        >>> plan(["compile", "fused"], Cost(start=5, step=0.1), **options).rounds
        5
    """
    least, fewest = min(_FEWEST_ROUNDS, rounds), min(steps, least_steps or _FEWEST_STEPS)
    left = budget - spent
    halved = _halved(steps, fewest)
    planned = next((count for count in halved if _seconds(len(names), least, cost.run(count)) <= left), fewest)
    run = cost.run(planned)
    number = max((n for n in range(1, len(names) + 1) if _seconds(n, least, run) <= left), default=min(1, len(names)))
    most = max((count for count in range(least, rounds + 1) if _seconds(number, count, run) <= left), default=least)
    return Plan(tuple(names[:number]), tuple(names[number:]), most, planned, spent + _seconds(number, most, run))


def _halved(steps: int, fewest: int) -> Iterator[int]:
    while steps > fewest:
        yield steps
        steps = max(steps // 2, fewest)
    yield fewest


def _seconds(changes: int, rounds: int, run: float) -> float:
    """The time of two more runs of the base, a checked run of each change, and the rounds."""
    return run * (2 + changes + rounds * (1 + changes))


def another_round(done: int, rounds: int, *, last: float, budget: float, spent: float) -> bool:
    """Return whether another round is measured.

    Args:
        done: number of measured rounds.
        rounds: number of planned rounds.
        last: seconds of the last round, or an estimate.
        budget, spent: seconds for all runs, and those that runs took until now.
    """
    return done < rounds and (done < FEWEST_TIMED or spent + last <= budget)


def steps_within(result: Result, warmup: int, steps: int) -> int:
    """Return how many steps a program has after the warm-up, at most those asked for; 0: none.

    Example:
        >>> steps_within(Result(step_ns=[1] * 12), warmup=3, steps=30)
        9
    """
    return max(min(len(result.step_ns) - warmup, steps), 0)


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration.

    Raises:
        ValueError: the text is not a duration.

    Example:
        >>> parse_seconds("10m"), parse_seconds("90"), parse_seconds("1.5h")
        (600.0, 90.0, 5400.0)
    """
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return float(text) if factor is None else float(text[:-1]) * factor


def in_words(seconds: float) -> str:
    """Return an estimated time.

    Example:
        >>> in_words(42.4), in_words(250), in_words(9000)
        ('42 s', '4 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
