"""Small numbers for the threads and processes of a profile."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from annot.correlate.sweep import NONE

__all__ = ["Threads"]


@dataclass(frozen=True, slots=True)
class Threads:
    """Small numbers for threads and processes.

    Args:
        table: thread and process as the profile numbers them (Int64), process_code (Int32); the row is the
            code of the thread.
    """

    table: pl.DataFrame

    @classmethod
    def of(cls, ranges: pl.DataFrame) -> Threads:
        """Return the threads that have ranges."""
        table = ranges.select("thread", "process").unique("thread").sort("thread")
        return cls(table.with_columns(process_code=pl.col("process").rank("dense").cast(pl.Int32) - 1))

    def codes(self, threads: pl.Series) -> pl.Series:
        """Return the code of each thread (Int32), -1 where it has no range or is null."""
        codes = self.table.select(name=pl.col("thread"), code=pl.int_range(pl.len(), dtype=pl.Int32))
        found = threads.alias("name").to_frame().join(codes, on="name", how="left", maintain_order="left")
        return found["code"].fill_null(NONE)

    def of_process(self, code: int) -> list[int]:
        """Return the codes of the threads of a process."""
        rows = self.table.select((pl.col("process_code") == code).arg_true())
        return rows.to_series().to_list()
