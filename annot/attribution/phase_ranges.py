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
    layers = forest.layers_of_nodes().select(pl.col("layer", "phase").gather(column_ops.known(forest.tree["path"])))
    tree = forest.tree.select("thread", "start", "end", "label").hstack(layers)
    of_layers = (tree["phase"].is_in(PHASES) & (tree["layer"] != BATCH)).fill_null(False)
    waits = (tree["phase"] == "data").fill_null(False)
    parent = forest.tree["parent"]
    outermost = (of_layers & ~column_ops.inside(of_layers, parent)) | (waits & ~column_ops.inside(waits, parent))
    phase = forest.labels["phase"].gather(forest.crossing["label"])
    crossing = forest.crossing.select("thread", "start", "end", "label", phase)
    every = pl.concat([tree.filter(outermost).drop("layer"), crossing])
    every = every.filter(pl.col("phase").is_in([*PHASES, "data"]))
    process = forest.threads.table["process_code"].gather(every["thread"])
    return every.select(process, "thread", "phase", "start", "end", "label", host_ns=pl.col("end") - pl.col("start"))
