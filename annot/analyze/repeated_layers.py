"""Layers of one class that differ in the index of a block count together, such as ``blocks.*.norm LayerNorm``."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from annot.labels import layer_path

__all__ = ["around_others", "repeated_layers"]

_LEAST: Final = 5
"""Number of equal layers that count together, as in `annot.report.folds`."""
_BLOCK: Final = re.compile(r"(?<![^./_])\d+(?=[./])")
"""Index of a block in the path of a layer inside it."""
_SEPARATOR: Final = re.compile(r"([./])")
_LAST: Final = re.compile(r"\d+$")


def repeated_layers(rows: pl.DataFrame, ns: str) -> pl.DataFrame:
    """Return the time of each layer, repeated layers as one, the longest first.

    Args:
        rows: rows with layer and module.
        ns: column of the time (ns).

    Returns:
        layer (its path, with ``*`` for an index that differs), module, ns and layers (number of layers in the row).

    Example:
        >>> rows = pl.DataFrame({"layer": [f"h.{n}.fc" for n in range(9)], "module": ["Linear"] * 9, "ns": range(9)})
        >>> repeated_layers(rows, "ns").rows()
        [('h.*.fc', 'Linear', 36, 9)]
    """
    sums = rows.group_by("layer", "module").agg(pl.col(ns).sum().alias("ns"))
    blocks = pl.Series([_BLOCK.sub("*", layer) for layer in sums["layer"]], dtype=pl.String)
    repeated = pl.len().over(blocks, "module") >= _LEAST
    sums = sums.with_columns(block=pl.when(repeated).then(blocks).otherwise("layer"))
    sums = sums.group_by("block", "module").agg(pl.col("ns").sum(), pl.col("layer").sort())
    sums = sums.sort("ns", "block", "module", descending=[True, False, False])
    paths = pl.Series("layer", [_common(layers) for layers in sums["layer"].to_list()], pl.String)
    return sums.select(paths, "module", "ns", layers=pl.col("layer").list.len().cast(pl.Int64))


def around_others(layers: pl.Series) -> pl.Series:
    """Return which paths (or ``""``, the model) have other paths of the series inside them (Boolean).

    Example:
        >>> around_others(pl.Series(["", "h.0", "h.0.fc", "head"])).to_list()
        [True, True, False, False]
    """
    return layers.is_in(list(layer_path.containers(layers, layers)))


def _common(layers: list[str]) -> str:
    """The path of layers that differ in indices of blocks, with ``*`` for these."""
    columns = zip(*(_SEPARATOR.split(layer) for layer in layers), strict=True)
    return "".join(column[0] if len(set(column)) == 1 else _LAST.sub("*", column[0]) for column in columns)
