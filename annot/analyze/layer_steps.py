"""Time of each layer in each step."""

from __future__ import annotations

import polars as pl

from annot.analyze.gpu_activities import KEY, attributed_blocks, range_self_times, sums_by_layer
from annot.attribution import Attribution
from annot.attribution.host_times import known

__all__ = ["by_layer_and_step"]


def by_layer_and_step(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, module class, phase and step, in order of steps; sums over all processes.

    Args:
        attribution: the profile.

    Returns:
        layer, module, phase; step (Int64); host_ns, host_self_ns, gpu_ns, gpu_self_ns (Int64): as in
        `annot.attribution.by_layer`, for nested ranges; host times are null if the profile does not contain CPU times.
        A range counts to the step in which it starts, a GPU activity to the step in which it is launched.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> by_layer_and_step(attribute(Profile.build({}))).columns[3:]
        ['step', 'host_ns', 'host_self_ns', 'gpu_ns', 'gpu_self_ns']
    """
    blocks = iter(()) if attribution.source is None else attributed_blocks(attribution)
    parts = [pl.DataFrame(schema={"node": pl.Int32, "step": pl.Int32, "time_ns": pl.Int64})]
    parts += [block.group_by("node", "step").agg(time_ns=pl.col("gpu_ns").sum()) for block in blocks]
    times = {"gpu": pl.concat(parts)}
    if known(attribution.meta):
        times["host"] = range_self_times(attribution)
    rows = pl.DataFrame(schema=dict.fromkeys(KEY, pl.String) | {"step": pl.Int64})
    for name, part in times.items():
        sums = _sums(attribution, part, name)
        rows = rows.join(sums, on=[*KEY, "step"], how="full", coalesce=True)
    missing = [pl.lit(None, pl.Int64).alias(f"host_{end}") for end in ("ns", "self_ns") if "host" not in times]
    known_columns = [pl.col(f"{name}_{end}").fill_null(0) for name in times for end in ("ns", "self_ns")]
    rows = rows.with_columns(*known_columns, *missing).sort("step", *KEY)
    return rows.select(*KEY, "step", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")


def _sums(attribution: Attribution, part: pl.DataFrame, name: str) -> pl.DataFrame:
    """Total and self time of each layer and step."""
    part = part.filter((pl.col("step") >= 0) & (pl.col("node") >= 0))
    part = part.select("node", "time_ns", step=pl.col("step").cast(pl.Int64))
    part = part.group_by("node", "step").agg(pl.col("time_ns").sum())
    layers = attribution.forest.layers_of_nodes()[part["node"]]
    own = (
        layers.hstack(part.select("step", "time_ns"))
        .group_by(*KEY, "step")
        .agg(pl.col("time_ns").sum().alias(f"{name}_self_ns"))
    )
    every = sums_by_layer(attribution, part, "step").rename({"time_ns": f"{name}_ns"})
    return every.join(own, on=[*KEY, "step"], how="left")
