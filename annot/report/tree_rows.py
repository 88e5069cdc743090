"""Lines of the layer table: the rows of the phases of a layer, or of all layers of a fold."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.ingest import BATCH, DATA, EPOCH
from annot.attribution.layer_tables import LAYER_PHASES
from annot.labels.tag import COMPILED

__all__ = ["TITLES", "line_class", "lines_of"]

TITLES: Final = {EPOCH: "Epoch", BATCH: "Batch", DATA: "Data wait", UNATTRIBUTED: "(unattributed)"}
"""Rows without a layer, and how tables call them."""


def line_class(module: str) -> str:
    """Return the class of a line. Compiled graphs are numbered over the model, so that their numbers do not count."""
    return COMPILED if module.startswith(COMPILED) else module


def lines_of(rows: pl.DataFrame) -> pl.Series:
    """Return the number of the line of each row: of the tree, or of a file, where the phases of a layer are a line."""
    if "shown" in rows.columns:
        return rows["shown"]
    is_layer = (pl.col("layer") != "") | ((pl.col("module") != "") & pl.col("phase").is_in(LAYER_PHASES))
    phase = pl.when(~is_layer).then("phase")
    return rows.select(pl.struct("layer", "module", phase).rank("dense")).to_series()
