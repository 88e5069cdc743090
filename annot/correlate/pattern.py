"""Steps in a profile where nobody marked them: names that count, and patterns that repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.forest import Forest

__all__ = ["NAMES", "Repetition", "largest_repetition", "repetition"]

NAMES: Final = (
    r"(?i)^(?:(?:.*[^a-z])?(?:step|iter|iteration|batch|train)[\s#:=_-]*(\d{1,18})|(?:step|iteration|batch))$"
)
"""Names that people and frameworks give to steps: ``step 12``, ``training_step_3``, ``train#7``, ``batch``."""

_LEAST: Final = 3  # a pattern must be there so often
_ANCHORS: Final = 64
_PERIODS: Final = 512
_LEVELS: Final = 16


@dataclass(frozen=True, slots=True)
class Repetition:
    """A part of a sequence that consists of one pattern again and again."""

    first: int
    period: int
    times: int

    @property
    def length(self) -> int:
        """How many elements it covers."""
        return self.period * self.times


def repetition(forest: Forest) -> pl.DataFrame:
    """Return a row per repetition of the largest repeating pattern of ranges: thread, start, end, number (null).

    In each process the ranges at the top of the busiest thread are looked at, then those inside the longest of
    them and its like, and so on. A pattern must come three times and cover half of the time. A step lasts until
    the next one begins in the same range.
    """
    top = _rows(forest, (forest.tree["parent"].head(forest.trunk) == sweep.NONE).arg_true())
    found = [_in_process(forest, part) for part in top.partition_by("process", maintain_order=True)]
    nothing = top.clear().select("thread", "start", "end", number=pl.lit(None, pl.Int64))
    return pl.concat([nothing, *found])


def _in_process(forest: Forest, top: pl.DataFrame) -> pl.DataFrame:
    level = _busiest(forest, top)
    for _ in range(_LEVELS):
        found = largest_repetition(level["code"].to_list())
        if (
            found is not None
            and _covers_half(level, found)
            and _is_a_step(forest, level.slice(found.first, found.period))
        ):
            return _as_steps(level.slice(found.first, found.length), found.period)
        level = _inside_longest(forest, level)
    return _as_steps(level.clear(), 1)


def largest_repetition(codes: Sequence[int]) -> Repetition | None:
    """Return the repetition that covers most of a sequence, with the shortest pattern, or None.

    Example:
        >>> largest_repetition([9, 1, 2, 1, 2, 1, 2, 8])
        Repetition(first=1, period=2, times=3)
    """
    best: Repetition | None = None
    series = pl.Series("code", codes, pl.Int64)
    for period in _periods(codes):
        found = _longest_run(series, period)
        if found.times >= _LEAST and (best is None or found.length > best.length):
            best = found
    return best


def _periods(codes: Sequence[int]) -> list[int]:
    """Distances at which rare elements come again; whatever repeats, its rarest element does so at its period."""
    counts = Counter(codes)
    rare = sorted((code for code, count in counts.items() if count >= _LEAST), key=lambda code: counts[code])
    anchors, last, gaps = set(rare[:_ANCHORS]), dict[int, int](), Counter[int]()
    for place, code in enumerate(codes):
        if code in anchors:
            if code in last:
                gaps[place - last[code]] += 1
            last[code] = place
    return sorted(gap for gap, _ in gaps.most_common(_PERIODS))


def _longest_run(codes: pl.Series, period: int) -> Repetition:
    changes = (codes.head(codes.len() - period) != codes.slice(period)).arg_true().cast(pl.Int64)
    stops = pl.concat([changes, pl.Series("code", [codes.len() - period], pl.Int64)])
    starts = stops.shift(1, fill_value=-1) + 1
    times = (stops - starts) // period + 1
    longest = (times == times.max()).arg_true()[0]
    return Repetition(starts[longest], period, times[longest])


def _rows(forest: Forest, rows: pl.Series) -> pl.DataFrame:
    columns = forest.tree.select("thread", "start", "end", "says", "parent")[rows]
    layers = forest.says.select(pl.struct("layer", "module", "phase").rank("dense").cast(pl.Int64)).to_series()
    process = forest.threads.table["process_code"].gather(columns["thread"]).alias("process")
    return columns.with_columns(rows.alias("row"), process, layers.gather(columns["says"]).alias("code"))


def _busiest(forest: Forest, top: pl.DataFrame) -> pl.DataFrame:
    """The ranges of the thread that spends most time in them, not counting the backward pass, which is half a step."""
    backward = forest.says["phase"].gather(top["says"]) == "backward"
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
    return _rows(forest, forest.tree["parent"].head(forest.trunk).is_in(alike.implode()).arg_true())


def _covers_half(level: pl.DataFrame, found: Repetition) -> bool:
    time = level["end"] - level["start"]
    return 2 * int(time.slice(found.first, found.length).sum()) >= int(time.sum())


def _is_a_step(forest: Forest, pattern: pl.DataFrame) -> bool:
    """Epochs repeat, and so do blocks of a model: of what makes up a model, only what goes backward is a step."""
    said = forest.says[pattern["says"]]
    if said["text"].str.contains("(?i)epoch").all():
        return False
    recorded = said["role"].is_in(["operator", "backward", "module"]) | said["layered"]
    return not recorded.all() or said["phase"].is_in(["backward", "optimizer"]).any()


def _as_steps(ranges: pl.DataFrame, period: int) -> pl.DataFrame:
    first = ranges.gather_every(period)
    last = ranges.gather_every(period, offset=period - 1)
    goes_on = first["parent"].shift(-1) == last["parent"]
    steps = first.select("thread", "start").with_columns(last["end"], goes_on.alias("goes_on"))
    until = pl.when("goes_on").then(pl.col("start").shift(-1)).otherwise("end")
    return steps.select("thread", "start", until.alias("end"), number=pl.lit(None, pl.Int64))
