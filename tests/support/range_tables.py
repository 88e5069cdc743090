"""A row per range of an attribution, with its parent, layer and times, to compare with references."""

from __future__ import annotations

import polars as pl

from annot.attribution import column_ops
from annot.attribution.attribute import Attribution


def ranges_of(attribution: Attribution) -> pl.DataFrame:
    """Return a row per range of the tree. A parent comes before its children.

    The ranges of threads come first, then the ranges of processes. The columns are id, process, thread, start, end
    (ns), parent (row in this table, null at the top), depth, domain, text, layer, module, phase, shapes, number,
    and those of `Attribution.range_times`.
    """
    tree = attribution.forest.tree
    parent = pl.when(pl.col("parent") != column_ops.NONE).then("parent").cast(pl.Int64).alias("parent")
    depths: list[int] = []
    for above in tree["parent"]:
        depths.append(0 if above == column_ops.NONE else depths[above] + 1)
    rows = _labelled(attribution, tree).with_columns(parent, pl.Series("depth", depths, pl.Int32))
    return rows.hstack(attribution.range_times())


def crossing_ranges_of(attribution: Attribution) -> pl.DataFrame:
    """Return the crossing ranges: the columns of `ranges_of` without parent, depth, self times and counts."""
    crossing = attribution.forest.crossing
    gpu = attribution.crossing_gpu_ns.alias("gpu_ns")
    return _labelled(attribution, crossing).with_columns(gpu, host_ns=pl.col("end") - pl.col("start"))


def _labelled(attribution: Attribution, ranges: pl.DataFrame) -> pl.DataFrame:
    labels = attribution.forest.labels.select("domain", "text", "layer", "module", "phase", "shapes", "number")
    threads = attribution.forest.threads.table.select("process", "thread")[ranges["thread"]]
    return pl.concat([ranges.drop("thread", "label"), threads, labels[ranges["label"]]], how="horizontal")
