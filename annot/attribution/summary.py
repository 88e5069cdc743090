"""Totals of a run, its table of steps, and notes about data that could not be read or matched.

Steps start and end on the CPU, or on a GPU that is behind the CPU.

The summary of `summarize` has these keys:

    source, format, producer   see `annot.profile`
    gpu_ns, attributed_gpu_ns, unattributed_gpu_ns   time of kernels, copies and memsets; exact sums
    gpu_by_sequence_ns         part of attributed_gpu_ns that was attributed by sequence number
    gpu_by_time_ns             part of attributed_gpu_ns that was attributed to the innermost range of another
                               thread at that time
    host_ns                    host time inside ranges, added up over threads; null without host times
    wall_ns                    time of the selected steps with their waits for data, or from the first to the last
                               range, added up over processes that do more than load data; null without host times
    whole_ns                   100 % of shares: gpu_ns, or without GPU activity host_ns and the time outside ranges,
                               which is wall_ns unless ranges run at the same time; null without host times
    processes                  number of these processes: those with steps, or else with ranges
    workers                    of the processes that only load data, in the whole run: processes, fetches, host_ns
    warmup_gpu_ns              part of gpu_ns that was launched in warm-up steps, or without steps in ranges named
                               warm-up
    gpu_guessed_ns             part of attributed_gpu_ns that was launched while several ranges of its process
                               were innermost, and was attributed to the one that started last
    ranges, kernels, copies, threads   counts
    devices                    process, device, busy_ns (union over streams) and span_ns of each device
    steps, step_ns             number of steps; mean, median, min, max, iqr (ns) of their times and warmup, or null
    warmup_left_out            number of warm-up steps that are not among them
    steps_found_by             words for the method that found the steps
    steps_missing              why the run has no steps, and what marks them; empty with steps
    step_kind                  kind of the steps that step_ns describes, null if unknown
    step_kinds                 kind, steps and median_ns of each kind of all steps, most frequent first
    cut                        sentences about events that could not be written or that the profiler lost, or empty
    notes                      list of sentences about open, skipped or unattributed data
"""

from __future__ import annotations

import re
from typing import Any, Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known, process_spans, without_unknown
from annot.attribution.column_ops import NONE
from annot.attribution.gpu_time import REASONS, UNATTRIBUTED
from annot.attribution.lost_work import lost_work
from annot.attribution.range_trees import Forest
from annot.attribution.step_sequences import PHASES, phase_ranges
from annot.attribution.steps import SIZES, Steps, fetches, of_main_kind, steady_steps, worker_processes
from annot.labels.foreign import WARM_UP
from annot.util.weak_keys import once_for_each

_BEHIND: Final = 1.1
"""Ratio of the time between the ends of steps on the GPU to that on the CPU from which the GPU counts as behind."""


@once_for_each
def step_spans(attribution: Attribution) -> pl.DataFrame:
    """Return process_code, step, start, end (ns), behind (Boolean): a row per step, and per wait for data before it.

    The CPU launches the kernels of a step and goes on. If nothing in the loop waits for the GPU, as in a short profile,
    the range of a step ends long before its kernels. The GPU is then behind the CPU: a step starts when the GPU has
    finished the steps before it, the first one with its first kernel, because earlier steps are not in the profile. It
    ends when the GPU has finished its kernels and copies. Otherwise start and end are those of the range.

    The rows of a process do not overlap. A step takes the sum of its rows.
    """
    table = attribution.steps.table.select("step", "start", "end", process_code="process")
    if not known(attribution.meta):
        return table.with_columns(behind=pl.lit(value=False))
    table = _add_gpu_times(table, attribution)
    behind = pl.col("behind")
    start, end = pl.when(behind).then("begin").otherwise("start"), pl.when(behind).then("until").otherwise("end")
    spans = table.select("process_code", "step", start.alias("start"), end.alias("end"), "behind", ready="start")
    return pl.concat([spans.drop("ready"), _waits(attribution.steps, attribution.whole, spans)]).sort(
        "process_code", "start"
    )


def _add_gpu_times(table: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """Add begin and until, the time of each step on a GPU that is behind, and behind."""
    steady = attribution.steps.steady().select("step", process_code="process", steady=pl.lit(value=True))
    for values in (attribution.step_work.select("process_code", "step", "first_ns", "last_ns"), steady):
        table = table.join(values, on=["process_code", "step"], how="left")
    table = table.sort("process_code", "start")
    finished = pl.col("last_ns").cum_max().forward_fill().over("process_code").alias("finished")
    table = table.with_columns(finished, first=pl.int_range(pl.len()).over("process_code") == 0)
    free = pl.when("first").then("first_ns").otherwise(pl.col("finished").shift(1).over("process_code"))
    table = table.with_columns(begin=pl.max_horizontal("start", free), until=pl.max_horizontal("end", "finished"))
    compared = pl.col("steady") & (~pl.col("first") | (pl.col("steady").sum() == 1))
    since = pl.coalesce(pl.col("end").shift(1).over("process_code"), "start")
    table = table.with_columns(on_gpu=pl.col("until") - pl.col("begin"), on_cpu=pl.col("end") - since)
    on_gpu, on_cpu = (pl.col(name).filter(compared).sum().over("process_code") for name in ("on_gpu", "on_cpu"))
    return table.with_columns(behind=on_gpu > _BEHIND * on_cpu)


def _waits(steps: Steps, forest: Forest, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the waits for data before each step, as in `Steps.with_waits`, without overlaps."""
    every = forest.every_range()
    every = every.filter((forest.labels["phase"] == "data").gather(every["label"])).drop_nulls(["start", "end"])
    process = forest.threads.table["process_code"].gather(every["thread"]).alias("process_code")
    step = steps.with_waits(forest).at(process, every["start"]).alias("step")
    free = pl.col("end").shift(1).over("process_code").alias("free")
    gaps = spans.select("process_code", "step", "behind", "ready", free)
    waits = every.select(process, step, "start", end="end").join(gaps, on=["process_code", "step"])
    waits = waits.with_columns(pl.min_horizontal("end", "ready")).sort("process_code", "start")
    earlier = pl.col("end").cum_max().shift(1).over("process_code")
    waits = waits.with_columns(pl.max_horizontal("start", "free", earlier).alias("start"))
    return waits.select("process_code", "step", "start", "end", "behind").filter(pl.col("start") < pl.col("end"))


@once_for_each
def by_step(attribution: Attribution) -> pl.DataFrame:
    """Return a row per selected step, in order of time.

    A range or launch on any thread of the process belongs to the step in which it starts.

    Returns:
        process, step (from 0, per process), batch (number in the epoch, null if unknown), kind, requests, tokens and
        context of a step of a serving engine (null: unknown), warmup (one of the first steps that take longer than the
        later ones), start_ns, host_ns, step_ns (time of the step with the wait for data before it, see
        `annot.attribution.summary`), data_ns (the wait for data since the previous step), forward_ns,
        backward_ns, optimizer_ns (total host time), gpu_ns (all GPU activities launched in the step) and kernels.
    """
    steps = attribution.steps
    table = steps.chosen()
    processes = attribution.forest.threads.table.select("process", "process_code").unique()
    rows = table.rename({"process": "process_code"}).join(processes, on="process_code", how="left")
    rows = rows.with_columns(start_ns=pl.col("start"), host_ns=pl.col("end") - pl.col("start")).sort("start")
    ranges = phase_ranges(attribution.whole)
    sums = {f"{phase}_ns": pl.col("host_ns").filter(pl.col("phase") == phase).sum() for phase in PHASES}
    placed = ranges.with_columns(steps.at(ranges["process_code"], ranges["start"]))
    phases = placed.filter(pl.col("step") != column_ops.NONE).group_by("process_code", "step").agg(**sums)
    length = pl.col("end") - pl.col("start")
    lengths = step_spans(attribution).group_by("process_code", "step").agg(step_ns=length.sum())
    for values in (phases, _data_times(ranges, steps), attribution.step_work, lengths):
        rows = rows.join(values, on=["process_code", "step"], how="left", maintain_order="left")
    counted = ["data_ns", *(f"{phase}_ns" for phase in PHASES), "gpu_ns", "kernels"]
    times = ("start_ns", "host_ns", "step_ns")
    columns = ["process", pl.col("step").cast(pl.Int64), "batch", *SIZES, "warmup", *times, *counted]
    rows = rows.with_columns(pl.col(counted).fill_null(0)).select(columns).sort("start_ns", "process")
    return without_unknown(rows, attribution.meta)


def step_statistics(steps: pl.DataFrame) -> dict[str, Any] | None:
    """Return statistics of the duration of the steps that `annot.attribution.steps.steady_steps` returns.

    Args:
        steps: the result of `by_step`.

    Returns:
        mean, median, min, max, iqr (interquartile range) in ns, and warmup (number of others of their kind). None: no
        steps.
    """
    if steps.is_empty():
        return None
    steady = steady_steps(steps)
    lengths = steady["step_ns"].sort().to_list()
    number = len(lengths)
    first, third = lengths[number // 4], lengths[3 * number // 4]
    median = (lengths[(number - 1) // 2] + lengths[number // 2]) // 2
    extremes = {"min": lengths[0], "max": lengths[-1], "iqr": third - first}
    warmup = of_main_kind(steps).height - steady.height
    return {"mean": round(sum(lengths) / number), "median": median, **extremes, "warmup": warmup}


def _data_times(ranges: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """Return data_ns of the steps. A wait for data belongs to the step in which it starts, or else to the next step."""
    waits = ranges.filter(pl.col("phase") == "data")
    waits = waits.with_columns(steps.at(waits["process_code"], waits["start"]).alias("inside")).sort("end")
    spans = steps.table.select("step", process_code="process", end="start").sort("end")
    assigned = waits.join_asof(spans, on="end", by="process_code", strategy="forward", check_sortedness=False)
    assigned = assigned.with_columns(step=pl.when(pl.col("inside") != column_ops.NONE).then("inside").otherwise("step"))
    return assigned.drop_nulls("step").group_by("process_code", "step").agg(pl.col("host_ns").sum().alias("data_ns"))


_MOST_NAMED: Final = 8


def missing_events(attribution: Attribution) -> str:
    """Return sentences about events that could not be written or that the profiler lost, or an empty text."""
    return " ".join(filter(None, (attribution.meta.get("cut", ""), lost_work(attribution))))


def summarize(attribution: Attribution) -> dict[str, Any]:
    """Return the totals of a run and notes about its limitations, with the keys in `annot.attribution.summary`.

    Args:
        attribution: the attribution of the run.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> summarize(attribute(Profile.build({})))["ranges"]
        0
    """
    lost = attribution.nodes.hstack(attribution.forest.layers_of_nodes()).filter(pl.col("layer") == UNATTRIBUTED)
    gpu, counts = _gpu_times(attribution, lost), _counts(attribution)
    return {
        **{key: attribution.meta.get(key, "") for key in ("source", "format", "producer")},
        **gpu,
        **_host_times(attribution, lost, gpu["gpu_ns"] if counts["kernels"] or counts["copies"] else None),
        **counts,
        **_steps(attribution),
        "cut": missing_events(attribution),
        "notes": _notes(attribution, lost, gpu["gpu_guessed_ns"]),
    }


def _gpu_times(attribution: Attribution, lost: pl.DataFrame) -> dict[str, Any]:
    """The time of kernels, copies and memsets."""
    nodes = attribution.nodes
    gpu, outside = int(nodes["gpu_self_ns"].sum()), int(lost["gpu_self_ns"].sum())
    span = (pl.col("last_ns") - pl.col("first_ns")).alias("span_ns")
    devices = attribution.device_busy.select("process", "device", "busy_ns", span)
    steps = by_step(attribution)
    return {
        "gpu_ns": gpu,
        "attributed_gpu_ns": gpu - outside,
        "unattributed_gpu_ns": outside,
        "gpu_by_sequence_ns": int(nodes["gpu_by_sequence_ns"].sum()),
        "gpu_by_time_ns": int(nodes["gpu_by_time_ns"].sum()),
        "warmup_gpu_ns": int(steps.filter("warmup")["gpu_ns"].sum()) if steps.height else _named_warmup_ns(attribution),
        "gpu_guessed_ns": int(attribution.names["gpu_guessed_ns"].sum()),
        "devices": devices.sort("process", "device", nulls_last=True).to_dicts(),
    }


def _named_warmup_ns(attribution: Attribution) -> int:
    """Return the GPU time (ns) in ranges named warm-up."""
    names, nodes, inside = attribution.forest.keys.names, attribution.forest.nodes, list[bool]()
    for parent, key in zip(nodes.parents, nodes.keys, strict=True):
        inside.append((parent != NONE and inside[parent]) or re.search(WARM_UP, names[key][0]) is not None)
    return int(attribution.nodes["gpu_self_ns"].filter(pl.Series(inside, dtype=pl.Boolean)).sum())


def _host_times(attribution: Attribution, lost: pl.DataFrame, gpu_ns: int | None) -> dict[str, Any]:
    """The times of processes; `lost` has the unattributed nodes, and `gpu_ns` is None without GPU activity."""
    rows = int(attribution.nodes["host_self_ns"].sum()) if known(attribution.meta) else None
    host = None if rows is None else rows - int(lost["host_self_ns"].sum())
    return {"host_ns": host, "whole_ns": rows if gpu_ns is None else gpu_ns, **_processes(attribution)}


def _counts(attribution: Attribution) -> dict[str, int]:
    """The numbers of ranges, kernels, copies and threads."""
    forest, nodes = attribution.forest, attribution.nodes
    return {
        "ranges": sum(int((ranges["id"] >= 0).sum()) for ranges in (forest.tree, forest.crossing)),  # as recorded
        "kernels": int(nodes["kernels"].sum()),
        "copies": int(nodes["copies"].sum()),
        "threads": pl.concat([forest.tree["thread"], forest.crossing["thread"]]).n_unique(),
    }


def _steps(attribution: Attribution) -> dict[str, Any]:
    """The number, durations and kinds of the steps, and how they were found."""
    rows, steps = by_step(attribution), attribution.steps
    return {
        "steps": rows.height,
        "step_ns": step_statistics(rows) if known(attribution.meta) else None,
        "warmup_left_out": steps.table.filter("warmup").height - int(rows["warmup"].sum()),
        "steps_found_by": steps.found_by,
        "steps_missing": steps.missing,
        "step_kind": next(iter(steps.steady()["kind"]), None),
        "step_kinds": steps.kinds.drop_nulls("kind").to_dicts(),
    }


def _processes(attribution: Attribution) -> dict[str, Any]:
    """The processes that train and those that only load data."""
    forest, steps = attribution.whole, attribution.steps
    loading = worker_processes(forest)
    process = forest.threads.table["process_code"]
    rows = forest.every_range()
    spans = process_spans(forest)
    of_workers = pl.col("process_code").is_in(loading.implode())
    length = pl.col("end") - pl.col("start")
    selected = spans
    if steps.choice is not None:
        chosen = steps.chosen().select("step", process_code="process")
        selected = step_spans(attribution).join(chosen, on=["process_code", "step"], how="semi")
    fetched = rows.filter(fetches(forest.labels).gather(rows["label"]))
    fetched = fetched.with_columns(process.gather(fetched["thread"])).filter(of_workers)
    return {
        "wall_ns": int(selected.select(length.sum()).item()) if known(attribution.meta) else None,
        "processes": (steps.table["process"] if steps.table.height else spans["process"]).n_unique(),
        "workers": {
            "processes": loading.len(),
            "fetches": fetched.height,
            "host_ns": int(fetched.select(length.sum()).item()),
        },
    }


def _notes(attribution: Attribution, lost: pl.DataFrame, guessed_ns: int) -> list[str]:
    numbers = dict(lost.select("module", pl.col("kernels") + pl.col("copies")).iter_rows())
    counted = (
        (
            attribution.forest.open_ranges,
            "range was still open at the end of the capture",
            "ranges were still open at the end of the capture",
        ),
        (
            attribution.forest.crossing.height,
            "range crosses others or ends on another thread, so its times overlap those of other ranges",
            "ranges cross others or end on another thread, so their times overlap those of other ranges",
        ),
        *(
            (numbers.get(reason, 0), f"kernel or copy {words}", f"kernels or copies {words}")
            for reason in REASONS
            for words in [f"with {reason}" if reason.startswith("no ") else reason]
        ),
        (
            attribution.left_out,
            "kernel or copy is outside the selected steps and left out",
            "kernels or copies are outside the selected steps and left out",
        ),
    )
    notes = [f"{count:,} {singular if count == 1 else plural}" for count, singular, plural in counted if count]
    if by_time := int(attribution.nodes["gpu_by_time_ns"].sum()):
        notes.append(
            f"{_duration(by_time)} of GPU time was launched outside any range on its thread. It is attributed to the "
            "range open on another thread (gpu_by_time_ns)."
        )
    if guessed_ns:
        notes.append(
            f"{_duration(guessed_ns)} of GPU time was launched while several layers of its process were "
            "open. It is attributed to the layer that started last, which is a guess (gpu_guessed_ns)."
        )
    if guesses := _guesses(attribution):
        more = ", …" if len(guesses) > _MOST_NAMED else ""
        notes.append(f"Phases are guessed from the names of ranges: {', '.join(guesses[:_MOST_NAMED])}{more}.")
    return [*attribution.meta.get("notes", ()), *_kinds(attribution.steps), *_ahead(attribution), *notes]


def _kinds(steps: Steps) -> list[str]:
    if steps.kinds.height < 2:
        return []
    shown = steps.steady()["kind"][0]
    kinds = [
        f"{count:,} {kind} (median {_duration(median)})"
        for kind, count, median in steps.kinds.select("kind", "steps", "median_ns").iter_rows()
    ]
    return [f"The steps are of several kinds: {', '.join(kinds)}. Step times are those of {shown} steps."]


def _ahead(attribution: Attribution) -> list[str]:
    """Return a sentence if the CPU runs ahead of the GPU."""
    behind = step_spans(attribution).filter("behind").select("step", process="process_code")
    steps = attribution.steps.steady().join(behind, on=["process", "step"], how="semi")
    if steps.is_empty():
        return []
    on_cpu = int((steps["end"] - steps["start"]).median())  # type: ignore[arg-type]
    return [
        f"The CPU runs ahead of the GPU: the range of a step takes {_duration(on_cpu)} (median), and its kernels run "
        "later. Step times are those of the GPU."
    ]


def _guesses(attribution: Attribution) -> list[str]:
    """Return the texts of the ranges whose phase follows from words in their text."""
    forest = attribution.forest
    guessed = forest.labels["plain"] & (forest.labels["phase"] != "other")
    labels = forest.label_counts()["label"].sort()
    return forest.labels["text"].gather(labels.filter(guessed.gather(labels))).unique(maintain_order=True).to_list()


def _duration(ns: int) -> str:
    """Return a time in the unit that fits."""
    units = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))
    return next((f"{ns / size:,.1f} {unit}" for unit, size in units if ns >= size), f"{ns} ns")
