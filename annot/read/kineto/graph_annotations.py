"""Layers of replayed graph nodes, which `torch.profiler` writes with ``cuda_graph_annotations`` into a trace.

`torch.cuda.graph_annotations.mark_kernels` annotates the nodes of a graph during its capture. The arguments of a
replayed activity then have, besides ``graph node id``, the annotation: ``name``, or ``module_fqn``, the path of a
module as torchtitan annotates it. A layer is stored as a range in which another profile captured the graph.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.profile import RANGES, conform
from annot.read.notes import counted

__all__ = ["captured_ranges", "origins", "replay_notes"]

_THREAD: Final = -(1 << 62)
"""Thread and process of the ranges. Other captures have numbers near 0 (`annot.attribution.graph_captures`)."""
_BEGIN, _END = -2 * pl.col("layer") - 2, -2 * pl.col("layer") - 1
"""Times (ns) of the range of each layer, before all events of a trace."""


def captured_ranges(layers: pl.DataFrame) -> pl.DataFrame:
    """Return the range of each annotation.

    Args:
        layers: text and role of each annotation.
    """
    numbered = layers.with_columns(layer=pl.int_range(pl.len(), dtype=pl.Int64)).reverse()
    thread = pl.lit(_THREAD, pl.Int64)
    ranges = numbered.select(
        "text", "role", id=_BEGIN, process=thread, thread=thread, start=_BEGIN, end=_END, kind=pl.lit("push"),
        domain=pl.lit(""),
    )  # fmt: skip
    return conform(ranges, RANGES)


def origins(activities: pl.DataFrame) -> pl.DataFrame:
    """Return kernels or copies with the ranges of their annotations as origins. `layer` is the row of the annotation."""
    known, thread = pl.col("layer").is_not_null(), pl.lit(_THREAD, pl.Int64)
    return activities.with_columns(
        pl.col("layer").cast(pl.Int64),
        origin_thread=pl.when(known).then(thread).otherwise("origin_thread"),
    ).with_columns(origin_start=pl.when(known).then(_BEGIN).otherwise("origin_start"))


def replay_notes(*activities: pl.DataFrame) -> list[str]:
    """Return a sentence about the activities with annotations."""
    total = sum(table["layer"].count() for table in activities)
    return [f"The layers of {counted(total, 'GPU activity')} come from cuda_graph_annotations."] if total else []
