"""Device work range by range, which few reports show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.account import Places

__all__ = ["range_work"]

_COPY: Final = 2**32
"""Kernels and copies of a range are counted in one number, in which a copy weighs so much."""


def range_work(blocks: Iterator[pl.DataFrame], places: Places, count: int) -> pl.DataFrame:
    """Return gpu_self_ns, gpu_by_time_ns (Int64), kernels and copies (UInt32) of each range of the tree.

    Args:
        blocks: rows of `annot.profile.WORK`.
        places: tells where they belong.
        count: how many ranges the tree has.
    """
    gpu_ns, counts, late_ns = sweep.Sums(count), sweep.Sums(count), sweep.Sums(count)
    for block in blocks:
        kept = places.of(block).filter(~pl.col("left_out"))
        gpu_ns.add(kept["range"], kept["gpu_ns"])
        counts.add(kept["range"], kept.select(pl.when("kernel").then(1).otherwise(_COPY).cast(pl.Int64)).to_series())
        late = kept.filter("by_time")
        late_ns.add(late["range"], late["gpu_ns"])
    number = counts.result()
    return pl.DataFrame({"gpu_self_ns": gpu_ns.result(), "gpu_by_time_ns": late_ns.result()}).with_columns(
        (number % _COPY).cast(pl.UInt32).alias("kernels"), (number // _COPY).cast(pl.UInt32).alias("copies")
    )
