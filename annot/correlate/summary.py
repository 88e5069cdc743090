"""The totals of a run, which every table has to add up to, and what could not be read or matched."""

from __future__ import annotations

from typing import Any

import polars as pl

from annot.correlate.attribution import Attribution
from annot.correlate.steps import by_step

__all__ = ["summarize"]


def summarize(attribution: Attribution) -> dict[str, Any]:
    """Return the totals and the shortcomings of a run.

    Returns:
        source, format, producer   as in `annot.profile`
        gpu_ns, attributed_gpu_ns, unattributed_gpu_ns   device time of kernels, copies and sets; exact sums
        host_ns                    host time covered by ranges, added over threads
        ranges, kernels, copies, threads   how many there are
        steps, step_ns             number of batches; length of the median, shortest and longest (ns), or null
        notes                      list of sentences: what was lost, cut, open or in no range
    """
    work, tree = attribution.work, attribution.tree
    gpu, attributed = _total(work["gpu_ns"]), _total(tree["gpu_self_ns"])
    kernels = int(work["kernel"].sum())
    steps = by_step(attribution)
    return {
        **{key: attribution.meta.get(key, "") for key in ("source", "format", "producer")},
        "gpu_ns": gpu,
        "attributed_gpu_ns": attributed,
        "unattributed_gpu_ns": gpu - attributed,
        "host_ns": _total(tree["host_self_ns"]),
        "ranges": tree.height + attribution.loose.height,
        "kernels": kernels,
        "copies": work.height - kernels,
        "threads": pl.concat([tree["thread"], attribution.loose["thread"]]).n_unique(),
        "steps": steps.height,
        "step_ns": _spread(steps["host_ns"]),
        "notes": _notes(attribution),
    }


def _total(times: pl.Series) -> int:
    return int(times.sum())


def _spread(lengths: pl.Series) -> dict[str, int] | None:
    if lengths.is_empty():
        return None
    ordered = lengths.sort().to_list()
    return {"median": ordered[len(ordered) // 2], "min": ordered[0], "max": ordered[-1]}


def _notes(attribution: Attribution) -> list[str]:
    work = attribution.work
    unlaunched = work["start"].null_count()
    outside = work["range"].null_count() - unlaunched
    found = (
        (attribution.open_ranges, "range", "ranges", "never closed, counted to the end of the capture"),
        (attribution.loose.height, "range", "ranges", "across others or across threads, counted beside them"),
        (outside, "kernel or copy", "kernels or copies", "launched outside any range"),
        (unlaunched, "kernel or copy", "kernels or copies", "without a recorded launch"),
    )
    counted = [f"{count:,} {one if count == 1 else many} {what}" for count, one, many, what in found if count]
    return [*attribution.meta.get("notes", ()), *counted]
