"""Which forward range each backward range belongs to."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.correlate.forest import Forest

__all__ = ["forward_of"]

_PAIRS: Final = {"begin": pl.Int64, "end": pl.Int64}


def forward_of(forest: Forest) -> pl.DataFrame:
    """Return the forward range of each backward range, where it is known.

    Operations are led by their sequence number. Of the calls of a layer the last one that has no backward range yet
    is meant, for the backward pass undoes the last call first.

    Args:
        forest: the ranges.

    Returns:
        begin, end (Int64): rows in `forest.tree`, of the forward and the backward range; each row occurs at most
        once as begin and once as end.
    """
    by_number = pl.DataFrame([(of, row) for row, of in forest.pairs.items()], schema=_PAIRS, orient="row")
    pairs = pl.concat([_of_layers(forest), by_number.sort("end")])
    return pairs.unique("begin", keep="first", maintain_order=True).unique("end", keep="first", maintain_order=True)


def _of_layers(forest: Forest) -> pl.DataFrame:
    process = forest.threads.table["process_code"].gather(forest.tree["thread"]).alias("process")
    said = forest.says.select("layer", "module", "phase", "layered", "role")
    wanted = said.select(
        pl.col("layered") & pl.col("phase").is_in(["forward", "backward"]) & (pl.col("module") != "")
    ).to_series()
    rows = forest.tree.select("start", "says").with_row_index("row").with_columns(process)
    rows = rows.filter(wanted.gather(rows["says"]))
    rows = pl.concat([rows, said.select("layer", "module", "phase")[rows["says"]]], how="horizontal")
    rows = rows.sort("start", maintain_order=True)
    of_layer = ["process", "layer", "module"]
    forward = pl.col("phase") == "forward"
    # Calls are brackets: a forward one opens, a backward one closes the last that is open.
    level = pl.when(forward).then(1).otherwise(-1).cum_sum().over(of_layer) + pl.when(forward).then(0).otherwise(1)
    rows = rows.with_columns(level.alias("level"))
    before = pl.col("row", "phase").shift(1).over([*of_layer, "level"])
    rows = rows.with_columns(before.name.suffix("_before"))
    found = rows.filter(~forward & (pl.col("phase_before") == "forward"))
    return found.select(pl.col("row_before").cast(pl.Int64).alias("begin"), pl.col("row").cast(pl.Int64).alias("end"))
