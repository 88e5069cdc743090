"""Layers of replayed graph nodes, which `torch.profiler` writes with ``cuda_graph_annotations`` into a trace.

The arguments of an annotated activity have ``graph node id`` and the layer: ``name`` has the text of `mark_kernels`,
``module_fqn`` the path of a module (torchtitan). A layer becomes a range in which another profile captured the graph.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.profile import RANGES, conform

__all__ = ["captured_ranges", "origins"]

# The ranges are before all events of a trace, on a thread that other captures do not use.
_THREAD: Final = pl.lit(-(1 << 62), pl.Int64)
_BEGIN: Final = -2 * pl.col("layer").cast(pl.Int64) - 2


def captured_ranges(layers: pl.DataFrame) -> pl.DataFrame:
    """Return the range of each annotation. `layers` has text and role."""
    ranges = layers.with_row_index("layer").select(
        "text", "role", id=_BEGIN, process=_THREAD, thread=_THREAD, start=_BEGIN, end=_BEGIN + 1, kind=pl.lit("push")
    )
    return conform(ranges, RANGES)


def origins(activities: pl.DataFrame) -> pl.DataFrame:
    """Return GPU activities with the ranges of their annotations as origins. `layer` is the row of an annotation."""
    annotated, origin = pl.when(pl.col("layer") >= 0), (("origin_thread", _THREAD), ("origin_start", _BEGIN))
    return activities.with_columns(annotated.then(value).otherwise(name).alias(name) for name, value in origin)
