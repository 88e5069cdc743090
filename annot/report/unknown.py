"""Questions that a profile does not answer, each with the reason and how to record the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import LAYER_PHASES
from annot.report.table import Table
from annot.report.units import printable, share

_LEAST: Final = 0.01
"""Share of the time from which it counts that its layer or work is unknown."""
_SHARE: Final = re.compile(r"[\d.]+%")
MOST_ACTIVITIES: Final = 50_000
"""Number of GPU activities up to which a table comes with the verdict and the advice; above it they take too long."""


def unknowns(table: Table) -> Iterator[str]:
    """Yield a sentence for each question that the profile of a table does not answer: the question, then the reason.

    Args:
        table: a view of a profile, with the verdict and the advice if the profile is small.
    """
    meta = table.meta
    if table.nothing:
        yield f"This table: {table.nothing}"
    if table.time != "gpu_ns":
        yield "GPU time: the profile has no GPU activity. Times are those of the CPU."
    elif not table.has_durations:
        yield "GPU time: the profile has no durations, and 0 stands for unknown. Collect `gpu__time_duration.sum`."
    if meta["host_ns"] is None:
        yield "CPU time: the profile has no times of ranges and launches."
    if meta.get("steps_missing"):
        yield f"Time of a step: no steps, because {printable(meta['steps_missing'])}."
    yield from _layers(table)
    yield from _work(table)
    if not meta.get("verdict") and meta["kernels"] + meta["copies"] > MOST_ACTIVITIES / meta.get("per_step", 1):
        limit = f"{MOST_ACTIVITIES:,} GPU activities"
        yield f"Verdict and advice: the profile has more than {limit}. The views summary and advice compute them."


def unknowns_of_ranks(tables: Mapping[int, Table]) -> Iterator[str]:
    """Yield the sentences of `unknowns` for the table of each rank, with its rank unless all ranks have the sentence.

    A sentence of which only the shares differ comes once, with those of the first rank.
    """
    ranks: dict[str, dict[int, str]] = {}
    for rank, table in tables.items():
        for sentence in unknowns(table):
            ranks.setdefault(_SHARE.sub("%", sentence), {})[rank] = sentence
    for sentences in ranks.values():
        first, *others = sentences
        some = f"{1 + len(others)} ranks, such as rank {first}" if others else f"rank {first}"
        same = len({*sentences.values()}) == 1 and len(sentences) == len(tables)
        yield sentences[first] if same else f"{sentences[first]} ({some})"


def _layers(table: Table) -> Iterator[str]:
    """Which time has no layer."""
    meta = table.meta
    if not meta["ranges"]:
        yield "Layers: the profile has no ranges. Use `emit_ranges(model)`, or `annot run --layers`."
    elif table.time == "gpu_ns" and (lost := meta["unattributed_gpu_ns"]) > _LEAST * meta["gpu_ns"]:
        yield f"Layers of {share(lost, meta['gpu_ns'])} of the GPU time: {_reasons(table)}."


def _reasons(table: Table) -> str:
    """Why GPU time is unattributed, the most frequent reason first."""
    if not {"layer", "module", "gpu_self_ns"} <= {*table.rows.columns}:
        return "it is unattributed"
    rows = table.rows.filter(pl.col("layer") == UNATTRIBUTED, pl.col("gpu_self_ns") > 0)
    return ", ".join(rows.sort("gpu_self_ns", descending=True)["module"]) or "it is unattributed"


def _work(table: Table) -> Iterator[str]:
    """Whose FLOPs are unknown, in a table of layers with FLOPs."""
    if not {"layer", "flops", "shapes", table.own_time} <= {*table.rows.columns}:
        return
    layers = table.rows.filter(pl.col("layer") != UNATTRIBUTED, pl.col("phase").is_in(LAYER_PHASES))
    if layers.is_empty():
        return
    if not layers["shapes"].list.len().sum():
        yield "FLOPs, bytes and roofs of layers: the profile has no shapes. Use `emit_ranges(model, shapes=True)`."
        return
    times = layers.select(
        whole=pl.col(table.own_time).sum(), lost=pl.col(table.own_time).filter(pl.col("flops").is_null()).sum()
    )
    whole, lost = times.row(0)
    if lost > _LEAST * whole:
        yield f"FLOPs of {share(lost, whole)} of the time in layers: shapes, hyperparameters or formulas are unknown."
    if table.is_tree and table.shares and not table.has_peaks:
        what = "Whether computing or memory bounds the other layers" if table.bounds else "What bounds each layer"
        yield f"{what}: the peaks of the device are unknown. `annot calibrate` measures them."
