"""Skew between ranks: the slowest rank of each layer, and the time in collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from annot.analyze.communication import COLLECTIVE
from annot.attribution.attribute import Attribution
from annot.attribution.column_ops import inside
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.nesting import KEY
from annot.report.views import View

_COLLECTIVE: Final = r"(?i)(^|[\s:])(nccl|rccl|msccl)"
"""Kernels of NCCL, RCCL and MSCCL of all versions: ncclDevKernel_AllReduce..., ncclKernel_..., ncclAllReduceRing..."""


def collective_time(attribution: Attribution) -> tuple[int, int]:
    """Return the time (ns) in collectives and their number.

    They are the communication kernels (NCCL, RCCL), or in a profile without GPU activity the ranges of collectives.
    """
    if _has_gpu_activity(attribution):
        kernels = attribution.names.filter(_is_collective())
        return int(kernels["gpu_ns"].sum()), int(kernels["calls"].sum())
    ranges = attribution.nodes.filter(_waits(attribution))
    return int(ranges["host_self_ns"].sum()), int(ranges["calls"].sum())


def with_collectives(rows: pl.DataFrame, attribution: Attribution, view: View, steps: int) -> pl.DataFrame:
    """Return the rows of a view with `collective_ns`, the part of their main time in collectives; null: unknown.

    The main time is gpu_ns, or host_ns in a profile without GPU activity. `steps` is the number of steps by which the
    times of the rows are divided.
    """
    if view.key == "kernel":
        return rows.with_columns(pl.when(_is_collective()).then("gpu_ns").otherwise(0).alias("collective_ns"))
    if view.key not in ("layer", "module", "phase"):
        return rows.with_columns(pl.lit(None, pl.Int64).alias("collective_ns"))
    name = "gpu_ns" if _has_gpu_activity(attribution) else "host_ns"
    collectives = view.rows(_only_collectives(attribution))
    time = pl.col(name) if steps == 1 else pl.col(name) / steps
    collectives = collectives.select(*view.keys, time.alias("collective_ns"))
    return rows.join(collectives, on=list(view.keys), how="left", maintain_order="left")


def _only_collectives(attribution: Attribution) -> Attribution:
    """Return the attribution without the times outside collectives."""
    if not _has_gpu_activity(attribution):
        own = pl.when(_waits(attribution)).then("host_self_ns").otherwise(0)
        nodes = attribution.nodes.with_columns(host_self_ns=own, host_overlap_ns=pl.lit(0, pl.Int64))
        forest = replace(attribution.forest, crossing=attribution.forest.crossing.clear())
        return replace(attribution, nodes=nodes, forest=forest, crossing_gpu_ns=attribution.crossing_gpu_ns.clear())
    kernels = attribution.names.filter(_is_collective())
    times = kernels.group_by("node").agg(pl.col("gpu_ns").sum().alias("gpu_self_ns"))
    nodes = attribution.nodes.drop("gpu_self_ns").with_row_index("node").with_columns(pl.col("node").cast(pl.Int32))
    nodes = nodes.join(times, on="node", how="left", maintain_order="left").drop("node")
    nodes = nodes.with_columns(pl.col("gpu_self_ns").fill_null(0))
    zeros = pl.zeros(attribution.crossing_gpu_ns.len(), pl.Int64, eager=True)
    return replace(attribution, nodes=nodes, crossing_gpu_ns=zeros)


def _has_gpu_activity(attribution: Attribution) -> bool:
    return bool(attribution.nodes.select((pl.col("kernels") + pl.col("copies")).sum()).item())


def _waits(attribution: Attribution) -> pl.Series:
    """Return which nodes are ranges of collectives, or lie in one (Boolean)."""
    own = attribution.forest.layers_of_nodes().select(found=COLLECTIVE).to_series()
    return own | inside(own, attribution.nodes["parent"])


def work_time(time: str) -> pl.Expr:
    """Return the time by which ranks are compared: the GPU or host time `time` without collectives.

    A slow rank makes the other ranks wait in collectives. Their collectives are long, and its own are short.
    """
    if time.startswith(("gpu_", "host_")):
        return pl.col(time) - pl.col("collective_ns").fill_null(0)
    return pl.col(time)


def across_ranks(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the differences between ranks, a row per key, in order of first appearance.

    Args:
        rows: rank, the keys, work_ns (see `work_time`) and collective_ns, of all ranks.
        keys: columns that identify a row.

    Returns:
        The keys; ranks: number of ranks with the row; median_ns, min_ns, max_ns of work_ns; slowest: the
        rank with the maximum, the lowest rank if several have it; spread_ns: maximum minus minimum; and
        collective_median_ns. All Int64; null if the time is unknown.

    Example:
        >>> rows = pl.DataFrame({"rank": [0, 1, 2], "phase": "forward", "work_ns": [5, 9, 6], "collective_ns": 0})
        >>> across_ranks(rows, ["phase"]).row(0)
        ('forward', 3, 6, 5, 9, 1, 4, 0)
    """
    work = pl.col("work_ns")
    ranked = rows.sort("rank", maintain_order=True).group_by(list(keys), maintain_order=True)
    table = ranked.agg(
        pl.col("rank").n_unique().cast(pl.Int64).alias("ranks"),
        _median("work_ns").alias("median_ns"),
        work.min().alias("min_ns"),
        work.max().alias("max_ns"),
        pl.col("rank").filter(work == work.max()).min().alias("slowest"),
        (work.max() - work.min()).alias("spread_ns"),
        _median("collective_ns").alias("collective_median_ns"),
    )
    last = [pl.col(name) == UNATTRIBUTED for name in ("layer", "phase") if name in keys]
    return table.sort(*last, maintain_order=True) if last else table


def skew_of(collectives: Mapping[int, pl.DataFrame]) -> pl.DataFrame:
    """Split the time in collectives into skew and transfer.

    A collective ends on all ranks together, soon after its last rank arrives. The shortest duration among the ranks is
    the transfer. The rest of a longer duration is skew: the wait for the last rank. This comparison needs no common
    clock. The n-th collective of an operation and process group is the same one on all ranks. Collectives without a
    group count as collectives of all ranks. Collectives are left out if the ranks have different numbers of them, if
    the number of ranks differs from the size of the group, or if a rank uses several devices.

    Args:
        collectives: `annot.analyze.communication.Collectives.table` of each rank.

    Returns:
        rank, layer, module, phase, skew_ns, transfer_ns of the collectives that start in the steps.
    """
    tables = [table.select(pl.lit(rank, pl.Int64).alias("rank"), *_SEQUENCE) for rank, table in collectives.items()]
    rows = pl.concat(tables).sort("rank", "start", maintain_order=True)
    same = ("operation", "group")
    one_device = (pl.col("device").n_unique().over("rank") == 1).alias("one_device")
    rows = rows.with_columns(one_device, number=pl.int_range(pl.len()).over("rank", *same))
    counts = rows.group_by("rank", *same).agg(
        pl.len().alias("count"), pl.col("ranks").max(), pl.col("one_device").all()
    )
    whole = (pl.len() > 1) & (pl.len() == pl.col("ranks").max().fill_null(pl.len())) & pl.col("one_device").all()
    comparable = counts.group_by(same).agg(matched=whole & (pl.col("count").n_unique() == 1)).filter("matched")
    rows = rows.join(comparable.select(same), on=same, how="semi")
    ns = pl.col("end") - pl.col("start")
    rows = rows.with_columns(ns=ns, transfer_ns=ns.min().over(*same, "number")).filter(pl.col("calls") > 0)
    skew = (pl.col("ns") - pl.col("transfer_ns")).sum().alias("skew_ns")
    return rows.group_by("rank", *KEY).agg(skew, pl.col("transfer_ns").sum())


_SEQUENCE: Final = ("device", "start", "end", "calls", *KEY, "operation", pl.col("group").fill_null(""), "ranks")


def arrivals(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the differences between ranks by layer, from the rows of `skew_of`.

    Returns:
        layer, module, phase; skew_median_ns, transfer_median_ns; late: the rank with the least skew, which the others
        wait for; null if all ranks arrive together.
    """
    least = pl.col("rank").filter(pl.col("skew_ns") == pl.col("skew_ns").min()).min()
    return rows.group_by(KEY).agg(
        _median("skew_ns").alias("skew_median_ns"),
        _median("transfer_ns").alias("transfer_median_ns"),
        late=pl.when(pl.col("skew_ns").max() > pl.col("skew_ns").min()).then(least),
    )


def spread_of(times: Mapping[int, float | None]) -> dict[str, int] | None:
    """Return the statistics of a time over ranks, from the time of each rank (ns); None and 0 are ignored.

    Returns:
        ranks: number of ranks; median, min, max (ns); fastest and slowest: the rank with the minimum and the maximum,
        the lowest rank if several have it. None if all ranks are ignored.
    """
    ranked = sorted((int(ns), rank) for rank, ns in times.items() if ns is not None and int(ns) > 0)
    if not ranked:
        return None
    low, high, most = ranked[(len(ranked) - 1) // 2][0], ranked[len(ranked) // 2][0], ranked[-1][0]
    return {
        "ranks": len(ranked),
        "median": low + (high - low) // 2,
        "min": ranked[0][0],
        "max": most,
        "fastest": ranked[0][1],
        "slowest": next(rank for ns, rank in ranked if ns == most),
    }


def _is_collective() -> pl.Expr:
    return pl.col("name").cast(pl.String).str.contains(_COLLECTIVE).fill_null(False)


def _median(name: str) -> pl.Expr:
    """Return the exact integer median; the mean of the two middle values is rounded down."""
    values = pl.col(name).drop_nulls().sort()
    low, high = values.get((values.len() - 1) // 2, null_on_oob=True), values.get(values.len() // 2, null_on_oob=True)
    return low + (high - low) // 2
