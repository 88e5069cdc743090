"""Advice rule about steps that wait for data: worker processes, more of them, or cheaper loading."""

from __future__ import annotations

import math
from typing import Final

import polars as pl

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.part_names import GPU_PARTS
from annot.attribution.data_workers import fetches

__all__ = ["data_loading"]

_AFRESH: Final = 3
"""Generations of worker processes from which they seem to start in each epoch; a second loader is one more."""
_ON_GPU: Final = 8
"""Worker processes to try beside a GPU, where the number of cores is unknown."""


def data_loading(facts: Facts) -> Advice | None:
    """Steps in which devices, or the process if it uses none, wait for data."""
    share = facts.shares["data"]
    if share < 0.1:
        return None
    advice, code = _remedy(facts, share)
    return Advice("data_loading", advice, _evidence(facts, share), code, share)


def _remedy(facts: Facts, share: float) -> tuple[str, str]:
    """Return what to change, and the code. More workers are advised only if they could hide more of the wait."""
    workers, needed = facts.workers, _needed(facts, share)
    more = ", pin_memory=True, prefetch_factor=4" if facts.on_device else ""
    loader = f"DataLoader(dataset, num_workers={max(needed, workers)}, persistent_workers=True{more})"
    if not workers:
        return "Load data in worker processes, before the step needs it.", loader
    if needed > workers:
        return "Load data in more worker processes.", loader
    if _generations(facts) >= _AFRESH:
        return "Keep the worker processes of the DataLoader between epochs: starting them makes steps wait.", loader
    return (
        "Make loading cheaper: prepare the samples once, before training.",
        "samples = [dataset[i] for i in range(len(dataset))]      # if they fit into memory\n"
        f"DataLoader(samples, num_workers={workers}, persistent_workers=True)",
    )


def _needed(facts: Facts, share: float) -> int:
    """Number of workers that could hide the wait, at the speed of one more fetch per step; at most one per core."""
    if facts.on_device:
        return _ON_GPU
    needed = (facts.workers + 1) + math.floor(share / max(1 - share, 0.01))
    return min(needed, max(1, int(facts.cpu.get("cores", _ON_GPU)) // int(facts.cpu.get("ranks", 1))))


def _evidence(facts: Facts, share: float) -> str:
    waits = f"{share:.0%} of {facts.time} is spent {GPU_PARTS['data'].name}"
    if facts.on_device:
        return f"{waits} ({facts.steps.height:,} steps)"
    wait, rest = (part * facts.wall_ns / max(facts.steps.height, 1) / 1e6 for part in (share, 1 - share))
    by = {0: "the process itself fetches", 1: "1 worker of the DataLoader fetches"}
    return (
        f"{waits}, {wait:,.1f} ms in each of {facts.steps.height:,} steps, while the rest takes {rest:,.1f} ms; "
        f"{by.get(facts.workers, f'{facts.workers} workers of the DataLoader fetch')} it"
    )


def _generations(facts: Facts) -> int:
    """Number of processes of one worker that follow one another: each starts after the one before has ended."""
    forest = facts.attribution.whole
    rows = forest.every_range()
    rows = rows.filter(fetches(forest.labels).gather(rows["label"]))
    process = forest.threads.table["process_code"].gather(rows["thread"])
    rows = rows.with_columns(process, number=forest.labels["number"].gather(rows["label"]))
    lives = rows.group_by("number", "process_code").agg(pl.col("start").min(), pl.col("end").max()).sort("start")
    later = pl.col("start") >= pl.col("end").cum_max().shift(1).over("number")
    counts = lives.with_columns(later=later).group_by("number").agg(generations=1 + pl.col("later").sum())
    return int(counts["generations"].max() or 0)  # type: ignore[arg-type]
