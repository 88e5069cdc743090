"""Where the kernels of a CUDA graph come from: the host instant at which each was captured into it.

A graph that is launched was cloned from the one that was captured, perhaps over several steps. Nsight Systems
notes each node when it comes to be, and for a clone the node that it was made from.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.read.nsys_layout import Tables, fetch, process_of

__all__ = ["read_origins", "with_origins"]

# Up to 2023.4 the second was the table of nodes; since then it is that of whole graphs.
_TABLES: Final = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
_NEEDED: Final = frozenset({"start", "globalTid", "graphNodeId", "originalGraphNodeId"})
_COLUMNS: Final = {
    "origin_start": "start", "origin_thread": "globalTid", "node": "graphNodeId",
    "original": "originalGraphNodeId", "class": "eventClass",
}  # fmt: skip
_SET_PARAMETERS: Final = 111  # of a node that exists; all other events are the making of one
_KEY: Final = ("process", "node")
_ORIGIN: Final = ("origin_thread", "origin_start")
_INT64: Final = pl.Int64


def read_origins(tables: Tables) -> pl.DataFrame:
    """Return the captured nodes of an export and their clones.

    Returns:
        process, node: Int64, each pair once.
        origin_thread, origin_start: Int64, where and when the node was captured, in ns.
        Nodes whose history is incomplete, contradictory or circular are left out.
    """
    table = next((name for name in _TABLES if tables.columns.get(name, frozenset()) >= _NEEDED), None)
    if table is None:
        return pl.DataFrame(schema=dict.fromkeys([*_KEY, *_ORIGIN], _INT64))
    rows = fetch(tables, table, _COLUMNS).filter(pl.col("class").ne_missing(_SET_PARAMETERS))
    original = pl.when(pl.col("original") != 0).then(pl.col("original")).alias("original")
    return _followed(rows.with_columns(process_of("origin_thread"), original).drop_nulls(_KEY))


def with_origins(work: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Add the origin of each piece of work, null where there is none.

    Args:
        work: with "process" and "node", which is null or 0 outside CUDA graphs.
        origins: what `read_origins` gave.
    """
    if work["node"].null_count() == work.height:
        return work.with_columns(pl.lit(None, _INT64).alias(name) for name in _ORIGIN)
    return work.join(origins, on=_KEY, how="left", maintain_order="left")


def _followed(rows: pl.DataFrame) -> pl.DataFrame:
    """Go from each node to the one that has no original."""
    nodes = _told_once(rows).with_row_index("row")
    originals = nodes.select("process", pl.col("node").alias("original"), pl.col("row").alias("target"))
    joined = nodes.join(originals, on=["process", "original"], how="left", maintain_order="left")
    target = joined["target"].fill_null(nodes["row"])
    for _ in range(nodes.height.bit_length()):  # each turn doubles the steps; a circle would have no end
        further = target.gather(target)
        if further.equals(target):
            break
        target = further
    return nodes.select(*_KEY, pl.col(_ORIGIN).gather(target)).drop_nulls(_ORIGIN)


def _told_once(rows: pl.DataFrame) -> pl.DataFrame:
    """A row per node: each instantiation of a graph tells of its nodes again. Contradictions are left out."""
    captured = pl.col("original").is_null()
    instant = [pl.when(captured).then(name).alias(name) for name in _ORIGIN]
    return rows.select(*_KEY, "original", *instant).unique().unique(_KEY, keep="none")
