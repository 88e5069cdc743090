"""Steps of processes without batch ranges: the patterns of ranges that repeat on their threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import polars as pl

from annot.attribution import column_ops
from annot.attribution.range_trees import Forest
from annot.attribution.step_optimizers import is_update, optimizer_steps, optimizers_of
from annot.attribution.step_patterns import Repetition, largest_repetitions

__all__ = ["repetition"]

_LEVELS: Final = 16
_THREADS: Final = 32
"""Number of threads of a process that can take turns."""

_ONLY_LAYERS: Final = "only layers repeat, without a backward pass or an optimizer"
_NO_REPETITION: Final = "no pattern of ranges repeats three times"

_Steps: TypeAlias = tuple[pl.DataFrame, int, str]
"""Steps (thread, start, end and number, which is null), and the sum of the times of their ranges (ns).

The text is the reason why there are no steps, or empty.
"""
_Selection: TypeAlias = Callable[[pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]]
"""From ranges to those that form a sequence, and those inside them on other threads."""


def repetition(forest: Forest) -> tuple[pl.DataFrame, str]:
    """Return a row per repetition of the largest repeating pattern of ranges, and the reason why there is none.

    The columns are thread, start, end, number (null). The reason is empty if there are steps.

    The search starts, in each process, with the top-level ranges of the busiest thread. It continues with the ranges
    inside the longest range and the ranges with the same label, and so on. A pattern must occur three times in a row
    and cover half of the time. A step lasts until the next step in the same range starts.

    A pool runs the ranges of a step on several threads. If the steps of the busiest thread lack optimizer ranges of the
    process, the search is repeated with the ranges of all threads that take turns. If the ranges of the steps differ,
    as with gradient accumulation, each step ends with an optimizer range.
    """
    top = _rows(forest, (forest.tree["parent"] == column_ops.NONE).arg_true())
    optimizers = optimizers_of(forest)
    by_process = [
        _search_process(forest, ranges, optimizers) for ranges in top.partition_by("process", maintain_order=True)
    ]
    steps = pl.concat([_no_steps(top), *(steps for steps, _ in by_process)])
    reasons = sorted({reason for _, reason in by_process}, key=lambda reason: reason == _NO_REPETITION)
    return steps, "" if steps.height else next(iter(reasons), _NO_REPETITION)


def _no_steps(level: pl.DataFrame) -> pl.DataFrame:
    return level.clear().select("thread", "start", "end", number=pl.lit(None, pl.Int64))


def _search_process(forest: Forest, top: pl.DataFrame, optimizers: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the steps with most optimizer ranges. Of equal ones, the first count, unless a pool runs the optimizer."""
    updates = optimizers.filter(pl.col("process_code") == top["process"][0]).sort("start")
    trains, scattered = updates.height > 0, updates["thread"].n_unique() > 1
    best, reason, rank = _no_steps(top), "", (-1, 0)
    for steps, covered, why in _candidates(forest, top, trains=trains):
        reason = reason or why
        size = covered if not trains else steps.height if scattered else 0
        updated = _count_inside(steps, updates["start"])
        if steps.height and (updated, size) > rank:
            best, rank = steps, (updated, size)
        if trains and not scattered and updated == updates.height:
            break
    return best, reason


def _candidates(forest: Forest, top: pl.DataFrame, *, trains: bool) -> Iterator[_Steps]:
    yield _search(forest, top.filter(pl.col("row") < forest.thread_range_count), _busiest, trains=trains)
    if top["thread"].n_unique() > 1:
        yield _search(forest, top, _taking_turns, trains=trains)
    if trains:
        yield optimizer_steps(forest, top["process"][0]), 0, ""


def _count_inside(steps: pl.DataFrame, times: pl.Series) -> int:
    """Return how many sorted times (ns) lie in steps, which are in order and do not overlap."""
    before = times.search_sorted(steps["end"], "left") - times.search_sorted(steps["start"], "left")
    return int(before.sum()) if isinstance(before, pl.Series) else 0


def _search(forest: Forest, level: pl.DataFrame, select: _Selection, *, trains: bool) -> _Steps:
    empty, reason = _no_steps(level), ""
    for _ in range(_LEVELS):
        if level.is_empty():
            break
        level, inside = select(level)
        whole = int((level["end"] - level["start"]).sum())
        for repeated in largest_repetitions(level["code"].to_list(), level["phase"].to_list()):
            first = repeated.ends[-1] - repeated.period
            if _is_a_step(forest, level[first : repeated.ends[-1]], trains=trains):
                steps, covered = _as_steps(level, repeated)
                if 2 * covered >= whole:
                    return steps, covered, ""
                reason = (
                    reason or f"the pattern of ranges that repeats covers {covered / whole:.0%} of the time in ranges"
                )
            else:
                reason = reason or _ONLY_LAYERS
        level = _ranges_in_longest(forest, level, inside)
    return empty, 0, reason or _NO_REPETITION


def _rows(forest: Forest, rows: pl.Series) -> pl.DataFrame:
    columns = forest.tree.select("thread", "start", "end", "label", "parent")[rows]
    layers = forest.labels.select(pl.struct("layer", "module", "phase").rank("dense").cast(pl.Int64)).to_series()
    process = forest.threads.table["process_code"].gather(columns["thread"]).alias("process")
    beside = (pl.col("phase") == "optimizer") & ~is_update(forest.labels)
    phases = forest.labels.select(pl.when(beside).then(pl.lit("other")).otherwise("phase").alias("phase")).to_series()
    more = (column.gather(columns["label"]) for column in (phases, layers.alias("code")))
    return columns.with_columns(rows.alias("row"), process, *more)


def _busiest(level: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Select the ranges of the busiest thread.

    In PyTorch the backward pass runs on a thread of its own, and is only a part of the step.
    """
    return level.filter(pl.col("thread") == _busiest_first(level)[0]), level.clear()


def _busiest_first(level: pl.DataFrame) -> pl.Series:
    """Return the threads in order of the time in their ranges outside the backward pass and waits for data."""
    time = pl.col("end") - pl.col("start")
    counted = time.filter(~pl.col("phase").is_in(["backward", "data"])).sum().alias("counted")
    threads = level.group_by("thread", maintain_order=True).agg(counted, time.sum().alias("time"))
    return threads.sort("counted", "time", descending=True, maintain_order=True)["thread"]


def _taking_turns(level: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Select the ranges of the threads that take turns, as those of a pool do: few of them overlap each other.

    Threads that work at the same time, such as those that load data, are left out.
    """
    taken = level.clear()
    for thread in _busiest_first(level).head(_THREADS):
        rows = level.filter(pl.col("thread") == thread).sort("start", "end", descending=[False, True])
        overlapping, apart = _overlaps(rows, taken)
        if overlapping <= apart:
            taken = pl.concat([taken, rows]).sort("start", "end", descending=[False, True], maintain_order=True)
    is_inside = (taken["end"] <= taken["end"].cum_max().shift()).fill_null(False)
    return taken.filter(~is_inside), taken.filter(is_inside)


def _overlaps(rows: pl.DataFrame, others: pl.DataFrame) -> tuple[int, int]:
    """Return how many ranges overlap others without being inside one, and how many overlap none.

    Both tables are in order of start.
    """
    earlier = others.select("start", until=pl.col("end").cum_max())
    later = others.select("start", next=pl.col("start"))
    near = rows.select("start", "end").join_asof(earlier, on="start").join_asof(later, on="start", strategy="forward")
    overlaps = ((pl.col("until") > pl.col("start")) | (pl.col("next") < pl.col("end"))).fill_null(False)
    inside = (pl.col("until") >= pl.col("end")).fill_null(False)
    return near.select((overlaps & ~inside).sum(), apart=(~overlaps & ~inside).sum()).row(0)


def _ranges_in_longest(forest: Forest, level: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges inside those with the label of the longest range, also on other threads."""
    longest = level.sort(pl.col("end") - pl.col("start"), descending=True, maintain_order=True)["code"][0]
    alike = level.filter(pl.col("code") == longest)
    rows = forest.tree["parent"].is_in(alike["row"].cast(pl.Int32).implode()).arg_true()
    if inside.is_empty():  # a sequence of the ranges of one thread
        return _rows(forest, rows.filter(rows < forest.thread_range_count))
    around = alike.select("start", until="end")
    others = inside.join_asof(around, on="start").filter(pl.col("until") >= pl.col("end")).drop("until")
    return pl.concat([_rows(forest, rows), others]).unique("row", maintain_order=True)


def _is_a_step(forest: Forest, pattern: pl.DataFrame, *, trains: bool) -> bool:
    """Return whether a pattern can be a step.

    Epochs and the blocks of a model repeat as well. A pattern that consists only of layers and operations must contain
    a backward pass or an optimizer. Where an optimizer has ranges, a wait for data alone is not a step.
    """
    labels = forest.labels[pattern["label"]]
    if labels["text"].str.contains("(?i)epoch").all() or (trains and (labels["phase"] == "data").all()):
        return False
    of_model = labels["role"].is_in(["operator", "backward", "module"]) | labels["layered"]
    return not of_model.all() or labels["phase"].is_in(["backward", "optimizer"]).any()


def _as_steps(level: pl.DataFrame, repeated: Repetition) -> tuple[pl.DataFrame, int]:
    index, after = pl.Series("index", repeated.starts, pl.Int64), pl.Series("after", repeated.ends, pl.Int64)
    first, last = level[index], level[after - 1]
    goes_on = (index.shift(-1) == after) & (first["parent"].shift(-1) == last["parent"])
    steps = first.select("thread", "start").with_columns(last["end"], goes_on.alias("goes_on"))
    until = pl.when("goes_on").then(pl.col("start").shift(-1)).otherwise("end")
    sums = pl.concat([pl.Series([0]), (level["end"] - level["start"]).cum_sum()])
    covered = int((sums[after] - sums[index]).sum())
    return steps.select("thread", "start", until.alias("end"), number=pl.lit(None, pl.Int64)), covered
