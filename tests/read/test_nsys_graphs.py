"""CUDA graphs in Nsight Systems exports: each kernel leads to the instant at which it was captured."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_layouts import LAYOUTS
from random_inputs import examples
from shared_data import unpacked
from sqlite_profile import SqliteProfile, process, thread

from annot.read.nsys import sqlite_export
from annot.read.nsys.sqlite_export import read_origins, with_origins
from annot.read.text import counted

NODE = "CUDA_GRAPH_NODE_EVENTS"
LOST = (
    "annot attributes {} of CUDA graphs to the ranges of the graph launch, because the capture of the graph node is "
    "unknown."
)


def _origins(profile: SqliteProfile, path: Path) -> list[tuple[int | None, int | None]]:
    loaded = sqlite_export.read(profile.write(path))
    lost = loaded.kernels["origin_start"].null_count()
    assert loaded.meta["notes"][1:] == ([LOST.format(counted(int(lost), "GPU activity"))] if lost else [])
    return loaded.kernels.select("origin_thread", "origin_start").rows()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_leads_to_the_layer_in_which_it_was_captured(tmp_path: Path, layout: str) -> None:
    """Two layers are captured on one thread, the graph is instantiated twice, and launched from another thread."""
    profile = SqliteProfile(layout)
    for start, layer, node in ((100, "fc1 Linear |fwd", 1), (200, "fc2 Linear |fwd", 2)):
        profile.layer(layer, start, start + 50)
        profile.node(node, None, start + 10)
    for instance in (10, 20):
        for node in (1, 2):
            profile.node(instance + node, node, 300, number=2)
    profile.layer("Forward Net |fwd", 400, 900, number=2)
    profile.call(410, 420, 7, number=2)
    for start, node in ((500, 11), (510, 12), (600, 21), (610, 22)):
        profile.kernel(start, start + 5, 7, graphNodeId=node)
    profile.copy(620, 630, 7, graphNodeId=11)
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    work = pl.concat([loaded.kernels, loaded.copies], how="diagonal")
    layers = work.join_where(
        loaded.ranges.rename({"start": "opened", "end": "closed"}),
        pl.col("origin_thread") == pl.col("thread"),
        pl.col("origin_start") >= pl.col("opened"),
        pl.col("origin_start") < pl.col("closed"),
    ).sort("start")
    assert layers["text"].str.slice(0, 3).to_list() == ["fc1", "fc2", "fc1", "fc2", "fc1"]
    assert loaded.meta["notes"] == []


def test_nodes_told_again(tmp_path: Path) -> None:
    """Hundreds of instantiations tell of the same node: its kernels are neither multiplied nor lost."""
    profile = SqliteProfile()
    profile.node(1, None, 100)
    for start in range(300):
        profile.node(2, 1, 200 + start)
    profile.kernel(900, 950, 7, graphNodeId=2)
    assert _origins(profile, tmp_path / "x") == [(thread(1), 100)]


def test_node_numbers_belong_to_a_process(tmp_path: Path) -> None:
    """Two ranks use the same numbers."""
    profile = SqliteProfile()
    for rank in (1, 2):
        profile.node(1, None, 100 * rank, of_process=rank)
        profile.node(2, 1, 500, of_process=rank)
        profile.kernel(900, 950, 7, of_process=rank, graphNodeId=2)
    assert _origins(profile, tmp_path / "x") == [(thread(1), 100), (thread(1, 2), 200)]


def test_what_leads_nowhere(tmp_path: Path) -> None:
    """Circles, unknown originals, contradictions and unknown nodes have no origin, and are counted."""
    profile = SqliteProfile()
    for node, original in ((1, 2), (2, 3), (3, 1), (4, 4), (5, 99), (6, 1), (7, 8), (7, 9)):
        profile.node(node, original, 100)
    for node in (8, 9, 10, 10):
        profile.node(node, None, node * 10 + len(profile.rows[NODE]))
    for node in (1, 4, 5, 6, 7, 10, 11, 8):
        profile.kernel(900, 950, 7, graphNodeId=node)
    assert _origins(profile, tmp_path / "x") == [(None, None)] * 7 + [(thread(1), 88)]


def test_no_table_of_nodes(tmp_path: Path) -> None:
    """Kernels of graphs without the table of nodes are counted; number 0 and null stand for no graph."""
    profile = SqliteProfile()
    for node in (5, 0, None):
        profile.kernel(900, 950, 7, graphNodeId=node)
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert loaded.kernels["origin_start"].null_count() == 3
    assert loaded.meta["notes"][1:] == [LOST.format("1 GPU activity")]


def test_zero_is_no_original(tmp_path: Path) -> None:
    """An original numbered 0 is none, and setting the parameters of a node does not make it."""
    profile = SqliteProfile()
    profile.node(1, 0, 100)
    profile.node(2, 1, 200)
    profile.node(2, None, 300, kind=111)
    profile.kernel(900, 950, 7, graphNodeId=2)
    assert _origins(profile, tmp_path / "x") == [(thread(1), 100)]


def test_long_chain_of_clones(tmp_path: Path) -> None:
    """A chain of 50,000 clones ends at its captured node."""
    profile = SqliteProfile()
    profile.node(0, None, 100)
    profile.rows[NODE][0]["graphNodeId"] = 60_000
    profile.node(1, 60_000, 200)
    for node in range(2, 50_001):
        profile.node(node, node - 1, 200)
    profile.kernel(900, 950, 7, graphNodeId=50_000)
    assert _origins(profile, tmp_path / "x") == [(thread(1), 100)]


def test_graphs_traced_as_one_piece(tmp_path: Path) -> None:
    """The ten launches of a real compiled model are kernels named by their graph, and the notes say what is lost."""
    loaded = sqlite_export.read(unpacked("nsys/zx_lm_compile_graphtrace_no_nvtx.2024.6.sqlite.gz", tmp_path))
    graphs = loaded.kernels.filter(pl.col("name").str.starts_with("CUDA graph "))
    assert graphs.height == 10
    assert 7_800_000_000 < (graphs["end"] - graphs["start"]).sum() < 7_900_000_000
    assert graphs["origin_start"].null_count() == 10
    assert loaded.meta["notes"][1].startswith("Nsight Systems traced 10 CUDA graph launches as a whole")


class _Rows:
    """A table of nodes in memory."""

    def __init__(self, rows: list[tuple[int, int | None, int]]) -> None:
        schema = {"graphNodeId": pl.Int64, "originalGraphNodeId": pl.Int64, "start": pl.Int64}
        self.rows = pl.DataFrame(rows, schema, orient="row").with_columns(globalTid=pl.lit(thread(1)))
        self.columns = {NODE: frozenset(self.rows.columns)}

    def scan(self, table: str, integers: dict[str, str]) -> pl.DataFrame:
        absent = [pl.lit(None, pl.Int64).alias(name) for name in integers.values() if name not in self.rows.columns]
        return self.rows.with_columns(absent).select(pl.col(column).alias(name) for name, column in integers.items())


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.none() | st.integers(1, 8), st.integers(0, 3)), max_size=12))
def test_origins_by_hand(rows: list[tuple[int, int | None, int]]) -> None:
    """Following the originals one by one gives the same, whatever the table says."""
    told = {(node, original, start if original is None else 0) for node, original, start in rows}
    alone = {node: (original, start) for node, original, start in told if [row[0] for row in told].count(node) == 1}

    def captured(node: int | None) -> int | None:
        for _ in range(9):
            if node is None or node not in alone:
                return None
            original, start = alone[node]
            if original is None:
                return start
            node = original
        return None

    work = pl.DataFrame({"node": [None, *range(1, 10)]}).with_columns(process=pl.lit(process(1)))
    found = with_origins(work, read_origins(_Rows(rows)))  # type: ignore[arg-type]
    assert found["origin_start"].to_list() == [captured(node) for node in work["node"]]
