"""The totals of a run, which every table has to add up to, and what could not be read or matched."""

from __future__ import annotations

from typing import Any

import polars as pl

from annot.correlate.account import REASONS, UNATTRIBUTED
from annot.correlate.attribution import Attribution
from annot.correlate.host_times import known
from annot.correlate.step_rows import by_step, step_statistics

__all__ = ["summarize"]


def summarize(attribution: Attribution) -> dict[str, Any]:
    """Return the totals and the shortcomings of a run.

    Returns:
        source, format, producer   as in `annot.profile`
        gpu_ns, attributed_gpu_ns, unattributed_gpu_ns   device time of kernels, copies and sets; exact sums
        gpu_by_sequence_ns, gpu_by_time_ns   the parts of attributed_gpu_ns that a sequence number, or the time
                                   alone, led from another thread to its layer
        host_ns                    host time covered by ranges, added over threads; null if the file knows none
        warmup_gpu_ns              the part of gpu_ns that was launched in steps of the warm-up
        gpu_guessed_ns             the part of attributed_gpu_ns that was launched while several ranges of its process
                                   were open, none in another, and went to the one that began last
        ranges, kernels, copies, threads   how many there are
        devices                    process, device, busy_ns (union over streams) and span_ns of each device
        steps, step_ns             number of steps; median, min, max, iqr (ns) and warmup of their lengths, or null
        steps_found_by             how they were found
        notes                      list of sentences: what was lost, cut, open or in no range
    """
    nodes = attribution.nodes
    gpu, lost = int(nodes["gpu_self_ns"].sum()), _unattributed(attribution)
    outside = int(lost["gpu_self_ns"].sum())
    steps = by_step(attribution)
    forest = attribution.forest
    return {
        **{key: attribution.meta.get(key, "") for key in ("source", "format", "producer")},
        "gpu_ns": gpu,
        "attributed_gpu_ns": gpu - outside,
        "unattributed_gpu_ns": outside,
        "gpu_by_sequence_ns": int(nodes["gpu_by_sequence_ns"].sum()),
        "gpu_by_time_ns": int(nodes["gpu_by_time_ns"].sum()),
        "warmup_gpu_ns": int(steps.filter("warmup")["gpu_ns"].sum()),
        "gpu_guessed_ns": attribution.guessed_ns,
        "host_ns": int(nodes["host_self_ns"].sum()) if known(attribution.meta) else None,
        "ranges": forest.tree.height + forest.loose.height,
        "kernels": int(nodes["kernels"].sum()),
        "copies": int(nodes["copies"].sum()),
        "threads": pl.concat([forest.tree["thread"], forest.loose["thread"]]).n_unique(),
        "devices": _devices(attribution),
        "steps": steps.height,
        "step_ns": step_statistics(steps) if known(attribution.meta) else None,
        "steps_found_by": attribution.steps.found_by,
        "notes": _notes(attribution, lost),
    }


def _unattributed(attribution: Attribution) -> pl.DataFrame:
    """The work that belongs to no range: reason, gpu_self_ns, kernels, copies."""
    names = attribution.forest.keys.names
    reason = [names[key][1] if names[key][0] == UNATTRIBUTED else None for key in attribution.forest.nodes.keys]
    table = attribution.nodes.with_columns(pl.Series("reason", reason, pl.String))
    return table.drop_nulls("reason").select("reason", "gpu_self_ns", "kernels", "copies")


def _devices(attribution: Attribution) -> list[dict[str, Any]]:
    span = pl.col("last_ns") - pl.col("first_ns")
    rows = attribution.device_busy.select("process", "device", "busy_ns", span.alias("span_ns"))
    return rows.sort("process", "device", nulls_last=True).to_dicts()


def _notes(attribution: Attribution, lost: pl.DataFrame) -> list[str]:
    pieces = {reason: kernels + copies for reason, _, kernels, copies in lost.iter_rows()}
    late = attribution.nodes["gpu_by_time_ns"].sum()
    found = (
        (attribution.forest.open_ranges, "range", "ranges", "never closed, counted to the end of the capture"),
        (attribution.forest.loose.height, "range", "ranges", "across others or across threads, counted beside them"),
        *((pieces.get(reason, 0), "kernel or copy", "kernels or copies", _in_words(reason)) for reason in REASONS),
        (attribution.left_out, "kernel or copy", "kernels or copies", "in other steps, or in none, left out"),
    )
    counted = [f"{count:,} {one if count == 1 else many} {what}" for count, one, many, what in found if count]
    if late:
        counted.append(
            f"{late:,} ns of device time were launched in no range of their own thread and follow the one of "
            "another thread at that time (column gpu_by_time_ns)"
        )
    if attribution.guessed_ns:
        counted.append(
            f"{attribution.guessed_ns:,} ns of device time were launched while several layers ran at the same time and "
            "follow the one that began last: a guess"
        )
    return [*attribution.meta.get("notes", ()), *counted]


def _in_words(reason: str) -> str:
    return f"with {reason}" if reason.startswith("no ") else reason
