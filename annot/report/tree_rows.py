"""Lines of the layer table: the rows of the phases of a layer, or of all layers of a fold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from annot.attribution import UNATTRIBUTED
from annot.attribution.parsed_labels import BATCH, DATA, EPOCH
from annot.labels import layer_path
from annot.labels.plain_names import phase_of
from annot.labels.tag import COMPILED

__all__ = ["LAYER_PHASES", "TITLES", "in_tree", "is_layer", "line_class", "lines_of", "of_program"]

LAYER_PHASES: Final = ("forward", "backward", "recompute")
"""Phases of a layer."""
TITLES: Final = {EPOCH: "Epoch", BATCH: "Batch", DATA: "Data wait", UNATTRIBUTED: "(unattributed)"}
"""Rows without a layer, and how tables call them."""


def is_layer(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `annot.attribution.by_layer` describes a layer of a model."""
    return row["phase"] in LAYER_PHASES and bool(row["layer"] or row["module"])


def of_program(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a range that a program opened itself (see `annot.attribution.containment`)."""
    path, phase = row["layer"], row["phase"]
    if row["module"] or not path or path in TITLES or "::" in path:
        return False
    return layer_path.INSIDE in path or phase not in LAYER_PHASES or phase_of(path) == phase


def line_class(module: str) -> str:
    """Return the class of a line. Compiled graphs are numbered over the model, so that their numbers do not count."""
    return COMPILED if module.startswith(COMPILED) else module


def in_tree(rows: pl.DataFrame, every: pl.DataFrame | None = None) -> pl.Series:
    """Return which rows are in the tree of layers; each of the others is a line below it.

    The tree has layers, and the ranges of a program that contain others or lie in them. In a profile without layers of
    a model it has all ranges of the program. `every` has all rows, for `rows` that lack some.
    """
    whole = (rows if every is None else every).select("layer", "module", "phase").rows(named=True)
    around = {above for row in whole if layer_path.INSIDE in row["layer"] for above in layer_path.above(row["layer"])}
    of_model = any(is_layer(row) and not of_program(row) for row in whole)

    def is_in(row: Mapping[str, Any]) -> bool:
        path = row["layer"]
        nested = layer_path.INSIDE in path or (path != "" and path in around)
        return is_layer(row) or nested or (not of_model and of_program(row))

    keys = rows.select("layer", "module", "phase").iter_rows(named=True)
    return pl.Series([is_in(row) for row in keys], dtype=pl.Boolean)


def lines_of(rows: pl.DataFrame, every: pl.DataFrame | None = None, *, folded: bool = True) -> pl.Series:
    """Return the number of the line of each row; `folded`: the layers of a fold are one line."""
    path = pl.coalesce("group", "layer") if folded and "group" in rows.columns else pl.col("layer")
    module = pl.when(path != pl.col("layer")).then(pl.col("module").str.replace(f"^{COMPILED}.*", COMPILED))
    phase = pl.when(~in_tree(rows, every)).then("phase")
    return rows.select(pl.struct(path, module.otherwise("module").alias("class"), phase).rank("dense")).to_series()
