"""Time of the experts of a mixture, and their imbalance: of layers named ``experts.N``, as in Mixtral or DeepSeek."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution import by_layer
from annot.attribution.attribute import Attribution

__all__ = ["by_expert"]

_EXPERT: Final = r"^((?:.*\.)?(?:local_)?experts)\.(\d{1,9})$"


def by_expert(attribution: Attribution) -> pl.DataFrame:
    """Return the time of the experts in each group of experts and phase, with the layers inside.

    The experts of one process run one after the other. Those of several ranks run at once, and the ranks wait for the
    busiest one: compare the ranks of a run by this view.

    Returns:
        path: of the group; phase; experts: number of experts that ran; calls, gpu_ns, host_ns: sums over the
        experts; mean_ns, busiest_ns: mean time of an expert, and the longest, on the GPU or else on the host; busiest:
        number of that expert, the lowest if several have it; imbalance: busiest_ns / mean_ns, null without time.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> by_expert(attribute(Profile.build({}))).height
        0
    """
    path = pl.col("layer").str.extract_groups(_EXPERT).struct
    rows = by_layer(attribution).with_columns(path[0].alias("group"), number=path[1].cast(pl.Int64))
    sums = pl.col("calls", "gpu_ns", "host_ns").sum()
    rows = rows.drop_nulls("group").group_by("group", "phase", "number", maintain_order=True).agg(sums)
    time = pl.col("gpu_ns" if (rows["gpu_ns"] > 0).any() else "host_ns")
    table = rows.group_by(pl.col("group").alias("path"), "phase", maintain_order=True).agg(
        sums, experts=pl.len().cast(pl.Int64), mean_ns=time.sum() // pl.len(), busiest_ns=time.max(),
        busiest=pl.col("number").filter(time == time.max()).min(),
        imbalance=pl.when(time.sum() > 0).then(time.max() * pl.len() / time.sum()),
    )  # fmt: skip
    return table.select(
        "path", "phase", "experts", "calls", "gpu_ns", "host_ns", "mean_ns", "busiest_ns", "busiest", "imbalance"
    )
