"""Small numbers for the threads and processes of a profile."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from annot.correlate import sweep

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
    def of(cls, table: pl.DataFrame) -> Threads:
        """Return those of a table of thread and process, each once."""
        return cls(table.sort("thread").with_columns(process_code=pl.col("process").rank("dense").cast(pl.Int32) - 1))

    def codes(self, threads: pl.Series) -> pl.Series:
        """Return the code of each thread (Int32), -1 where it has no range or is null."""
        return sweep.codes(threads, self.table["thread"])

    def of_process(self, code: int) -> list[int]:
        """Return the codes of the threads of a process."""
        rows = self.table.select((pl.col("process_code") == code).arg_true())
        return rows.to_series().to_list()
