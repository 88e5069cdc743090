"""Rows of an Nsight Systems export as its own reports read them.

They differ from the tables of `annot.profile`: repeated rows of an API call with its backtrace and unnamed domains are
included, CUDA graphs are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

__all__ = ["Activity"]


@dataclass(frozen=True, slots=True)
class Activity:
    """Ranges, API calls and GPU activities of an export.

    Times are in ns. Columns are Int64, except for name, style (String) and kernel (Boolean).

    Args:
        ranges: id (row id), thread, start, end, name ("domain:text", may be null), style ("PushPop" or "StartEnd") of
            all ranges that ended on their own thread. Open ranges end with the last NVTX event.
        calls: process, thread, start, end, correlation of every row of the API.
        work: process, correlation, start, end, kernel (false for copies and memsets), name (of the kernel, otherwise
            null).
        notes: notes of the reader, a sentence each.
    """

    ranges: pl.DataFrame
    calls: pl.DataFrame
    work: pl.DataFrame
    notes: tuple[str, ...] = ()
