"""Dense ids in order of appearance."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from annot.attribution import column_ops

__all__ = ["Numbers", "Threads"]


class Numbers:
    """Dense ids of 64-bit values, from 0 in order of appearance."""

    def __init__(self) -> None:
        self.known = pl.Series("value", [], pl.Int64)
        """The values (Int64). The row is the id."""

    def of(self, values: pl.Series) -> pl.Series:
        """Return the id (Int32) of each value (Int64), -1 for null."""
        ids = column_ops.codes(values, self.known)
        new = ((ids == column_ops.NONE) & values.is_not_null()).arg_true()
        if new.is_empty():
            return ids
        added = values.gather(new)
        first = added.unique(maintain_order=True)
        ids = ids.scatter(new, column_ops.codes(added, first) + len(self.known))
        self.known = pl.concat([self.known, first.alias("value")])
        return ids


@dataclass(frozen=True, slots=True)
class Threads:
    """Codes of threads and processes.

    `table` has thread and process as numbered in the profile (Int64), and process_code (Int32). The row is the code of
    the thread.
    """

    table: pl.DataFrame

    @classmethod
    def of(cls, table: pl.DataFrame) -> Threads:
        """Return the codes for a table of thread and process with a row per thread."""
        return cls(table.sort("thread").with_columns(process_code=pl.col("process").rank("dense").cast(pl.Int32) - 1))

    def codes(self, threads: pl.Series) -> pl.Series:
        """Return the code of each thread (Int32), -1 for null and for threads without ranges."""
        return column_ops.codes(threads, self.table["thread"])

    def of_process(self, code: int) -> list[int]:
        """Return the codes of the threads of a process."""
        rows = self.table.select((pl.col("process_code") == code).arg_true())
        return rows.to_series().to_list()
