"""Memory of each layer, from the memory marks and the innermost range around each."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.range_trees import Forest
from annot.labels.marks import MEMORY, parse_memory
from annot.labels.tag import DOMAIN
from annot.profile import Source

__all__ = ["MEMORY_COLUMNS", "memory_of"]

MEMORY_COLUMNS: Final = ("memory_source", "memory_change_bytes", "memory_peak_bytes")
_PHASES: Final = ("forward", "backward", "recompute")


def memory_of(source: Source, forest: Forest) -> pl.DataFrame | None:
    """Return the memory of the layers in the selected steps, or None if the profile has no memory marks.

    The rows have key (Int64), memory_source, memory_change_bytes (sum over the calls) and memory_peak_bytes (maximum
    over the calls).
    """
    marks = source.marks
    if marks.is_empty():
        return None
    marks = marks.filter(pl.col("text").str.starts_with(f"{MEMORY} ") & (pl.col("domain") == DOMAIN))
    texts = {text: parse_memory(text) for text in marks["text"].unique()}
    figures = pl.DataFrame(
        [(text, *parsed) for text, parsed in texts.items() if parsed is not None],
        schema=dict.fromkeys(("text", "figure", "memory_source"), pl.String),
        orient="row",
    )
    marks = marks.join(figures, on="text", maintain_order="left").with_columns(
        pl.col("payload").cast(pl.Int64, strict=False).alias("bytes")
    )
    if marks.is_empty():
        return None
    # The key of the layer of the innermost range around each mark, null outside layers.
    row = forest.of_threads().owners(forest.threads.codes(marks["thread"]), marks["start"], marks["start"])
    labels = forest.tree["label"].gather(column_ops.known(row))
    layered = forest.labels["phase"].is_in(_PHASES).gather(labels)
    keys = pl.select(key=pl.when(layered).then(forest.labels["key"].gather(labels)).cast(pl.Int64)).to_series()
    placed = marks.with_columns(keys).drop_nulls("key")
    figure = pl.col("figure")
    return placed.group_by("key").agg(
        pl.col("memory_source").first(),
        pl.col("bytes").filter(figure == "change").sum().alias("memory_change_bytes"),
        pl.col("bytes").filter(figure == "peak").max().alias("memory_peak_bytes"),
    )
