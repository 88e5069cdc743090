"""What differs between ranks: who is slow in which layer, and who waits for whom in collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import polars as pl

from annot.correlate.account import UNATTRIBUTED
from annot.correlate.attribution import Attribution

__all__ = ["KEYS", "across_ranks", "collective_work", "spread_of", "with_collectives", "work_time"]

KEYS: Final = {
    "layer": ("layer", "module", "phase"),
    "work": ("layer", "module", "phase"),
    "module": ("module", "phase"),
    "phase": ("phase",),
    "op": ("op", "phase"),
    "kernel": ("name", "kernel"),
    "step": ("step",),
}
"""The columns that say what a row is, for each way of adding up; the other columns are numbers."""

_COLLECTIVE: Final = r"(?i)(^|[\s:])(nccl|rccl|msccl)"
"""Kernels of NCCL and RCCL, whatever the version: ncclDevKernel_AllReduce..., ncclKernel_..., ncclAllReduceRing..."""


def collective_work(attribution: Attribution) -> pl.DataFrame:
    """Return the kernels in which ranks talk to each other, and wait: rows of `Attribution.names`."""
    return attribution.names.filter(_is_collective())


def with_collectives(
    rows: pl.DataFrame, attribution: Attribution, by: str, group: Callable[[Attribution], pl.DataFrame]
) -> pl.DataFrame:
    """Return the rows with `collective_ns`, the part of their gpu_ns that collectives took; null: not known.

    Args:
        rows: what `group` returned.
        attribution: what it was given.
        by: what a row stands for, one of `KEYS`.
        group: `annot.correlate.by_layer` or another.
    """
    if by == "kernel":
        return rows.with_columns(pl.when(_is_collective()).then("gpu_ns").otherwise(0).alias("collective_ns"))
    if by not in ("layer", "module", "phase"):
        return rows.with_columns(pl.lit(None, pl.Int64).alias("collective_ns"))
    times = collective_work(attribution).group_by("node").agg(pl.col("gpu_ns").sum().alias("gpu_self_ns"))
    nodes = attribution.nodes.drop("gpu_self_ns").with_row_index("node").with_columns(pl.col("node").cast(pl.Int32))
    nodes = nodes.join(times, on="node", how="left", maintain_order="left").drop("node")
    nodes = nodes.with_columns(pl.col("gpu_self_ns").fill_null(0))
    nothing = pl.zeros(attribution.loose_gpu_ns.len(), pl.Int64, eager=True)
    keys = list(KEYS[by])
    part = group(replace(attribution, nodes=nodes, loose_gpu_ns=nothing))
    part = part.select(*keys, pl.col("gpu_ns").alias("collective_ns"))
    return rows.join(part, on=keys, how="left", maintain_order="left")


def work_time(time: str) -> pl.Expr:
    """Return the time in which ranks are compared: `time`, on devices without the part in collectives.

    Whoever is slow makes the others wait in collectives, so that theirs are long and its own are short.

    Args:
        time: a column beside collective_ns.
    """
    if time.startswith("gpu_"):
        return pl.col(time) - pl.col("collective_ns").fill_null(0)
    return pl.col(time)


def across_ranks(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return how ranks differ: a row per layer, in order of first appearance.

    Args:
        rows: rank, the columns of `KEYS`, work_ns as `work_time` gives it, and collective_ns, of all ranks.
        by: what a row stands for, one of `KEYS`.

    Returns:
        The columns of `KEYS`; ranks: how many have the row; median_ns, min_ns, max_ns of their work_ns; slowest:
        the rank with the longest, the lowest of equals; spread_ns: longest less shortest; and
        collective_median_ns. All Int64; null where no time is known.

    Example:
        >>> rows = pl.DataFrame({"rank": [0, 1, 2], "phase": "forward", "work_ns": [5, 9, 6], "collective_ns": 0})
        >>> across_ranks(rows, "phase").row(0)
        ('forward', 3, 6, 5, 9, 1, 4, 0)
    """
    work = pl.col("work_ns")
    table = rows.sort("rank", maintain_order=True).group_by(list(KEYS[by]), maintain_order=True).agg(
        pl.col("rank").n_unique().cast(pl.Int64).alias("ranks"),
        _median("work_ns").alias("median_ns"),
        work.min().alias("min_ns"),
        work.max().alias("max_ns"),
        pl.col("rank").filter(work == work.max()).min().alias("slowest"),
        (work.max() - work.min()).alias("spread_ns"),
        _median("collective_ns").alias("collective_median_ns"),
    )  # fmt: skip
    last = [pl.col(name) == UNATTRIBUTED for name in ("layer", "phase") if name in KEYS[by]]
    return table.sort(*last, maintain_order=True) if last else table


def spread_of(ranks: pl.DataFrame) -> dict[str, int] | None:
    """Return how a time differs between ranks.

    Args:
        ranks: rank and ns, a row each; a rank without a time, or with 0, takes no part.

    Returns:
        ranks: how many take part; median, min, max (ns) of their times; fastest and slowest: the ranks with the
        least and the most, the lowest of equals. None if no rank takes part.
    """
    times = ranks.filter(pl.col("ns") > 0).sort("ns", "rank")
    if times.is_empty():
        return None
    most = times.filter(pl.col("ns") == pl.col("ns").max())
    return {
        "ranks": times.height, "median": times.select(_median("ns")).item(), "min": times["ns"][0],
        "max": most["ns"][0], "fastest": times["rank"][0], "slowest": most["rank"][0],
    }  # fmt: skip


def _is_collective() -> pl.Expr:
    return pl.col("name").cast(pl.String).str.contains(_COLLECTIVE).fill_null(False)


def _median(name: str) -> pl.Expr:
    """The middle of integers, exactly; of an even number, what lies between the two in the middle, rounded down."""
    values = pl.col(name).drop_nulls().sort()
    low, high = values.get((values.len() - 1) // 2, null_on_oob=True), values.get(values.len() // 2, null_on_oob=True)
    return low + (high - low) // 2
