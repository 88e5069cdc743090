"""What each layer took in each step."""

from __future__ import annotations

import polars as pl

from annot.analyze.pieces import KEY, host_pieces, placed_blocks, sums_by_layer
from annot.correlate import Attribution
from annot.correlate.host_times import known

__all__ = ["by_layer_and_step"]


def by_layer_and_step(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, module class, phase and step, by step; the steps of all processes added up.

    Returns:
        layer, module, phase; step (Int64); host_ns, host_self_ns, gpu_ns, gpu_self_ns (Int64): as in
        `annot.correlate.by_layer`, of the ranges that nest; host times are null if the profile knows none. A range
        counts to the step in which it began, device work to the one in which it was launched.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> by_layer_and_step(attribute(Profile.build({}))).columns[3:]
        ['step', 'host_ns', 'host_self_ns', 'gpu_ns', 'gpu_self_ns']
    """
    blocks = iter(()) if attribution.source is None else placed_blocks(attribution)
    parts = [pl.DataFrame(schema={"node": pl.Int32, "step": pl.Int32, "time_ns": pl.Int64})]
    parts += [block.group_by("node", "step").agg(time_ns=pl.col("gpu_ns").sum()) for block in blocks]
    times = {"gpu": pl.concat(parts)}
    if known(attribution.meta):
        times["host"] = host_pieces(attribution)
    rows = pl.DataFrame(schema=dict.fromkeys(KEY, pl.String) | {"step": pl.Int64})
    for name, part in times.items():
        sums = _sums(attribution, part, name)
        rows = rows.join(sums, on=[*KEY, "step"], how="full", coalesce=True)
    missing = [pl.lit(None, pl.Int64).alias(f"host_{end}") for end in ("ns", "self_ns") if "host" not in times]
    known_columns = [pl.col(f"{name}_{end}").fill_null(0) for name in times for end in ("ns", "self_ns")]
    rows = rows.with_columns(*known_columns, *missing).sort("step", *KEY)
    return rows.select(*KEY, "step", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")


def _sums(attribution: Attribution, part: pl.DataFrame, name: str) -> pl.DataFrame:
    """The times of steps with what lies below, and of the layers themselves."""
    part = part.filter((pl.col("step") >= 0) & (pl.col("node") >= 0))
    part = part.select("node", "time_ns", step=pl.col("step").cast(pl.Int64))
    part = part.group_by("node", "step").agg(pl.col("time_ns").sum())
    keys = pl.DataFrame(attribution.forest.keys.names, schema=dict.fromkeys(KEY, pl.String), orient="row")
    mine = keys[pl.Series(attribution.forest.nodes.keys, dtype=pl.Int64).gather(part["node"])]
    own = pl.concat([mine, part.select("step", "time_ns")], how="horizontal")
    own = own.group_by(*KEY, "step").agg(pl.col("time_ns").sum().alias(f"{name}_self_ns"))
    every = sums_by_layer(attribution, part, "step").rename({"time_ns": f"{name}_ns"})
    return every.join(own, on=[*KEY, "step"], how="left")
