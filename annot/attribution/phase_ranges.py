"""The outermost ranges of each phase of a step."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.parsed_labels import BATCH
from annot.attribution.range_trees import Forest

__all__ = ["PHASES", "phase_ranges"]

PHASES: Final = ("forward", "backward", "optimizer")


def phase_ranges(forest: Forest) -> pl.DataFrame:
    """Return process_code, thread, phase, start, end, label, host_ns of the outermost ranges of each phase.

    The phases are `PHASES` and data. A wait for data counts inside another phase as well.
    """
    nodes, path, parent = forest.layers_of_nodes(), column_ops.known(forest.tree["path"]), forest.tree["parent"]
    of_layers = (nodes["phase"].is_in(PHASES) & (nodes["layer"] != BATCH)).gather(path).fill_null(False)
    waits = (nodes["phase"] == "data").gather(path).fill_null(False)
    outermost = (of_layers & ~column_ops.inside(of_layers, parent)) | (waits & ~column_ops.inside(waits, parent))
    rows = outermost.arg_true()  # columns of texts of all ranges would take much memory
    columns = ["thread", "start", "end", "label"]
    tree = forest.tree.select(columns)[rows].with_columns(nodes["phase"].gather(path.gather(rows)))
    phase = forest.labels["phase"].gather(forest.crossing["label"])
    every = pl.concat([tree, forest.crossing.select(*columns, phase)])
    every = every.filter(pl.col("phase").is_in([*PHASES, "data"]))
    process = forest.threads.table["process_code"].gather(every["thread"])
    return every.select(process, "thread", "phase", "start", "end", "label", host_ns=pl.col("end") - pl.col("start"))
