"""Small numbers for large ones, given out as they turn up."""

from __future__ import annotations

import polars as pl

from annot.correlate import sweep

__all__ = ["Numbers"]


class Numbers:
    """Numbers from 0, in the order in which values come.

    Example:
        >>> numbers = Numbers()
        >>> numbers.of(pl.Series([70, 7, 70])).to_list(), numbers.known.to_list()
        ([0, 1, 0], [70, 7])
    """

    def __init__(self) -> None:
        self.known = pl.Series("value", [], pl.Int64)
        """The values (Int64); the row is the number."""

    def of(self, values: pl.Series) -> pl.Series:
        """Return the number (Int32) of each value (Int64), -1 for null."""
        found = sweep.codes(values, self.known)
        new = (found == sweep.NONE) & values.is_not_null()
        if not new.any():
            return found
        self.known = pl.concat([self.known, values.filter(new).unique(maintain_order=True).alias("value")])
        return sweep.codes(values, self.known)
