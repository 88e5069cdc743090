"""Advice rule about steps that wait for data: worker processes, more of them, or cheaper loading."""

from __future__ import annotations

import math
from typing import Final

import polars as pl

from annot.analyze.advice.facts import Advice, Facts, Loader
from annot.analyze.device_names import short_time
from annot.analyze.part_names import GPU_PARTS
from annot.attribution.steps import fetches

__all__ = ["data_loading"]

_LEAST: Final = 0.1
"""Share of the step from which waiting for data is worth a change."""
_AFRESH: Final = 3
"""Generations of worker processes that show a restart in each epoch. Two can be those of two loaders."""
_ON_GPU: Final = 8
"""Worker processes to try beside a GPU, where the number of cores is unknown."""


def data_loading(facts: Facts) -> Advice | None:
    """Steps in which devices, or the process if it uses none, wait for data.

    Evidence: ranges around the wait for each batch, with at least 10 % of the step time. Advice about worker processes
    needs to know whether the loader has some: from the ranges of their fetches, from the loader's mark, or from the
    iterator that torch.profiler names. Single late batches need steps of which most hardly wait.
    """
    share = facts.shares["data"]
    if share < _LEAST:
        return None
    late = _late_steps(facts)
    if late.height:
        advice, code = _remedy_of_late_batches(facts, late)
        return Advice("late_batches", advice, _evidence(facts, share), code, share)
    advice, code = _remedy(facts, share)
    return Advice("data_loading", advice, _evidence(facts, share), code, share)


def _late_steps(facts: Facts) -> pl.DataFrame:
    """The steps that wait for data, if the others hardly wait: step, batch, data_ns; the longest first.

    Several workers deliver their batches together, so that one step of several waits although all batches are slow.
    """
    steps = facts.steps.select("step", "batch", "data_ns", "step_ns").sort("data_ns", descending=True)
    late = steps.filter(pl.col("data_ns") > pl.col("data_ns").mean())
    usual = _median(steps["data_ns"]) * steps.height
    bursts = max(facts.loader.workers or (_ON_GPU if facts.loader.some else 1), 1)
    few = late.height * bursts < steps.height / 2 and usual < _LEAST * int(steps["step_ns"].sum())
    return late if few else late.clear()


def _remedy_of_late_batches(facts: Facts, late: pl.DataFrame) -> tuple[str, str]:
    """Return what to change if few batches are late, and the code."""
    of = f"{late.height} of {facts.steps.height:,} batches {'is' if late.height == 1 else 'are'} late"
    code = f"annot report {facts.source} --by step"
    if (late["batch"] == 0).all() and facts.loader.some and not facts.loader.persistent:
        return f"Keep the worker processes of the DataLoader between epochs: {of}.", f"{_loader(facts, 0)}\n{code}"
    return f"Find out why single batches take long, such as the first of an epoch or large samples: {of}.", code


def _remedy(facts: Facts, share: float) -> tuple[str, str]:
    """Return what to change, and the code. More workers are advised only if they could hide more of the wait."""
    loader, needed = facts.loader, _needed(facts, share)
    code = _loader(facts, needed)
    if loader.workers is None:
        if loader.some:
            return "Load data in more worker processes, or make loading cheaper.", code
        return (
            "Load data in worker processes, or in more of them if the loader has some. Or make loading cheaper.",
            code,
        )
    if not loader.workers:
        return "Load data in worker processes, before the step needs it.", code
    if needed > loader.workers:
        return "Load data in more worker processes.", code
    if _generations(facts) >= _AFRESH and not loader.persistent:
        return "Keep the worker processes of the DataLoader between epochs: starting them makes steps wait.", code
    return (
        "Make loading cheaper: prepare the samples once, before training.",
        "samples = [dataset[i] for i in range(len(dataset))]      # if they fit into memory\n"
        f"DataLoader(samples, num_workers={loader.workers}, persistent_workers=True)",
    )


def _loader(facts: Facts, workers: int) -> str:
    """Code of a DataLoader with at least so many workers."""
    pinned = ", pin_memory=True" if facts.on_device and not facts.loader.pinned else ""
    ahead = ", prefetch_factor=4" if facts.on_device else ""
    count = max(workers, facts.loader.workers or 1)
    return f"DataLoader(dataset, num_workers={count}, persistent_workers=True{pinned}{ahead})"


def _needed(facts: Facts, share: float) -> int:
    """Number of workers that could hide the wait, at the speed of one more fetch per step; at most one per core."""
    if facts.on_device:
        return _ON_GPU
    needed = ((facts.loader.workers or 0) + 1) + math.floor(share / max(1 - share, 0.01))
    return min(needed, max(1, int(facts.cpu.get("cores", _ON_GPU)) // int(facts.cpu.get("ranks", 1))))


def _evidence(facts: Facts, share: float) -> str:
    waits = f"{share:.0%} of {facts.time} is spent {GPU_PARTS['data'].name}{_times(facts, share)}"
    return waits if facts.in_keras else f"{waits}; {_loaded_by(facts.loader)}"


def _times(facts: Facts, share: float) -> str:
    """The wait of the median step and of the longest wait, and the rest of a step on the CPU; empty without steps."""
    steps = facts.steps.sort("data_ns", descending=True)
    if steps.height < 2 or not steps["data_ns"][0]:
        return ""
    median, most = (short_time(ns) for ns in (_median(steps["data_ns"]), steps["data_ns"][0]))
    each = f", {median} in each of {steps.height:,} steps"
    if median != most:
        each = f", {median} in the median of {steps.height:,} steps and {most} before step {steps['step'][0]}"
    rest = short_time((1 - share) * facts.wall_ns / steps.height)
    return each if facts.on_device else f"{each}, while the rest of a step takes {rest}"


def _loaded_by(loader: Loader) -> str:
    if loader.workers is None:
        unknown = "the profile does not show whether worker processes load the data"
        return "worker processes of the DataLoader load the data" if loader.some else unknown
    by = {0: "the process itself loads the data", 1: "1 DataLoader worker loads the data"}
    return by.get(loader.workers, f"{loader.workers} DataLoader workers load the data")


def _median(times: pl.Series) -> float:
    return float(times.quantile(0.5) or 0)


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
