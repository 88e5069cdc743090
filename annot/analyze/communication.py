"""Communication by layer: the layers that launch collectives, and the layers that wait for them.

A part of a collective is exposed while no compute kernel runs on its device. Each nanosecond of exposed time counts
twice, in different columns: to the layer that launches the collective (`exposed_ns`), and to the layer of the next
compute kernel on the device (`wait_ns`). Either column adds up to the exposed communication of the summary.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.collectives import collectives_of
from annot.attribution import by_layer
from annot.attribution.attribute import Attribution
from annot.attribution.nesting import KEY

__all__ = ["by_communication"]

_ROWS: Final = {
    "operations": pl.String, "calls": pl.Int64, "time_ns": pl.Int64, "exposed_ns": pl.Int64, "hidden_ns": pl.Int64,
    "wait_ns": pl.Int64, "waits_for": pl.String, "bytes": pl.Int64, "bus_bytes_per_s": pl.Float64,
}  # fmt: skip


def by_communication(attribution: Attribution) -> pl.DataFrame:
    """Return the collectives that each layer launches, and the exposed communication that it waits for.

    The time is that of the steps without warm-up, as in `annot.analyze.step_time.step_time`. Where collectives overlap,
    the time counts to the one that started first. A collective inside a layer counts to the layer around it. Without a
    GPU, ranges of collectives are exposed while no thread computes a phase, and the layers around them wait.

    Returns:
        layer, module, phase; operations: launched here, the longest first; calls; time_ns: exposed_ns + hidden_ns;
        exposed_ns: no compute kernel runs on the device meanwhile; hidden_ns: the rest; wait_ns: exposed time of any
        collective that ends with a compute kernel of this layer; waits_for: the operations of this time; bytes: size of
        the messages; bus_bytes_per_s: see `annot.analyze.messages.bus_factor`. Null: unknown. Layers without
        communication have no row. exposed_ns, and wait_ns, add up to ``collectives`` of the step time.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> by_communication(attribute(Profile.build({}))).height
        0
    """
    collectives = collectives_of(attribution)
    rows = collectives.table.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = rows.filter((pl.col("calls") > 0) | (pl.col("wall_ns") > 0))  # the others ran outside the steps
    shown = collectives.exposed.group_by("row").agg(exposed_ns=pl.col("ns").sum())
    rows = rows.join(shown, on="row", how="left").with_columns(pl.col("exposed_ns").fill_null(0))
    waits = collectives.exposed.join(rows.select("row", "operation"), on="row")
    waited = waits.group_by(KEY).agg(wait_ns=pl.col("ns").sum())
    tables = (
        rows.group_by(KEY).agg(
            pl.col("calls").sum(), time_ns=pl.col("wall_ns").sum(), exposed_ns=pl.col("exposed_ns").sum()
        ),
        _named(rows.with_columns(ns=pl.col("wall_ns")), "operations"), waited, _named(waits, "waits_for"), _sizes(rows),
    )  # fmt: skip
    table = by_layer(attribution).select(KEY).with_row_index("order")
    keys = pl.concat([sums.select(KEY) for sums in tables]).unique()
    table = keys.join(table, on=KEY, how="left").sort("order", *KEY, nulls_last=True)
    for sums in tables:
        table = table.join(sums, on=KEY, how="left", maintain_order="left")
    zeros = pl.col("calls", "time_ns", "exposed_ns", "wait_ns").fill_null(0)
    table = table.with_columns(zeros).with_columns(hidden_ns=pl.col("time_ns") - pl.col("exposed_ns"))
    return table.select(*KEY, *(pl.col(name).cast(dtype) for name, dtype in _ROWS.items()))


def _named(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """The operations of each layer in one text, the longest first."""
    sums = rows.group_by(*KEY, "operation").agg(pl.col("ns").sum()).sort("ns", "operation", descending=[True, False])
    return sums.group_by(KEY, maintain_order=True).agg(pl.col("operation").str.join(", ").alias(name))


def _sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Bytes and bus bandwidth of each layer. A range is one message, also if it launches several kernels."""
    sized = rows.filter((pl.col("calls") > 0) & pl.col("bytes").is_not_null())
    ns = pl.when(pl.col("device").is_not_null()).then(pl.col("end") - pl.col("start"))
    per_message = sized.group_by(*KEY, "process", "range").agg(pl.col("bytes", "factor").first(), ns=ns.sum())
    timed = pl.col("factor").is_not_null() & (pl.col("ns") > 0)
    moved = (pl.col("bytes") * pl.col("factor")).filter(timed).sum()
    speed = pl.when(timed.any()).then(moved * 1e9 / pl.col("ns").filter(timed).sum())
    return per_message.group_by(KEY).agg(pl.col("bytes").sum(), bus_bytes_per_s=speed)
