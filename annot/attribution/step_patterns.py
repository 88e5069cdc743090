"""Detection of steps in profiles without batch ranges: counted names and repeating patterns."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.range_trees import Forest

__all__ = ["NAMES", "Repetition", "largest_repetitions", "repetition"]

NAMES: Final = (
    r"(?i)^(?:(?:.*[^a-z])?(?:step|iter|iteration|batch|train)[\s#:=_-]*(\d{1,18})|(?:step|iteration|batch))$"
)
"""Usual names of steps: ``step 12``, ``training_step_3``, ``train#7``, ``batch``."""

_LEAST: Final = 3  # minimum number of repetitions of a pattern in a row
_ANCHORS: Final = 64
_PERIODS: Final = 512
_LEVELS: Final = 16


@dataclass(frozen=True, slots=True)
class Repetition:
    """A pattern of consecutive elements of a sequence, and where it occurs."""

    starts: list[int]
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


def repetition(forest: Forest) -> pl.DataFrame:
    """Return a row per repetition of the largest repeating pattern of ranges: thread, start, end, number (null).

    The search starts, in each process, with the top-level ranges of the busiest thread. It continues with the ranges
    inside the longest range and the ranges with the same label, and so on. A pattern must occur three times in a row
    and cover half of the time. A step lasts until the next step in the same range starts.
    """
    top = _rows(forest, (forest.tree["parent"].head(forest.thread_range_count) == column_ops.NONE).arg_true())
    found = [_in_process(forest, part) for part in top.partition_by("process", maintain_order=True)]
    empty = top.clear().select("thread", "start", "end", number=pl.lit(None, pl.Int64))
    return pl.concat([empty, *found])


def _in_process(forest: Forest, top: pl.DataFrame) -> pl.DataFrame:
    level = _busiest(forest, top)
    for _ in range(_LEVELS):
        phases = forest.labels["phase"].gather(level["label"]).to_list()
        for found in largest_repetitions(level["code"].to_list(), phases):
            if _is_a_step(forest, level[found.starts[0] : found.starts[0] + found.period]):
                steps, covered = _as_steps(level, found)
                if 2 * covered >= int((level["end"] - level["start"]).sum()):
                    return steps
        level = _inside_longest(forest, level)
    return top.clear().select("thread", "start", "end", number=pl.lit(None, pl.Int64))


def largest_repetitions(codes: Sequence[int], phases: Sequence[str]) -> Iterator[Repetition]:
    """Yield the patterns that cover most of a sequence, and where they occur, shortest pattern first.

    A pattern repeats three times in a row at least once. An epoch of a few batches repeats as well, so the patterns
    that cover most optimizer ranges come first, then those with most ranges besides waits for data, then those with
    most ranges. A pattern starts with a wait for data if it has one.
    """
    text = _as_text(codes)
    found = [one for period in _periods(codes) if (one := _candidate(text, codes, period)) is not None]
    for weights in _weights(phases):
        most = max((one.covered(weights) for one in found), default=0)
        yield from (_occurrences(text, phases, one) for one in found if most and one.covered(weights) == most)


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


def _occurrences(text: str, phases: Sequence[str], found: _Candidate) -> Repetition:
    inside = phases[found.first : found.first + found.period]
    first = found.first + (inside.index("data") if "data" in inside else 0)
    pattern, starts = text[first : first + found.period], list[int]()
    position = text.find(pattern)
    while position >= 0:
        starts.append(position)
        position = text.find(pattern, position + found.period)
    return Repetition(starts, found.period)


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


def _rows(forest: Forest, rows: pl.Series) -> pl.DataFrame:
    columns = forest.tree.select("thread", "start", "end", "label", "parent")[rows]
    layers = forest.labels.select(pl.struct("layer", "module", "phase").rank("dense").cast(pl.Int64)).to_series()
    process = forest.threads.table["process_code"].gather(columns["thread"]).alias("process")
    return columns.with_columns(rows.alias("row"), process, layers.gather(columns["label"]).alias("code"))


def _busiest(forest: Forest, top: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of the thread with the most time in ranges outside the backward pass.

    In PyTorch the backward pass runs on a thread of its own, and is only a part of the step.
    """
    backward = forest.labels["phase"].gather(top["label"]) == "backward"
    time = top.select("thread", backward.alias("backward"), time=pl.col("end") - pl.col("start"))
    own = pl.col("time").filter(~pl.col("backward")).sum().alias("own")
    busiest = time.group_by("thread", maintain_order=True).agg(own, pl.col("time").sum())
    busiest = busiest.sort("own", "time", descending=True, maintain_order=True)
    return top.filter(pl.col("thread") == busiest["thread"][0])


def _inside_longest(forest: Forest, level: pl.DataFrame) -> pl.DataFrame:
    if level.is_empty():
        return level
    longest = level.sort(pl.col("end") - pl.col("start"), descending=True, maintain_order=True)["code"][0]
    alike = level.filter(pl.col("code") == longest)["row"].cast(pl.Int32)
    return _rows(forest, forest.tree["parent"].head(forest.thread_range_count).is_in(alike.implode()).arg_true())


def _is_a_step(forest: Forest, pattern: pl.DataFrame) -> bool:
    """Return whether a pattern can be a step.

    Epochs and the blocks of a model repeat as well. A pattern that consists only of layers and operations must contain
    a backward pass or an optimizer.
    """
    labels = forest.labels[pattern["label"]]
    if labels["text"].str.contains("(?i)epoch").all():
        return False
    of_model = labels["role"].is_in(["operator", "backward", "module"]) | labels["layered"]
    return not of_model.all() or labels["phase"].is_in(["backward", "optimizer"]).any()


def _as_steps(level: pl.DataFrame, found: Repetition) -> tuple[pl.DataFrame, int]:
    """Return the steps, and the sum of the times of their ranges (ns)."""
    index = pl.Series("index", found.starts, pl.Int64)
    first, last = level[index], level[index + found.period - 1]
    goes_on = (index.shift(-1) == index + found.period) & (first["parent"].shift(-1) == last["parent"])
    steps = first.select("thread", "start").with_columns(last["end"], goes_on.alias("goes_on"))
    until = pl.when("goes_on").then(pl.col("start").shift(-1)).otherwise("end")
    sums = pl.concat([pl.Series([0]), (level["end"] - level["start"]).cum_sum()])
    covered = int((sums[index + found.period] - sums[index]).sum())
    return steps.select("thread", "start", until.alias("end"), number=pl.lit(None, pl.Int64)), covered
