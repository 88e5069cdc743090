"""Detection of steps in profiles without batch ranges: counted names and repeating patterns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.range_trees import Forest

__all__ = ["NAMES", "Repetition", "largest_repetition", "repetition"]

NAMES: Final = (
    r"(?i)^(?:(?:.*[^a-z])?(?:step|iter|iteration|batch|train)[\s#:=_-]*(\d{1,18})|(?:step|iteration|batch))$"
)
"""Usual names of steps: ``step 12``, ``training_step_3``, ``train#7``, ``batch``."""

_LEAST: Final = 3  # minimum number of repetitions of a pattern
_ANCHORS: Final = 64
_PERIODS: Final = 512
_LEVELS: Final = 16


@dataclass(frozen=True, slots=True)
class Repetition:
    """A part of a sequence that repeats one pattern."""

    first: int
    period: int
    times: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.period * self.times


def repetition(forest: Forest) -> pl.DataFrame:
    """Return a row per repetition of the largest repeating pattern of ranges: thread, start, end, number (null).

    The search starts, in each process, with the top-level ranges of the busiest thread. It continues with the ranges
    inside the longest range and the ranges with the same label, and so on. A pattern must occur three times and cover
    half of the time. A step lasts until the next step in the same range starts.
    """
    top = _rows(forest, (forest.tree["parent"].head(forest.thread_range_count) == column_ops.NONE).arg_true())
    found = [_in_process(forest, part) for part in top.partition_by("process", maintain_order=True)]
    empty = top.clear().select("thread", "start", "end", number=pl.lit(None, pl.Int64))
    return pl.concat([empty, *found])


def _in_process(forest: Forest, top: pl.DataFrame) -> pl.DataFrame:
    level = _busiest(forest, top)
    for _ in range(_LEVELS):
        found = largest_repetition(level["code"].to_list())
        time = level["end"] - level["start"]
        part = level.clear() if found is None else level.slice(found.first, found.length)
        covers_half = 2 * int((part["end"] - part["start"]).sum()) >= int(time.sum())
        if found is not None and covers_half and _is_a_step(forest, part.head(found.period)):
            return _as_steps(part, found.period)
        level = _inside_longest(forest, level)
    return _as_steps(level.clear(), 1)


def largest_repetition(codes: Sequence[int]) -> Repetition | None:
    """Return the repetition that covers most of a sequence, or None. Of equal ones, the shortest pattern."""
    best: Repetition | None = None
    series = pl.Series("code", codes, pl.Int64)
    for period in _periods(codes):
        found = _longest_run(series, period)
        if found.times >= _LEAST and (best is None or found.length > best.length):
            best = found
    return best


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


def _longest_run(codes: pl.Series, period: int) -> Repetition:
    changes = (codes.head(codes.len() - period) != codes.slice(period)).arg_true().cast(pl.Int64)
    stops = pl.concat([changes, pl.Series("code", [codes.len() - period], pl.Int64)])
    starts = stops.shift(1, fill_value=-1) + 1
    times = (stops - starts) // period + 1
    longest = (times == times.max()).arg_true()[0]
    return Repetition(starts[longest], period, times[longest])


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


def _as_steps(ranges: pl.DataFrame, period: int) -> pl.DataFrame:
    first = ranges.gather_every(period)
    last = ranges.gather_every(period, offset=period - 1)
    goes_on = first["parent"].shift(-1) == last["parent"]
    steps = first.select("thread", "start").with_columns(last["end"], goes_on.alias("goes_on"))
    until = pl.when("goes_on").then(pl.col("start").shift(-1)).otherwise("end")
    return steps.select("thread", "start", until.alias("end"), number=pl.lit(None, pl.Int64))
