"""Worker processes of a DataLoader, which fetch batches beside the process that trains."""

from __future__ import annotations

import polars as pl

from annot.attribution.column_ops import NONE
from annot.attribution.range_trees import Forest
from annot.labels.tag import WORKER

__all__ = ["fetches", "worker_processes"]

_OF_TRAINING = ("forward", "backward", "optimizer")


def fetches(labels: pl.DataFrame) -> pl.Series:
    """Return which labels (rows of `Forest.labels`) are those of a fetch in a worker process (Boolean)."""
    return (labels["phase"] == "data") & (labels["module"] == WORKER)


def worker_processes(forest: Forest) -> pl.Series:
    """Return the codes (Int32) of the processes that only load data.

    Such a process fetches batches, and has no range of forward, backward or optimizer outside these fetches.
    """
    fetched = fetches(forest.labels).alias("fetches")
    if not fetched.any():
        return pl.Series("process_code", [], pl.Int32)
    top = forest.tree.filter(pl.col("parent") == NONE)
    process = forest.threads.table["process_code"].gather(top["thread"])
    trains = forest.labels["phase"].is_in(_OF_TRAINING).alias("trains")
    processes = pl.DataFrame([process, fetched.gather(top["label"]), trains.gather(top["label"])])
    processes = processes.group_by("process_code").agg(pl.col("fetches", "trains").any())
    return processes.filter(pl.col("fetches") & ~pl.col("trains"))["process_code"]
