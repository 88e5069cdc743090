"""Repetitions in a sequence of labels, and the usual names of steps."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import polars as pl

__all__ = ["NAMES", "Repetition", "largest_repetitions"]

NAMES: Final = (
    r"(?i)^(?:(?:.*[^a-z])?(?:step|iter|iteration|batch|train)[\s#:=_-]*(\d{1,18})|(?:step|iteration|batch))$"
)
"""Usual names of steps: ``step 12``, ``training_step_3``, ``train#7``, ``batch``."""

_LEAST: Final = 3  # minimum number of repetitions of a pattern in a row
_ANCHORS: Final = 64
_PERIODS: Final = 512


@dataclass(frozen=True, slots=True)
class Repetition:
    """A pattern of consecutive elements of a sequence, and where it occurs.

    Args:
        starts: the first element of each occurrence.
        ends: the element after each occurrence.
        period: number of elements of the pattern. The first occurrence of a sequence may lack the leading waits for
            data, which a recording that begins in the loop does not contain.
    """

    starts: list[int]
    ends: list[int]
    period: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A pattern that repeats at once, and how often it occurs in the whole sequence."""

    first: int
    period: int
    count: int

    def covered(self, weights: list[int]) -> int:
        """Return the weight that all occurrences cover, given the running sums of the weights of the elements."""
        return self.count * (weights[self.first + self.period] - weights[self.first])


def largest_repetitions(codes: Sequence[int], phases: Sequence[str]) -> Iterator[Repetition]:
    """Yield the patterns that cover most of a sequence, and where they occur, shortest pattern first.

    A pattern repeats three times in a row at least once. An epoch of a few batches repeats as well, so the patterns
    that cover most optimizer ranges come first, then those with most ranges besides waits for data, then those with
    most ranges. A pattern starts with a wait for data if it has one.
    """
    text = _as_text(codes)
    candidates = [candidate for period in _periods(codes) if (candidate := _candidate(text, codes, period)) is not None]
    for weights in _weights(phases):
        most = max((candidate.covered(weights) for candidate in candidates), default=0)
        yield from (
            _occurrences(text, phases, candidate)
            for candidate in candidates
            if most and candidate.covered(weights) == most
        )


def _as_text(codes: Sequence[int]) -> str:
    """Return a text with a character per code, which `str.find` and `str.count` search fast. Rare codes share one."""
    usual = {code: rank for rank, (code, _) in enumerate(Counter(codes).most_common(sys.maxunicode))}
    return "".join(chr(usual.get(code, sys.maxunicode)) for code in codes)


def _candidate(text: str, codes: Sequence[int], period: int) -> _Candidate | None:
    first, times = _longest_run(pl.Series("code", codes, pl.Int64), period)
    return _Candidate(first, period, text.count(text[first : first + period])) if times >= _LEAST else None


def _weights(phases: Sequence[str]) -> Iterator[list[int]]:
    """Yield the running sums of the weights of the elements, most telling weights first."""
    for counted in (lambda phase: phase == "optimizer", lambda phase: phase != "data", lambda _: True):
        yield [0, *accumulate(map(counted, phases))]


def _occurrences(text: str, phases: Sequence[str], candidate: _Candidate) -> Repetition:
    first = candidate.first + _beginning(phases[candidate.first : candidate.first + candidate.period])
    pattern, starts, ends = text[first : first + candidate.period], list[int](), list[int]()
    waits = next((place for place in range(candidate.period) if phases[first + place] != "data"), 0)
    if text.startswith(pattern[waits:]):
        starts, ends = [0], [candidate.period - waits]
    position = text.find(pattern, *ends)
    while position >= 0:
        starts.append(position)
        ends.append(position + candidate.period)
        position = text.find(pattern, ends[-1])
    return Repetition(starts, ends, candidate.period)


def _beginning(phases: Sequence[str]) -> int:
    """Return the element of a pattern with which a step begins: a wait for data, or what follows the optimizer.

    A recording that begins in the middle of a step repeats from there. A step does not begin with a backward pass, nor
    with the optimizer right after it.
    """
    if "data" in phases:
        return phases.index("data")
    if phases[0] == "backward" or (phases[0], phases[-1]) == ("optimizer", "backward"):
        after = (place for place in range(1, len(phases)) if phases[place - 1] == "optimizer")
        return next((place for place in after if phases[place] not in ("optimizer", "backward")), 0)
    return 0


def _periods(codes: Sequence[int]) -> list[int]:
    """Return candidate periods: the distances between equal rare elements, since a pattern repeats each of them."""
    counts = Counter(codes)
    rare = sorted((code for code, count in counts.items() if count >= _LEAST), key=lambda code: counts[code])
    anchors, last, gaps = set(rare[:_ANCHORS]), dict[int, int](), Counter[int]()
    for position, code in enumerate(codes):
        if code in anchors:
            if code in last:
                gaps[position - last[code]] += 1
            last[code] = position
    return sorted(gap for gap, _ in gaps.most_common(_PERIODS))


def _longest_run(codes: pl.Series, period: int) -> tuple[int, int]:
    """Return start and number of repetitions of the longest part in which each element equals the one a period on."""
    changes = (codes.head(codes.len() - period) != codes.slice(period)).arg_true().cast(pl.Int64)
    stops = pl.concat([changes, pl.Series("code", [codes.len() - period], pl.Int64)])
    starts = stops.shift(1, fill_value=-1) + 1
    times = (stops - starts) // period + 1
    longest = (times == times.max()).arg_true()[0]
    return starts[longest], times[longest]
