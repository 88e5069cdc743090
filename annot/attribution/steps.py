"""Steps of a run: their numbers, starts and ends, and the time of ranges outside the selected ones.

The worker processes of a DataLoader, which fetch batches beside the process that trains, have no steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import NONE
from annot.attribution.ingest import EPOCH
from annot.attribution.range_trees import Forest
from annot.attribution.step_sequences import NAMES, is_update, repetition
from annot.labels.foreign import BATCH, WARM_UP, serving_step
from annot.labels.tag import WORKER

_OF_TRAINING = ("forward", "backward", "optimizer")


def fetches(labels: pl.DataFrame) -> pl.Series:
    """Return which labels (rows of `Forest.labels`) are those of a fetch in a worker process (Boolean)."""
    return (labels["phase"] == "data") & (labels["module"] == WORKER)


def worker_processes(forest: Forest) -> pl.Series:
    """Return the codes (Int32) of the processes that only load data.

    Such a process fetches batches, and has no range of forward, backward or optimizer outside these fetches.
    """
    fetched = fetches(forest.labels).alias("fetches")
    if not fetched.any():
        return pl.Series("process_code", [], pl.Int32)
    top = forest.tree.filter(pl.col("parent") == NONE)
    process = forest.threads.table["process_code"].gather(top["thread"])
    trains = forest.labels["phase"].is_in(_OF_TRAINING).alias("trains")
    processes = pl.DataFrame([process, fetched.gather(top["label"]), trains.gather(top["label"])])
    processes = processes.group_by("process_code").agg(pl.col("fetches", "trains").any())
    return processes.filter(pl.col("fetches") & ~pl.col("trains"))["process_code"]


_TABLE: Final = dict.fromkeys(("process", "step"), pl.Int32) | dict.fromkeys(("start", "end", "batch"), pl.Int64)
SIZES: Final = {"kind": pl.String} | dict.fromkeys(("requests", "tokens", "context"), pl.Int64)
"""Kind and size of a step of a serving engine; see `annot.labels.foreign.ServingStep`."""
_SERVING: Final = "steps of a serving engine"
_USUAL: Final = "ranges with a usual name"
_REPETITION: Final = "the largest pattern of ranges that repeats"
_TRAINING: Final = "the pattern of ranges around each optimizer step"
_LONG: Final = 1.5  # first steps longer than this many times the median are warm-up


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a run.

    table     process (code of `annot.attribution.column_ops.Threads`), step (from 0 in each process), start, end (ns),
              batch (number in its epoch, null if unknown), `SIZES` (null if unknown) and warmup, by process and start.
              Steps of a process do not overlap. With `kind`, only the steps of that kind
    found_by  words for the method that found the steps, empty without steps
    missing   the reason why there are no steps and how to mark them, empty with steps
    choice    the selected step numbers, or None for the whole profile, including time outside steps
    spans     process, step, start and end of the steps, and of the waits for data before them; None: those of `table`
    kind      the selected kind, or None for all kinds
    kinds     kind, steps (their number) and median_ns of each kind of all steps, most frequent first
    """

    table: pl.DataFrame
    found_by: str
    choice: slice | None = None
    spans: pl.DataFrame | None = None
    kind: str | None = None
    kinds: pl.DataFrame = field(default_factory=lambda: kinds_of(pl.DataFrame(schema={**_TABLE, **SIZES})))
    missing: str = ""

    @property
    def guessed(self) -> bool:
        """Whether the steps are a pattern that repeats, which is a guess."""
        return self.found_by == _REPETITION

    def at(self, process: pl.Series, start: pl.Series) -> pl.Series:
        """Return the step (Int32) at each instant (ns, Int64) of a process (code, Int32), -1 outside any step."""
        if self.table.is_empty():
            return pl.Series("step", [column_ops.NONE], pl.Int32).new_from_index(0, start.len())
        last = pl.max_horizontal(pl.col("end") - 1, "start").alias("last")
        table = self.table if self.spans is None else self.spans
        spans = table.select("process", "start", last, top=pl.lit(column_ops.NONE, pl.Int32))
        row = column_ops.Tree(*spans.get_columns()).owners(process, start, start)
        return table["step"].gather(column_ops.known(row)).fill_null(column_ops.NONE)

    def with_waits(self, forest: Forest) -> Steps:
        """Return the steps with the waits for data before them, which loops put outside the step.

        A step starts with the last wait before it. Waits right before that, such as the one at the end of an epoch, are
        rows of their own. Those that another range follows, as in a validation, belong to no step,
        nor do those inside another batch, as in a validation with ranges of batches.
        """
        data = forest.labels["phase"] == "data"
        before = pl.col("end").shift(1).over("process").alias("before")
        steps = self.table.select("process", "step", before, begin="start")
        waits = _followed(_process_spans(_spans(forest, data), forest), "start", steps, "begin").drop_nulls("step")
        waits = waits.filter((pl.col("end") > pl.col("before")).fill_null(True))
        batches = _process_spans(_spans(forest, forest.labels["loop"] & (forest.labels["layer"] == BATCH)), forest)
        around = _preceded(waits, "start", batches.select("process", batch="start", until="end"), "batch")
        waits = around.filter((pl.col("until") < pl.col("end")).fill_null(True)).drop("batch", "until")
        waits = waits.with_columns(pl.max_horizontal("start", "before")).sort("start")
        following = pl.col("start").shift(-1).over("process", "step")
        last = pl.col("start").max().over("process", "step").alias("last")
        waits = waits.select("process", "step", "start", pl.min_horizontal("end", following), last)
        begins = waits.select("process", "step", "last").unique()
        spans = self.table.join(begins, on=["process", "step"], how="left", maintain_order="left")
        spans = spans.select("process", "step", pl.min_horizontal("start", "last"), "end")
        earlier = waits.filter(pl.col("start") < pl.col("end"), pl.col("end") <= pl.col("last"))
        if earlier.is_empty():
            return replace(self, spans=spans)
        others = _process_spans(_spans(forest, ~data & (forest.labels["layer"] != EPOCH)), forest)
        earlier = _followed(earlier, "end", others.select("process", other="start"), "other")
        earlier = earlier.filter((pl.col("other") >= pl.col("last")).fill_null(True)).select(spans.columns)
        return replace(self, spans=pl.concat([spans, earlier]).sort("process", "start"))

    def of_kind(self, kind: str) -> Steps:
        """Return the steps of one kind; all of them are selected, unless `choice` selects some."""
        table = self.table.filter(pl.col("kind") == kind)
        return replace(self, table=table, kind=kind, choice=self.choice or slice(None))

    def selected(self, step: pl.Series) -> pl.Series:
        """Return which steps (as returned by `at`) are selected (Boolean)."""
        most = self.table["step"].max()
        numbers = range(most + 1 if isinstance(most, int) else 0)
        return step.is_in(list(numbers if self.choice is None else numbers[self.choice]))

    def after_warmup(self, forest: Forest, last_launch: int | None) -> slice | None:
        """Return the steps after the warm-up of all processes, or None if the steps are unknown.

        A pattern that repeats is a guess. It does not make steps known. Neither do ranges of another tool that cover
        less than half of the time or that all lie in ranges named warm-up, as in a program whose measured steps lack
        ranges.
        """
        if self.table.is_empty() or self.guessed:
            return None
        if self.found_by == _USUAL and self.table["warmup"].all():
            return None
        if self.found_by == _USUAL:
            spans = self.with_waits(forest).spans
            assert spans is not None
            covered = int((spans["end"] - spans["start"]).sum())
            process = forest.threads.table["process_code"].gather(forest.tree["thread"]).alias("process")
            ranges = forest.tree.select(process, "start", "end").join(self.table, on="process", how="semi")
            last = pl.max_horizontal(pl.col("end").max(), pl.lit(last_launch, pl.Int64))
            length = ranges.group_by("process").agg(length=last - pl.col("start").min())["length"].sum()
            if 2 * covered < length:
                return None
        counts = self.table.group_by("process").agg(warm=pl.col("warmup").sum(), steps=pl.len())
        warmup, fewest = int(counts["warm"].max() or 0), int(counts["steps"].min() or 0)  # type: ignore[arg-type]
        return slice(warmup if warmup < fewest else 0, None)

    def minor(self, share: float) -> Steps:
        """Return no steps, because the steps contain only this share (0 to 1) of the GPU time."""
        words = f"only {share:.0%} of the GPU time lies in steps ({self.found_by})"
        return Steps(self.table.clear(), "", missing=f"{words}; --steps 0: selects them")

    def chosen(self) -> pl.DataFrame:
        """Return the selected rows of `table`."""
        return self.table.filter(self.selected(self.table["step"]))

    def steady(self) -> pl.DataFrame:
        """Return the selected rows of `table` that `steady_steps` returns."""
        return steady_steps(self.chosen())


def without_steps(why: str, choice: slice | None = None) -> Steps:
    """Return no steps, for this reason. `choice` is that of `Steps`."""
    return Steps(pl.DataFrame(schema=_TABLE | SIZES | {"warmup": pl.Boolean}), "", choice, missing=why)


def find_steps(forest: Forest, key_range: str | None = None, choice: slice | None = None) -> Steps:
    """Return the steps of a run.

    Without a key range (the text of the ranges that are the steps, with ``#`` for any number), the steps are those of a
    serving engine, otherwise annot's batch ranges or the steps of torch.profiler, otherwise ranges with a usual name
    such as ``step 12`` or ``batch``, otherwise the largest pattern of ranges that repeats. Only a key range finds steps
    in processes that only load data, and steps that all lie in ranges named warm-up, as in a benchmark whose measured
    calls have other ranges. `choice` is that of `Steps`.
    """
    if key_range is not None:
        pattern = r"\d+".join(map(re.escape, key_range.split("#")))
        named = _spans(forest, forest.labels["text"].str.contains(f"^{pattern}$"))
        return _make_steps(_steps(named, forest), f"the ranges {key_range!r}", choice)
    methods = ((_serving, _SERVING), (_batches, "batch ranges"), (_usual_names, _USUAL))
    threads = forest.threads.table
    loading = threads.select(pl.col("process_code").is_in(worker_processes(forest).implode()).arg_true()).to_series()
    warmups = ""
    for spans_of, found_by in methods:
        table = _steps(spans_of(forest).filter(~pl.col("thread").is_in(loading.implode())), forest)
        if table.height and not _is_warmup_only(table, forest):
            return _make_steps(table, found_by, choice)
        warmups = warmups or (f"all {found_by} lie in ranges named warm-up" if table.height else "")
    spans, why = repetition(forest)
    table = _steps(spans.filter(~pl.col("thread").is_in(loading.implode())), forest)
    if table.height and _is_warmup_only(table, forest):
        table, why = table.clear(), "the pattern of ranges that repeats lies in ranges named warm-up"
    if table.is_empty():
        return replace(_make_steps(table, "", choice), missing=_why_no_steps(forest, warmups or why))
    detected = _make_steps(table, _REPETITION, choice)
    return replace(detected, found_by=_TRAINING) if _all_optimize(detected, forest) else detected


def _is_warmup_only(table: pl.DataFrame, forest: Forest) -> bool:
    """Return whether all steps start in ranges named warm-up, while other ranges are neither inside nor around them."""
    if not _named_warmup(table, forest).all():
        return False
    every = _process_spans(forest.every_range(), forest).sort("start")
    warmups = _process_spans(_warmup_ranges(forest), forest).select("process", warmup="start")
    others = _followed(every.filter(~_named_warmup(every, forest)), "start", warmups, "warmup")
    return others.filter((pl.col("warmup") >= pl.col("end")).fill_null(True)).height > 0


def _warmup_ranges(forest: Forest) -> pl.DataFrame:
    return _spans(forest, forest.labels["text"].str.contains(WARM_UP).fill_null(False))


def _why_no_steps(forest: Forest, why: str) -> str:
    """Return why a profile has no steps, and how to mark them."""
    every = forest.every_range()
    if every.is_empty():
        return "the profile has no ranges; `annot run --layers` records them"
    threads = forest.threads.table["process_code"].gather(every["thread"])
    if threads.is_in(worker_processes(forest).implode()).all():
        return "only processes that load data have ranges; `--step-range 'NAME #'` marks steps"
    return f"{why}; `for … in batches(loader)` or `--step-range 'NAME #'` marks steps"


def _all_optimize(steps: Steps, forest: Forest) -> bool:
    """Return whether each step contains a range of an optimizer, other than one whose name only suggests it."""
    optimizer = _spans(forest, is_update(forest.labels) & ~forest.labels["plain"])
    process = forest.threads.table["process_code"].gather(optimizer["thread"])
    at = pl.DataFrame([process.alias("process").cast(pl.Int32), steps.at(process, optimizer["start"])])
    return steps.table.join(at, on=["process", "step"], how="anti").is_empty()


def _make_steps(table: pl.DataFrame, found_by: str, choice: slice | None) -> Steps:
    return Steps(table, found_by, choice, kinds=kinds_of(table))


def kinds_of(table: pl.DataFrame) -> pl.DataFrame:
    """Return kind, steps and median_ns of each kind in `Steps.table`, most frequent first."""
    length = pl.col("end") - pl.col("start")
    kinds = table.group_by("kind").agg(steps=pl.len(), median_ns=length.median().cast(pl.Int64), total=length.sum())
    return kinds.sort("steps", "total", "kind", descending=[True, True, False]).drop("total")


def steady_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the most frequent kind without warm-up. Rows are those of `Steps.table` or of `by_step`.

    If all of them are warm-up, as in a program whose measured steps lack ranges, those that take much longer than the
    others are left out.
    """
    rows = of_main_kind(steps)
    steady = rows.filter(~pl.col("warmup").fill_null(value=False))
    length = pl.col("host_ns") if "host_ns" in rows.columns else pl.col("end") - pl.col("start")
    return steady if steady.height else rows.filter(length <= _LONG * length.slice(pl.len() // 2).median())


def of_main_kind(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the most frequent kind (longest in total among several). Rows have kind, and start or host_ns.

    Times of steps of different kinds are never averaged.
    """
    if steps["kind"].n_unique() < 2:
        return steps
    spans = steps if "start" in steps.columns else steps.select("kind", start=pl.lit(0), end="host_ns")
    return steps.filter(pl.col("kind").eq_missing(pl.lit(kinds_of(spans)["kind"][0])))


def step_slice(text: str) -> slice:
    """Return the slice for a text such as ``3:20``, ``3:`` or ``7``, with the bounds of Python slices.

    Args:
        text: a step number, or a slice of non-negative numbers.

    Raises:
        ValueError: the text has another form.

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


def _serving(forest: Forest) -> pl.DataFrame:
    """Return the steps of a serving engine with `SIZES`. `_steps` extends each of them to the start of the next one."""
    steps = [serving_step(text) for text in forest.labels["text"]]
    if not any(steps):
        return _spans(forest, pl.Series([False], dtype=pl.Boolean).new_from_index(0, len(steps)))
    rows = [(step.kind, step.requests, step.tokens, step.context) if step else (None,) * 4 for step in steps]
    sizes = pl.DataFrame(rows, schema=SIZES, orient="row")
    spans = _spans(forest, sizes["kind"].is_not_null())
    return spans.hstack(sizes[spans["label"]])


def _batches(forest: Forest) -> pl.DataFrame:
    """Return the training batches. Without any, return the batches of other stages such as validation."""
    batches = forest.labels["loop"] & (forest.labels["layer"] == BATCH)
    training = _spans(forest, batches & (forest.labels["module"] == ""))
    return training if training.height else _spans(forest, batches)


def _usual_names(forest: Forest) -> pl.DataFrame:
    text = forest.labels["text"]
    number = text.str.extract(NAMES).cast(pl.Int64)
    spans = _spans(forest, text.str.contains(NAMES) & (forest.labels["role"] == "annotation"))
    spans = spans.with_columns(number.gather(spans["label"]).alias("number"))
    # Beside ranges named forward and backward, a range named step is the step of the optimizer.
    covered = (pl.col("end") - pl.col("start")).sum() * 2 >= pl.col("end").max() - pl.col("start").min()
    spans = spans.filter(pl.col("number").is_not_null() | covered.over("thread"))
    return spans if spans.height > 1 else spans.clear()


def _spans(forest: Forest, which: pl.Series) -> pl.DataFrame:
    """Return thread, start, end, label and number of the ranges whose label is in `which` (Boolean per label)."""
    every = forest.every_range()
    every = every.filter(which.gather(every["label"]))
    return every.with_columns(forest.labels["number"].gather(every["label"]).alias("number"))


def _process_spans(spans: pl.DataFrame, forest: Forest) -> pl.DataFrame:
    """Return process (code), start and end of spans."""
    process = forest.threads.table["process_code"].gather(spans["thread"]).alias("process")
    return spans.select(process, "start", "end")


def _preceded(rows: pl.DataFrame, time: str, others: pl.DataFrame, start: str) -> pl.DataFrame:
    """Add to each row the last row of `others` of its process with a `start` at or before its `time`."""
    return rows.sort(time).join_asof(
        others.sort(start), left_on=time, right_on=start, by="process", check_sortedness=False
    )


def _followed(rows: pl.DataFrame, time: str, others: pl.DataFrame, start: str) -> pl.DataFrame:
    """Add to each row the first row of `others` of its process with a `start` at or after its `time`."""
    return rows.sort(time).join_asof(
        others.sort(start), left_on=time, right_on=start, by="process", strategy="forward", check_sortedness=False
    )


def _steps(spans: pl.DataFrame, forest: Forest) -> pl.DataFrame:
    process = forest.threads.table["process_code"].gather(spans["thread"]).alias("process")
    rows: list[tuple[int, int]] = []
    last: tuple[int, int] | None = None
    ordered = spans.with_columns(process).sort("process", "start", "end", descending=[False, False, True])
    for row, (process_code, start, end) in enumerate(ordered.select("process", "start", "end").iter_rows()):
        here = last if last is not None and last[0] == process_code else None
        if here is None or start >= here[1]:
            rows.append((row, 0 if here is None else rows[-1][1] + 1))
            last = process_code, end
    numbers = pl.DataFrame(rows, schema={"row": pl.Int64, "step": pl.Int32}, orient="row")
    sizes = [
        pl.col(name) if name in ordered.columns else pl.lit(None, dtype).alias(name) for name, dtype in SIZES.items()
    ]
    table = ordered.select(pl.all().gather(numbers["row"])).with_columns(numbers["step"], batch="number")
    table = table.select(*_TABLE, *sizes).cast(dict(_TABLE))  # type: ignore[arg-type]
    # An engine launches the GPU activities of a step in its range, and samples and waits for them after it.
    next_start = pl.when(pl.col("kind").is_not_null()).then(pl.col("start").shift(-1).over("process"))
    table = table.with_columns(pl.max_horizontal("end", next_start))
    return table.with_columns(_warmup(table.with_columns(_named_warmup(table, forest))))


def _named_warmup(table: pl.DataFrame, forest: Forest) -> pl.Series:
    """Return which rows, by start, start in a range named warm-up of their process (Boolean)."""
    ranges = _process_spans(_warmup_ranges(forest), forest).sort("start")
    ranges = ranges.with_columns(pl.col("end").cum_max().over("process").alias("until"))
    rows = table.select("process", "start").join_asof(ranges, on="start", by="process", check_sortedness=False)
    return (rows["until"] > rows["start"]).fill_null(False).alias("named")


def _warmup(table: pl.DataFrame) -> pl.Series:
    """Return which steps are warm-up (Boolean): those named so, and the first others of each process that are long.

    Long steps take much longer than the median of the later half of the steps that are not named warm-up. Steps of a
    serving engine do not count as warm-up: their time depends on their kind and size.
    """
    warmup: list[bool] = []
    if table["kind"].count():
        return pl.repeat(False, table.height, dtype=pl.Boolean, eager=True).alias("warmup")
    for process_steps in table.partition_by("process", maintain_order=True):
        named = process_steps["named"].to_list()
        lengths = (process_steps["end"] - process_steps["start"]).to_list()
        measured = [length for length, warm in zip(lengths, named, strict=True) if not warm]
        later = sorted(measured[len(measured) // 2 :])
        limit = _LONG * later[len(later) // 2] if later else 0
        is_steady = [length <= limit and not warm for length, warm in zip(lengths, named, strict=True)]
        first = is_steady.index(True) if any(is_steady) else len(lengths)
        warmup += [row < first or warm for row, warm in enumerate(named)]
    return pl.Series("warmup", warmup, pl.Boolean)


def time_outside_steps(forest: Forest, steps: Steps) -> pl.DataFrame:
    """Return row (in the tree) and outside_ns of the ranges that last longer than the selected steps.

    The ranges start in selected steps. A range around several steps, such as one named after an epoch, also contains
    the time between them.
    """
    none = pl.DataFrame(schema={"row": pl.Int32, "outside_ns": pl.Int64})
    if steps.choice is None or steps.table.is_empty():
        return none
    spans = steps.table if steps.spans is None else steps.spans
    spans = spans.filter(steps.selected(spans["step"])).sort("start")
    length = pl.col("end") - pl.col("start")
    spans = spans.select("process", "start", length=length, until=length.cum_sum().over("process"))
    rows = pl.int_range(forest.tree.height, dtype=pl.Int32, eager=True)
    top = _time_outside(forest, rows.filter(forest.tree["parent"] == column_ops.NONE), spans)
    # What lies inside a range that a step contains lies in the step.
    return none if top.is_empty() else _time_outside(forest, rows, spans)


def _time_outside(forest: Forest, rows: pl.Series, spans: pl.DataFrame) -> pl.DataFrame:
    ranges = forest.tree.select("thread", "start", "end")[rows]
    process = forest.threads.table["process_code"].gather(ranges["thread"]).alias("process")
    inside = time_in(spans, process, ranges["end"]) - time_in(spans, process, ranges["start"])
    outside = pl.DataFrame({"row": rows, "outside_ns": ranges["end"] - ranges["start"] - inside})
    return outside.filter(pl.col("outside_ns") > 0)


def time_in(spans: pl.DataFrame, process: pl.Series, instants: pl.Series) -> pl.Series:
    """Return the time (ns) in spans of the process before each instant.

    Args:
        spans: process (code), start, length and until (running sum of the lengths of the process), by start.
        process: code of the process of each instant.
        instants: times (ns).
    """
    begins = spans.select("process", "length", "until", at="start", begin="start")
    calls = pl.DataFrame({"process": process, "at": instants}).with_row_index().sort("at")
    last = calls.join_asof(begins, on="at", by="process", check_sortedness=False).sort("index")
    time = pl.col("until") - pl.col("length") + pl.min_horizontal(pl.col("at") - pl.col("begin"), "length")
    return last.select(time.fill_null(0).alias("ns")).to_series()
