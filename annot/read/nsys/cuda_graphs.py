"""Capture time and thread of the nodes of CUDA graphs (`nsys profile --cuda-graph-trace=node`).

A launched graph is a clone of the captured graph, possibly over several steps. Nsight Systems records the creation of
each node, and for a clone the original node (graphNodeId, originalGraphNodeId).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.read.nsys.schema import Tables, fetch, process_of

__all__ = ["read_origins", "with_origins"]

# Up to Nsight Systems 2023.4, CUDA_GRAPH_EVENTS is the table of nodes. By 2024.2 it is the table of graphs.
_TABLES: Final = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
_NEEDED: Final = frozenset({"start", "globalTid", "graphNodeId", "originalGraphNodeId"})
_COLUMNS: Final = {
    "origin_start": "start", "origin_thread": "globalTid", "node": "graphNodeId",
    "original": "originalGraphNodeId", "class": "eventClass",
}  # fmt: skip
_SET_PARAMETERS: Final = 111  # eventClass of a change to an existing node (2026); the other classes create a node
_KEY: Final = ("process", "node")
_ORIGIN: Final = ("origin_thread", "origin_start")
_INT64: Final = pl.Int64


def read_origins(tables: Tables) -> pl.DataFrame:
    """Return the captured nodes of an export and their clones.

    The columns are process and node (unique pairs), origin_thread and origin_start: thread and time (ns) of the
    capture. Nodes with incomplete, contradictory or circular records are left out.
    """
    table = next((name for name in _TABLES if tables.columns.get(name, frozenset()) >= _NEEDED), None)
    if table is None:
        return pl.DataFrame(schema=dict.fromkeys([*_KEY, *_ORIGIN], _INT64))
    rows = fetch(tables, table, _COLUMNS).filter(pl.col("class").ne_missing(_SET_PARAMETERS))
    original = pl.when(pl.col("original") != 0).then(pl.col("original")).alias("original")
    return _with_captures(rows.with_columns(process_of("origin_thread"), original).drop_nulls(_KEY))


def with_origins(activities: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Add origin_thread and origin_start to GPU activities. They are null outside CUDA graphs and for unknown nodes.

    The column node is null or 0 outside CUDA graphs.
    """
    if activities["node"].null_count() == activities.height:
        return activities.with_columns(pl.lit(None, _INT64).alias(name) for name in _ORIGIN)
    return activities.join(origins, on=_KEY, how="left", maintain_order="left")


def _with_captures(rows: pl.DataFrame) -> pl.DataFrame:
    """Follow each node to its captured original."""
    nodes = _unique_nodes(rows).with_row_index("row")
    originals = nodes.select("process", pl.col("node").alias("original"), pl.col("row").alias("target"))
    joined = nodes.join(originals, on=["process", "original"], how="left", maintain_order="left")
    target = joined["target"].fill_null(nodes["row"])
    for _ in range(nodes.height.bit_length()):  # pointer doubling; the bound ends circular records
        further = target.gather(target)
        if further.equals(target):
            break
        target = further
    return nodes.select(*_KEY, pl.col(_ORIGIN).gather(target)).drop_nulls(_ORIGIN)


def _unique_nodes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row per node without contradictory nodes. Nsight Systems repeats the nodes per graph instantiation."""
    captured = pl.col("original").is_null()
    instant = [pl.when(captured).then(name).alias(name) for name in _ORIGIN]
    return rows.select(*_KEY, "original", *instant).unique().unique(_KEY, keep="none")
