"""Steps that end with a range of an optimizer, where the ranges of the steps differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.attribution.phase_ranges import phase_ranges
from annot.attribution.range_trees import Forest
from annot.attribution.step_patterns import largest_repetitions

__all__ = ["is_update", "optimizer_steps", "optimizers_of"]

_BESIDE_UPDATES: Final = r"(?i)zero_?grad|lr_?scheduler|clip_grad|^(?:unscale_|update) GradScaler"
"""Texts of ranges of the phase optimizer that update no parameter. A loop may call them once per epoch."""

_SPANS: Final[dict[str, type[pl.DataType]]] = {
    "thread": pl.Int32, "start": pl.Int64, "end": pl.Int64, "goes_on": pl.Boolean,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive ranges of one phase in a process."""

    phase: str
    thread: int
    start: int
    end: int
    last: int
    """Start of the last range."""
    labels: tuple[int, ...]
    """Labels of the ranges that update parameters."""


def is_update(labels: pl.DataFrame) -> pl.Series:
    """Return which labels (rows of `Forest.labels`) are those of an optimizer that updates parameters (Boolean)."""
    return (labels["phase"] == "optimizer") & ~labels["text"].str.contains(_BESIDE_UPDATES).fill_null(False)


def optimizers_of(forest: Forest) -> pl.DataFrame:
    """Return process_code, thread and start of the ranges in which an optimizer updates parameters."""
    every = forest.every_range()
    every = every.filter(is_update(forest.labels).gather(every["label"]))
    return every.select(forest.threads.table["process_code"].gather(every["thread"]), "thread", "start")


def optimizer_steps(forest: Forest, process: int) -> pl.DataFrame:
    """Return a row per step of a process (code) that ends with ranges of an optimizer: thread, start, end, number.

    A step starts with the wait for data before its first backward pass: a validation may come before. Optimizers that
    alternate, as those of a generator and a discriminator, make one step together. The number is null.
    """
    ranges = phase_ranges(forest).filter(pl.col("process_code") == process)
    segments = _segments(_runs(ranges.with_columns(update=is_update(forest.labels).gather(ranges["label"]))))
    codes: dict[tuple[int, ...], int] = {}
    numbers = [codes.setdefault(segment[-1].labels, len(codes)) for segment in segments]
    repetition = next(largest_repetitions(numbers, ["other"] * len(numbers)), None)
    rows = []
    following = [*repetition.starts[1:], None] if repetition else []
    for first, after, next_first in (
        zip(repetition.starts, repetition.ends, following, strict=True) if repetition else ()
    ):
        begin, end = _beginning(segments[first]), segments[after - 1][-1].end
        goes_on = next_first == after and _begins_at_once(segments[after])
        rows.append((begin.thread, begin.last if begin.phase == "data" else begin.start, end, goes_on))
    steps = pl.DataFrame(rows, _SPANS, orient="row")
    until = pl.when("goes_on").then(pl.col("start").shift(-1)).otherwise("end")
    return steps.select("thread", "start", until.alias("end"), number=pl.lit(None, pl.Int64))


def _runs(rows: pl.DataFrame) -> list[_Run]:
    """Return the runs of a process, without the data ranges that overlap a layer or an optimizer."""
    rows = rows.sort("start", maintain_order=True)
    busy_until = pl.when(pl.col("phase") != "data").then("end").cum_max().forward_fill()
    rows = rows.filter((pl.col("phase") != "data") | (busy_until <= pl.col("start")).fill_null(True))
    rows = rows.with_columns(run=pl.col("phase").rle_id())
    first, last = pl.col("phase", "thread", "start").first(), pl.col("start").last().alias("last")
    labels = pl.col("label").filter("update").alias("labels")
    runs = rows.group_by("run", maintain_order=True).agg(first, pl.col("end").max(), last, labels).drop("run")
    return [_Run(**row | {"labels": tuple(row["labels"])}) for row in runs.iter_rows(named=True)]


def _segments(runs: list[_Run]) -> list[list[_Run]]:
    """Return the runs up to each optimizer, as far as they contain a forward and a backward pass.

    Either may have no ranges in the whole process. An optimizer range before the backward pass, such as zero_grad, is
    not the end.
    """
    runs = runs[1:] if runs and runs[0].phase == "optimizer" else runs
    needed = {run.phase for run in runs} & {"forward", "backward"}
    segments, current = list[list[_Run]](), list[_Run]()
    for run, after in zip(runs, [*runs[1:], None], strict=False):
        current.append(run)
        ends = run.phase == "optimizer" and (after is None or after.phase != "backward")
        if ends and needed and any(other.phase in needed for other in current):
            if needed <= {other.phase for other in current}:
                segments.append(current)
            current = []
    return segments


def _beginning(segment: list[_Run]) -> _Run:
    phases = [run.phase for run in segment]
    before = phases.index("backward") if "backward" in phases else len(phases)
    waits = [run for run in segment[:before] if run.phase == "data"]
    return waits[-1] if waits else segment[0]


def _begins_at_once(segment: list[_Run]) -> bool:
    """Return whether a step begins with the first range of its segment, rather than after other waits or layers."""
    return _beginning(segment) is segment[0] and (segment[0].phase != "data" or segment[0].start == segment[0].last)
