"""Selection of the rows of a table by time. The rows of a fold (see `annot.report.folds`) count as one row."""

from __future__ import annotations

import polars as pl

__all__ = ["at_least", "longest", "longest_first"]

_ENTRY = ("group", "module", "phase")


def longest_first(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the rows with the longest first; folds by their sums."""
    return rows.sort(_time(rows, column), descending=True, nulls_last=True, maintain_order=True)


def longest(rows: pl.DataFrame, column: str, number: int) -> pl.DataFrame:
    """Return the longest rows, longest first, each fold as one of them."""
    ordered = longest_first(rows, column)
    if "group" not in rows.columns:
        return ordered.head(number)
    entry = pl.struct(pl.coalesce("group", "layer").alias("group"), *_ENTRY[1:])
    kept = ordered.select(entry.alias("entry"))["entry"]
    return ordered.filter(kept.is_in(kept.unique(maintain_order=True).head(number).implode()))


def at_least(rows: pl.DataFrame, column: str, ns: float) -> pl.DataFrame:
    """Return the rows that take at least some time (ns), in their order; folds by their sums."""
    return rows.filter(_time(rows, column).fill_null(0) >= ns)


def _time(rows: pl.DataFrame, column: str) -> pl.Expr:
    if "group" not in rows.columns:
        return pl.col(column)
    return pl.when(pl.col("group").is_null()).then(column).otherwise(pl.col(column).sum().over(_ENTRY))
