"""Times of trace events: microseconds as integers, floats or decimals, converted to exact nanoseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import polars as pl

__all__ = ["LONGEST", "InexactTimesError", "in_nanoseconds", "microseconds"]

_EARLIEST, _LATEST, LONGEST = -(10**15), 3 * 10**15, 6 * 10**14
"""Limits of start time and duration in microseconds. Two times in a file differ by less than 2^62 ns."""
_COARSE: Final = float(1 << 43)
"""Smallest time in microseconds at which a float is not exact to the nanosecond."""


class InexactTimesError(Exception):
    """The times of the events are floats that are too large to be exact to the nanosecond."""


def microseconds(
    values: Sequence[int | float | Decimal | None], least: int = _EARLIEST, most: int = _LATEST
) -> pl.Series:
    """Return times in microseconds as floats or integers, and decimals in nanoseconds as Int128.

    Values that are not numbers between `least` and `most` are null.
    """
    kinds = set(map(type, values))
    if Decimal in kinds:
        return pl.Series([_exact(value, least, most) for value in values], dtype=pl.Int128)
    # polars converts an integer that is too large to null, or to infinity in a float column.
    times = pl.Series(values, dtype=pl.Float64 if float in kinds else pl.Int64, strict=False)
    fits = times.is_between(least, most)  # polars orders NaN above all numbers
    if not fits.all():
        times = pl.select(pl.when(fits).then(times)).to_series()
    farthest = max((abs(end) for end in (times.min(), times.max()) if isinstance(end, (int, float))), default=0)
    if farthest >= _COARSE and float in kinds:
        raise InexactTimesError
    return times


def in_nanoseconds(frame: pl.DataFrame) -> pl.DataFrame:
    """Return events with `start`, and `end` in place of `length`, in ns."""
    start = _nanoseconds("start", frame.schema["start"])
    if "length" not in frame.columns:
        return frame.with_columns(start)
    end = start + _nanoseconds("length", frame.schema["length"])
    return frame.with_columns(start, end.alias("end")).drop("length")


def _nanoseconds(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a column of `microseconds` in ns. Floats up to 2^43 µs are exact to the nanosecond."""
    time = pl.col(name)
    if dtype == pl.Int128:
        return time.cast(pl.Int64)
    if dtype == pl.Int64:
        return time * 1000
    # Integer and fraction are converted separately: 1000 times a float of this size is not exact.
    whole = time.cast(pl.Int64)
    return whole * 1000 + ((time - whole) * 1000).round().cast(pl.Int64)


def _exact(value: float | Decimal | None, least: int, most: int) -> int | None:
    if value is None or not math.isfinite(value) or not least <= value <= most:
        return None
    if isinstance(value, float) and abs(value) >= _COARSE:
        raise InexactTimesError
    return round(Decimal(repr(value) if isinstance(value, float) else value) * 1000)
