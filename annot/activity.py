"""What the reports of Nsight Systems look at in an export, row by row.

They see more than the tables of `annot.profile` keep: the rows of the API that repeat another with its
backtrace, domains without a name, and CUDA graphs not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

__all__ = ["Activity"]


@dataclass(frozen=True, slots=True)
class Activity:
    """Ranges, API calls and work of an export; times in ns, all columns Int64 but names.

    Args:
        ranges: id (the row id), thread, start, end, name ("domain:text"; may be null), style ("PushPop" or
            "StartEnd") of all ranges that ended on their own thread. Open ones end with the last event of
            NVTX.
        calls: process, thread, start, end, correlation of every row of the API.
        work: process, correlation, start, end, kernel (true, or false for copies and sets), name (of the
            kernel; else null).
        notes: what the reader has to say of the file, a sentence each.
    """

    ranges: pl.DataFrame
    calls: pl.DataFrame
    work: pl.DataFrame
    notes: tuple[str, ...] = ()
