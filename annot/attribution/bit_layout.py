"""Bit layouts of the integers that hold more than one value.

The loops of `annot.attribution.column_ops` take one integer column where attribution needs several values per row.
Grouping and searching one integer column is also faster than grouping and searching two. The layouts:

    owner code   Int32   range that owns a launch (`by_time`, `guessed`, `owner_columns`)
                         bit 30       BY_TIME: the range is of another thread than the launch
                         bit 29       GUESSED: several ranges of the process were innermost at the launch
                         bits 0-28    row of the range in `Forest.tree`
                         -1           NONE: the launch is outside any range
                         -2           LEFT_OUT: the launch is in a step that was not requested
                         GUESSED occurs only with ranges of processes. Without them, rows take bits 0-29.

    pair         Int64   two numbers that sort as (high, low) (`pair`, `high_of`, `low_of`)
                         bits 32-63   high number, at least -1
                         bits 0-31    low number, at least 0
                         Sums of pairs are pairs of sums, as long as the low sums stay below 2^32.

    layer key    Int32   key of a layer, or of a chain of layers while `annot.attribution.range_trees` builds paths
                         bit 30       CHAIN: bits 0-29 are the number of a chain
                         bits 0-29    key in `Keys`, or number of a chain
                         -1           NONE: the range adds nothing to its path

    text key     Int64   domain, text, call and role of a range within one block (`annot.attribution.ingest`)
                         bits 24-63   code of the text; with calls: text · (calls + 1) + code of the call
                         bits 4-23    code of the domain
                         bits 0-3     code of the role
                         Code 0 is null.
"""

from __future__ import annotations

from typing import Final, TypeVar

import polars as pl

from annot.attribution.column_ops import NONE

__all__ = [
    "CHAIN", "LEFT_OUT", "TEXT_KEY_UNITS", "by_time", "guessed", "high_of", "low_of", "owner_columns", "pair",
]  # fmt: skip

BY_TIME: Final = 1 << 30
GUESSED: Final = 1 << 29
LEFT_OUT: Final = -2
CHAIN: Final = 1 << 30
TEXT_KEY_UNITS: Final = {"text": 1 << 24, "domain": 1 << 4, "role": 1}
"""Value of the lowest bit of each part of a text key."""

_LOW_BITS: Final = 32
_HIGH_UNIT: Final = 1 << _LOW_BITS

_Column = TypeVar("_Column", pl.Series, pl.Expr)


def by_time(rows: pl.Series) -> pl.Series:
    """Return the owner codes of launches that belong to ranges (rows, Int32) of other threads."""
    return rows + BY_TIME


def guessed(rows: pl.Series, several: pl.Series) -> pl.Series:
    """Return owner codes of ranges (rows, Int32, may be null) with GUESSED set where several ranges were innermost."""
    return rows + several.cast(pl.Int32) * GUESSED


def owner_columns(code: str, *, guesses: bool) -> list[pl.Expr]:
    """Return the columns by_time, guessed (Boolean) and range (row, Int32; NONE outside any range) of owner codes.

    Without `guesses`, bit 29 is part of the row.

    Example:
        >>> codes = {"code": [7, by_time(pl.Series([7]))[0], guessed(pl.Series([7]), pl.Series([True]))[0], -1, -2]}
        >>> pl.DataFrame(codes).select(owner_columns("code", guesses=True)).rows()
        [(False, False, 7), (True, False, 7), (False, True, 7), (False, False, -1), (False, False, -1)]
    """
    value = pl.col(code)
    late = (value >= BY_TIME).fill_null(False)
    row, guess = value - late * BY_TIME, pl.lit(False)
    if guesses:
        guess = ~late & (value >= GUESSED).fill_null(False)
        row -= guess * GUESSED
    row = pl.when(value >= 0).then(row).otherwise(NONE).cast(pl.Int32)
    return [late.alias("by_time"), guess.alias("guessed"), row.alias("range")]


def pair(high: _Column, low: _Column) -> _Column:
    """Return pairs (Int64) of integers."""
    return high.cast(pl.Int64) * _HIGH_UNIT + low.cast(pl.Int64)


def high_of(pairs: pl.Series) -> pl.Series:
    """Return the high numbers of pairs (Int64)."""
    return pairs // _HIGH_UNIT


def low_of(pairs: pl.Series) -> pl.Series:
    """Return the low numbers of pairs (Int64). Polars' ``%`` rounds down, so a high number of -1 is fine."""
    return pairs % _HIGH_UNIT
