"""How much of the wall-clock time of the steps each kernel, copy and set takes."""

from __future__ import annotations

import polars as pl

from annot.analyze.intervals import merged, within
from annot.analyze.pieces import pieces
from annot.analyze.step_parts import device_work, host_ranges, windows
from annot.correlate.attribution import Attribution

__all__ = ["step_work"]


def step_work(attribution: Attribution) -> pl.DataFrame:
    """Return the device work of the steps, with the time of them that it takes.

    Where work runs at the same time on a device, what began first has the moment. So each moment counts once, the
    times of a device add up to the time that it was busy, and without some work steps are shorter by its time at most.

    Returns:
        node, name, kernel, calls (that began in the steps), wall_ns: a row per node and name.
    """
    schema = {"node": pl.Int32, "name": pl.String, "kernel": pl.Boolean, "calls": pl.Int64, "wall_ns": pl.Int64}
    if attribution.source is None:
        return pl.DataFrame(schema=schema)
    spans = windows(attribution, device_work(attribution), host_ranges(attribution))
    of_device = spans.partition_by("process", "device", as_dict=True)
    work = pieces(attribution, ("process", "device", "start", "end", "node", "name", "kernel"))
    parts = [pl.DataFrame(schema=schema)]
    work = work.drop_nulls(["start", "end"]).with_columns(pl.col("process", "device").cast(pl.Int64))
    for place, rows in work.partition_by("process", "device", as_dict=True).items():
        if place in of_device:
            parts.append(_taken(rows, merged(of_device[place])).select(list(schema)))
    keys = ["node", "name", "kernel"]
    return pl.concat(parts).group_by(keys, maintain_order=True).agg(pl.col("calls", "wall_ns").sum())


def _taken(rows: pl.DataFrame, window: pl.DataFrame) -> pl.DataFrame:
    """The work of one device, a row per node and name."""
    rows = rows.sort("start", maintain_order=True)
    begin = pl.max_horizontal("start", pl.col("end").cum_max().shift(1))
    rows = rows.with_columns(begin=begin, until=pl.max_horizontal(begin, "end"))
    taken = within(rows["until"], window) - within(rows["begin"], window)
    inside = within(rows["start"] + 1, window) > within(rows["start"], window)
    rows = rows.with_columns(taken.alias("wall_ns"), inside.cast(pl.Int64).alias("calls"))
    sums = rows.group_by("node", "name", "kernel", maintain_order=True).agg(pl.col("calls", "wall_ns").sum())
    return sums.filter((pl.col("calls") > 0) | (pl.col("wall_ns") > 0))
