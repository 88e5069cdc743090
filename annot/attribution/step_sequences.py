"""Steps of processes without batch ranges, from what repeats on their threads.

A step is a range with a usual name, a repetition of a pattern of ranges, or, where the ranges of the steps differ, what
ends with a range of an optimizer.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

import polars as pl

from annot.attribution import column_ops
from annot.attribution.range_trees import Forest
from annot.labels.foreign import BATCH

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


PHASES: Final = ("forward", "backward", "optimizer")


def phase_ranges(forest: Forest) -> pl.DataFrame:
    """Return process_code, thread, phase, start, end, label, host_ns of the outermost ranges of each phase.

    The phases are `PHASES` and data. A wait for data counts inside another phase as well.
    """
    nodes, path, parent = forest.layers_of_nodes(), column_ops.known(forest.tree["path"]), forest.tree["parent"]
    of_layers = (nodes["phase"].is_in(PHASES) & (nodes["layer"] != BATCH)).gather(path).fill_null(False)
    waits = (nodes["phase"] == "data").gather(path).fill_null(False)
    outermost = (of_layers & ~column_ops.inside(of_layers, parent)) | (waits & ~column_ops.inside(waits, parent))
    rows = outermost.arg_true()  # columns of texts of all ranges would take much memory
    columns = ["thread", "start", "end", "label"]
    tree = forest.tree.select(columns)[rows].with_columns(nodes["phase"].gather(path.gather(rows)))
    phase = forest.labels["phase"].gather(forest.crossing["label"])
    every = pl.concat([tree, forest.crossing.select(*columns, phase)])
    every = every.filter(pl.col("phase").is_in([*PHASES, "data"]))
    process = forest.threads.table["process_code"].gather(every["thread"])
    return every.select(process, "thread", "phase", "start", "end", "label", host_ns=pl.col("end") - pl.col("start"))


_BESIDE_UPDATES: Final = r"(?i)zero_?grad|lr_?scheduler|clip_grad|^(?:unscale_|update) GradScaler"
"""Texts of ranges of the phase optimizer that update no parameter. A loop may call them once per epoch."""

_SPANS: Final[dict[str, type[pl.DataType]]] = {
    "thread": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
    "goes_on": pl.Boolean,
}


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


def optimizer_steps(forest: Forest, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return a row per step that ends with ranges of an optimizer: thread, start, end, number.

    The ranges are those of a process in `phase_ranges`.

    A step starts with the wait for data before its first backward pass: a validation may come before. Optimizers that
    alternate, as those of a generator and a discriminator, make one step together. The number is null.
    """
    segments = _segments(_runs(ranges.with_columns(update=is_update(forest.labels).gather(ranges["label"]))))
    codes: dict[tuple[int, ...], int] = {}
    numbers = [codes.setdefault(segment[-1].labels, len(codes)) for segment in segments]
    repetition = next(largest_repetitions(numbers, ["other"] * len(numbers)), None)
    rows = []
    following = [*repetition.starts[1:], None] if repetition else []
    for first, after, next_first in (
        zip(repetition.starts, repetition.ends, following, strict=True) if repetition else ()
    ):
        begin, end = _first_run(segments[first]), segments[after - 1][-1].end
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


def _first_run(segment: list[_Run]) -> _Run:
    phases = [run.phase for run in segment]
    before = phases.index("backward") if "backward" in phases else len(phases)
    waits = [run for run in segment[:before] if run.phase == "data"]
    return waits[-1] if waits else segment[0]


def _begins_at_once(segment: list[_Run]) -> bool:
    """Return whether a step begins with the first range of its segment, rather than after other waits or layers."""
    return _first_run(segment) is segment[0] and (segment[0].phase != "data" or segment[0].start == segment[0].last)


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
    """Return the steps with most optimizer ranges. Of equal ones, the first count, unless a pool runs the optimizer.

    A step that begins with an optimizer range lacks the passes before it, which other threads of a pool run.
    """
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
    phases = pl.DataFrame()
    if trains:
        phases = phase_ranges(forest).filter(pl.col("process_code") == top["process"][0])
        beside = pl.col("thread").is_in(_threads_beside_training(top, phases))
        top, phases = top.filter(~beside), phases.filter(~beside)
    if top["thread"].n_unique() > 1:
        yield _search(forest, top, _taking_turns, trains=trains)
    if trains:
        yield optimizer_steps(forest, phases), 0, ""


def _threads_beside_training(top: pl.DataFrame, phases: pl.DataFrame) -> list[int]:
    """Return the threads that load or prepare data while others train.

    They have ranges of no phase but data, and some of their ranges overlap those of a phase.
    """
    training = phases.filter(pl.col("phase") != "data").sort("start")
    others = top.filter(~pl.col("thread").is_in(training["thread"].unique().implode())).sort("start")
    threads = others.partition_by("thread", maintain_order=True)
    return [rows["thread"][0] for rows in threads if _overlaps(rows, training)[1] < rows.height]


def _count_inside(steps: pl.DataFrame, times: pl.Series) -> int:
    """Return how many sorted times (ns) lie in steps, after their start. The steps are in order and do not overlap."""
    before = times.search_sorted(steps["end"], "left") - times.search_sorted(steps["start"], "right")
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
        rows = level.filter(pl.col("thread") == thread).sort("start")
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
