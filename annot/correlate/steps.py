"""Steps of training: where each begins and ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.forest import Forest
from annot.correlate.keys import BATCH
from annot.correlate.pattern import NAMES, repetition

__all__ = ["Steps", "find_steps", "step_slice"]

_TABLE: Final = {
    "process": pl.Int32, "step": pl.Int32, "start": pl.Int64, "end": pl.Int64, "batch": pl.Int64, "warmup": pl.Boolean,
}  # fmt: skip
_LONG: Final = 1.5  # a step of the beginning this many times as long as the median is warm-up


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a run.

    Args:
        table: process (code of `annot.correlate.threads.Threads`), step (from 0 in each process), start, end
            (ns), batch (number in its epoch, null if unknown), warmup; by process and start, never overlapping.
        found_by: how they were found, in words; empty if there are none.
        choice: the numbers asked for; None: all, and what lies in no step. `table` holds all in any case.
    """

    table: pl.DataFrame
    found_by: str
    choice: slice | None = None

    def at(self, process: pl.Series, start: pl.Series) -> pl.Series:
        """Return the step (Int32) in which each instant of a process (Int32, Int64) lies; -1: in none."""
        if self.table.is_empty():
            return pl.Series("step", [sweep.NONE], pl.Int32).new_from_index(0, start.len())
        last = pl.max_horizontal(pl.col("end") - 1, "start").alias("last")
        spans = self.table.select("process", "start", last, top=pl.lit(sweep.NONE, pl.Int32))
        row = sweep.Tree(*spans.get_columns()).owners(process, start, start)
        inside = pl.select(pl.when(row != sweep.NONE).then(row)).to_series()
        return self.table["step"].gather(inside).fill_null(sweep.NONE)

    def wanted(self, step: pl.Series) -> pl.Series:
        """Return which of the steps (as `at` gives them) were asked for."""
        most = self.table["step"].max()
        numbers = range(most + 1 if isinstance(most, int) else 0)
        return step.is_in(list(numbers if self.choice is None else numbers[self.choice]))

    def steady(self) -> pl.DataFrame:
        """Return the rows of `table` that were asked for, without those of the warm-up unless that is all."""
        table = self.table.filter(self.wanted(self.table["step"]))
        steady = table.filter(~pl.col("warmup"))
        return steady if steady.height else table


def find_steps(forest: Forest, key_range: str | None = None, choice: slice | None = None) -> Steps:
    """Find the steps of a run.

    Without a key range, they are annot's batch ranges or the steps of torch.profiler; else the ranges with a
    usual name, as ``step 12`` or ``batch``; else the largest pattern of ranges that repeats.

    Args:
        forest: the ranges.
        key_range: text of the ranges that are the steps; ``#`` stands for any number.
        choice: numbers of the steps that are asked for; None: all, and what lies in no step.
    """
    if key_range is not None:
        named = _named(forest, f"^{_pattern(key_range)}$")
        return Steps(_steps(named, forest), f"the ranges {key_range!r}", choice)
    ways = (
        (_batches, "batch ranges"),
        (_usual_names, "ranges with a usual name"),
        (repetition, "the largest pattern of ranges that repeats"),
    )
    for way, found_by in ways:
        table = _steps(way(forest), forest)
        if table.height:
            return Steps(table, found_by, choice)
    return Steps(table, "", choice)


def step_slice(text: str) -> slice:
    """Return the steps that a text such as ``3:20``, ``3:`` or ``7`` stands for, as Python counts.

    Raises:
        ValueError: the text is of another form.

    Example:
        >>> step_slice("3:20"), step_slice("7")
        (slice(3, 20, None), slice(7, 8, None))
    """
    match = re.fullmatch(r"(\d{1,9})|(\d{0,9}):(\d{0,9})", text)
    if match is None:
        raise ValueError(f"steps must be like 3:20, 3:, :20 or 7, got {text!r}")
    if match[1]:
        return slice(int(match[1]), int(match[1]) + 1)
    return slice(int(match[2]) if match[2] else None, int(match[3]) if match[3] else None)


def _pattern(key_range: str) -> str:
    return r"\d+".join(map(re.escape, key_range.split("#")))


def _named(forest: Forest, pattern: str) -> pl.DataFrame:
    return _spans(forest, forest.says["text"].str.contains(pattern))


def _batches(forest: Forest) -> pl.DataFrame:
    """The batches for training; those of other stages, as validation, if there are no others."""
    batches = forest.says["loop"] & (forest.says["layer"] == BATCH)
    training = _spans(forest, batches & (forest.says["module"] == ""))
    return training if training.height else _spans(forest, batches)


def _usual_names(forest: Forest) -> pl.DataFrame:
    text = forest.says["text"]
    number = text.str.extract(NAMES).cast(pl.Int64)
    spans = _spans(forest, text.str.contains(NAMES) & (forest.says["role"] == "annotation"))
    spans = spans.with_columns(number.gather(spans["says"]).alias("number"))
    # Between ranges called forward and backward, one called step is but the step of the optimizer.
    covered = (pl.col("end") - pl.col("start")).sum() * 2 >= pl.col("end").max() - pl.col("start").min()
    spans = spans.filter(pl.col("number").is_not_null() | covered.over("thread"))
    return spans if spans.height > 1 else spans.clear()


def _spans(forest: Forest, which: pl.Series) -> pl.DataFrame:
    """The ranges whose text is one of some."""
    columns = ["thread", "start", "end", "says"]
    every = pl.concat([forest.tree.select(columns), forest.loose.select(columns)])
    every = every.filter(which.gather(every["says"]))
    return every.with_columns(forest.says["number"].gather(every["says"]).alias("number"))


def _steps(spans: pl.DataFrame, forest: Forest) -> pl.DataFrame:
    process = forest.threads.table["process_code"].gather(spans["thread"]).alias("process")
    rows: list[tuple[int, int, int, int, int | None]] = []
    ordered = spans.with_columns(process).sort("process", "start", "end", descending=[False, False, True])
    for process_code, start, end, number in ordered.select("process", "start", "end", "number").iter_rows():
        here = rows[-1] if rows and rows[-1][0] == process_code else None
        if here is None or start >= here[3]:
            rows.append((process_code, 0 if here is None else here[1] + 1, start, end, number))
    table = pl.DataFrame(rows, schema=[*_TABLE.items()][:-1], orient="row")
    return table.with_columns(_warmup(table))


def _warmup(table: pl.DataFrame) -> pl.Series:
    """Tell which steps at the beginning of each process took much longer than the later half of them."""
    long: list[bool] = []
    for part in table.partition_by("process", maintain_order=True):
        lengths = (part["end"] - part["start"]).to_list()
        later = sorted(lengths[len(lengths) // 2 :])
        limit = _LONG * later[len(later) // 2]
        warm = next((row for row, length in enumerate(lengths) if length <= limit), len(lengths))
        long += [row < warm for row in range(len(lengths))]
    return pl.Series("warmup", long, pl.Boolean)
