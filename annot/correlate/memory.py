"""Which layer took how much memory: the marks about memory, each in the innermost range around it."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot import memory_text
from annot.correlate import sweep
from annot.correlate.forest import Forest
from annot.profile import Source
from annot.tag import DOMAIN

__all__ = ["MEMORY_COLUMNS", "memory_of"]

MEMORY_COLUMNS: Final = ("memory_source", "memory_change_bytes", "memory_peak_bytes")
_PHASES: Final = ("forward", "backward", "recompute")


def memory_of(source: Source, forest: Forest) -> pl.DataFrame | None:
    """Return what the layers took, None if nobody says.

    Args:
        source: the profile, whose ranges have been read.
        forest: those that take part.

    Returns:
        key (Int64), memory_source (where the figures come from), memory_change_bytes (added up over the calls) and
        memory_peak_bytes (the highest of any call), a row per key of the forest that has such marks.
    """
    marks = source.marks
    if marks.is_empty():
        return None
    said = marks.filter(pl.col("text").str.starts_with(f"{memory_text.CATEGORY} ") & (pl.col("domain") == DOMAIN))
    texts = {text: memory_text.parse(text) for text in said["text"].unique()}
    known = pl.DataFrame(
        [(text, *parsed) for text, parsed in texts.items() if parsed is not None],
        schema=dict.fromkeys(("text", "figure", "memory_source"), pl.String), orient="row",
    )  # fmt: skip
    said = said.join(known, on="text", maintain_order="left").with_columns(
        pl.col("payload").cast(pl.Int64, strict=False).alias("bytes")
    )
    if said.is_empty():
        return None
    placed = said.with_columns(_keys(forest, said)).drop_nulls("key")
    figure = pl.col("figure")
    return placed.group_by("key").agg(
        pl.col("memory_source").first(),
        pl.col("bytes").filter(figure == "change").sum().alias("memory_change_bytes"),
        pl.col("bytes").filter(figure == "peak").max().alias("memory_peak_bytes"),
    )


def _keys(forest: Forest, marks: pl.DataFrame) -> pl.Series:
    """The key of the layer whose range is innermost around each mark, null where there is none."""
    row = forest.of_threads().owners(forest.threads.codes(marks["thread"]), marks["start"], marks["start"])
    row = pl.select(pl.when(row != sweep.NONE).then(row)).to_series()
    says = forest.tree["says"].gather(row)
    layered = forest.says["phase"].is_in(_PHASES).gather(says)
    return pl.select(pl.when(layered).then(forest.says["key"].gather(says)).cast(pl.Int64).alias("key")).to_series()
