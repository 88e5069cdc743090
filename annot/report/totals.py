"""Totals of a report in words: GPU and host time, steps, and the breakdown of the step time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from annot.report.units import duration, share
from annot.report.views import Report

__all__ = ["totals"]


def totals(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the head and the text of each line."""
    meta = report.meta
    per_step = _per_step(meta)
    if meta["kernels"] or meta["copies"]:
        yield f"GPU{per_step}", _device_line(meta)
    yield f"Host{per_step if meta['host_ns'] is not None else ''}", _host_line(meta)
    if meta["steps"]:
        yield "Steps", _step_line(meta)
    if report.shares and (meta["steps"] or meta["kernels"]):
        parts = sorted(report.shares.items(), key=lambda part: -part[1])
        words = {"tensor_cores": meta.get("matrix_units", "Tensor Cores").lower()}
        yield "Step time", ", ".join(f"{part:.1%} {words.get(name, name.replace('_', ' '))}" for name, part in parts)


def _device_line(meta: dict[str, Any]) -> str:
    whole = meta["gpu_ns"]
    parts = [
        f"{duration(meta[key])} {word} ({share(meta[key], whole) or '0.0%'})"
        for key, word in (("attributed_gpu_ns", "in ranges"), ("unattributed_gpu_ns", "unattributed"))
    ]
    warmup = meta.get("warmup_gpu_ns") if "per_step" not in meta else None
    more = f", {duration(warmup)} of it in warm-up" if warmup else ""
    return f"{duration(whole)} = {parts[0]} + {parts[1]}{more}"


def _per_step(meta: dict[str, Any]) -> str:
    if "per_step" not in meta:
        return ""
    steps = meta["per_step"]
    kind = f"{meta['step_kind']} step" if meta.get("step_kind") else "step"
    return f" in one {kind}" if steps == 1 else f" per {kind}, mean of {steps:,}"


def _host_line(meta: dict[str, Any]) -> str:
    threads = "1 thread" if meta["threads"] == 1 else f"{meta['threads']} threads"
    ranges = f"{'1 range' if meta['ranges'] == 1 else format(meta['ranges'], ',') + ' ranges'} on {threads}"
    times = meta["host_ns"]
    if times is None:
        return f"times unknown, {ranges}"
    return f"{duration(times)} in {ranges}"


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
    median, iqr, least, most = (duration(times[name]) for name in ("median", "iqr", "min", "max"))
    if least.split()[1:] == most.split()[1:]:  # same unit: show it once
        least = least.split()[0]
    return f"{steps}, median {median}, IQR {iqr}, {least} to {most}{warmup}"
