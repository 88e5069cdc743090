"""Totals of a report in words: GPU and host time, steps, and the breakdown of the time of a step or run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from annot.analyze.tensor_cores import matrix_units, precision_words
from annot.report.table import Table
from annot.report.units import amount, count, duration, printable, share


def totals(report: Table) -> Iterator[tuple[str, str]]:
    """Yield the head and the text of each line."""
    meta = report.meta
    per_step = _step_suffix(meta)
    if meta["kernels"] or meta["copies"]:
        yield f"GPU{per_step}", _device_line(meta)
    yield f"Host{per_step if meta['host_ns'] is not None else ''}", _host_line(meta)
    if meta["processes"] > 1:
        yield "Processes", f"{meta['processes']:,}. Times are sums over processes; --by-process compares the processes"
    if meta["steps"]:
        yield "Steps", _step_line(meta)
    elif meta.get("steps_missing"):
        yield "Steps", f"no steps, because {meta['steps_missing']}"
    if times := parts_of_time(report):
        yield times[0], ", ".join(times[1])
    if "peaks" in meta:
        yield "Peaks", printable(peaks_text(meta["peaks"]))


def parts_of_time(report: Table) -> tuple[str, list[str]] | None:
    """Return the name of the time that the parts add up to, and the parts, the longest first; None: unknown."""
    meta = report.meta
    if not report.shares or not (meta["steps"] or meta["kernels"]):
        return None
    shares = sorted(report.shares.items(), key=lambda named_share: -named_share[1])
    run = "Run time without warm-up" if meta.get("without_warmup") else "Run time"
    return "Step time" if meta["step_ns"] else run, [f"{share:.1%} {name}" for name, share in shares]


def peaks_text(peaks: Mapping[str, Any], units: str = "") -> str:
    """Return the peaks of a device in words, with their source, from `annot.analyze.peaks.Peaks.as_meta`.

    `units` is the name of the matrix units, by default those of the device that the peaks name.

    Example:
        >>> peaks_text({"device": "A100", "flops": {"f32": 19.5e12}, "bandwidth": 2.04e12, "source": "its data sheet"})
        'A100: 2.04 TB/s, f32 19.5 TFLOP/s (its data sheet)'
    """
    device = f"{peaks['device']}: " if peaks["device"] else ""
    if not peaks["flops"]:
        return f"{device}unknown. {peaks['source']}"
    bandwidth = "bandwidth unknown" if peaks["bandwidth"] is None else f"{amount(peaks['bandwidth'])}B/s"
    units = units or matrix_units({"devices": [{"name": peaks["device"]}]})
    named = ((precision_words(name, units), rate) for name, rate in peaks["flops"].items())
    flops = [f"{name} {amount(rate)}FLOP/s".removeprefix("any ") for name, rate in named]
    return f"{device}{', '.join([bandwidth, *flops])} ({peaks['source']})"


def _device_line(meta: dict[str, Any]) -> str:
    whole = meta["gpu_ns"]
    texts = [
        f"{duration(meta[key])} {word} ({share(meta[key], whole) or '0.0%'})"
        for key, word in (("attributed_gpu_ns", "in ranges"), ("unattributed_gpu_ns", "unattributed"))
    ]
    warmup = meta.get("warmup_gpu_ns") if "per_step" not in meta else None
    more = f", {duration(warmup)} of it in warm-up" if warmup else ""
    return f"{duration(whole)} = {texts[0]} + {texts[1]}{more}"


def _step_suffix(meta: dict[str, Any]) -> str:
    if "per_step" not in meta:
        return ""
    steps = meta["per_step"]
    kind = f"{meta['step_kind']} step" if meta.get("step_kind") else "step"
    return f" in one {kind}" if steps == 1 else f" per {kind}, mean of {steps:,}"


def _host_line(meta: dict[str, Any]) -> str:
    threads = "1 thread" if meta["threads"] == 1 else f"{meta['threads']} threads"
    ranges = f"{'1 range' if meta['ranges'] == 1 else count(meta['ranges']) + ' ranges'} on {threads}"
    times = meta["host_ns"]
    if times is None:
        return f"times unknown, {ranges}"
    return f"{duration(times)} in {ranges}{_process_suffix(meta)}{_overlaps(meta)}"


def _overlaps(meta: dict[str, Any]) -> str:
    """Why shares of rows differ from shares of the step: without a GPU they are of the sum of the rows."""
    if meta["kernels"] or meta["copies"] or meta["whole_ns"] <= meta["wall_ns"]:
        return ""
    what = "step" if "per_step" in meta else "run"
    wall, whole = duration(meta["wall_ns"]), duration(meta["whole_ns"])
    return f". Some ranges overlap: the {what} takes {wall}, and shares are of {whole}, the sum of the rows"


def _process_suffix(meta: dict[str, Any]) -> str:
    """The processes over which the host time is a sum, and the time of those that load data, which steps lack."""
    several = f", the sum over {meta['processes']:,} processes" if meta["processes"] > 1 else ""
    workers = meta["workers"]
    if not workers["fetches"]:
        return several
    count = "1 worker process" if workers["processes"] == 1 else f"{workers['processes']:,} worker processes"
    if "per_step" not in meta:
        return f"{several}, {duration(workers['host_ns'])} of it in {count} that load data"
    mean = duration(workers["host_ns"] / workers["fetches"])
    return f"{several}, without {count} that load data ({mean} per batch)"


def _step_line(meta: dict[str, Any]) -> str:
    """Number of steps, how they were found, and their time without the warm-up."""
    times, warmup = meta["step_ns"], ""
    steps = f"{meta['steps']:,} ({meta['steps_found_by']})"
    if times is None:
        return steps
    if number := times["warmup"] or meta.get("warmup_left_out"):
        warmup = f", excluding {number:,} warm-up step{'' if number == 1 else 's'}"
    if meta["steps"] - times["warmup"] == 1:
        return f"{steps}, {duration(times['median'])}{warmup}"
    mean, median, iqr, least, most = (duration(times[name]) for name in ("mean", "median", "iqr", "min", "max"))
    if least.split()[1:] == most.split()[1:]:  # same unit: show it once
        least = least.split()[0]
    return f"{steps}, mean {mean}, median {median}, IQR {iqr}, {least} to {most}{warmup}"
