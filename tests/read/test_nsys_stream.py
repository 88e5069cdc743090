"""A large export is read in blocks; layers come out as from the tables in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import every_third
from random_inputs import examples
from shared_data import shared, unpacked
from sqlite_profile import SqliteProfile, thread, training

from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_kernel, by_layer, by_phase
from annot.attribution.summary import by_step, summarize
from annot.profile import Source
from annot.read import sqlite
from annot.read.formats import load, source
from annot.read.nsys import sqlite_export
from annot.read.nsys.sqlite_export import merged
from annot.report.views import views
from annot.runs import run
from annot.runs.run import Run

FILES = (
    "athrun_lm_attn_windows.2026.2", "ginda_mfu_2gpu_before.2026.2", "ginda_tiny_no_nvtx.2026.1",
    "jsun_lm_fwd_bwd.2025.1", "pipit_saxpy_mpi.2022.2", "zx_lm_compile_graphtrace_no_nvtx.2024.6",
    "zx_lm_fwd_nvtx.2024.6",
)  # fmt: skip


def everything(profile: Source) -> dict[str, Any]:
    """All that a report can say."""
    result = attribute(profile)
    tables = {
        "kernel": by_kernel(result).sort("name"), "phase": by_phase(result), "step": by_step(result),
        "layer": by_layer(result), "meta": summarize(result),
    }  # fmt: skip
    return {name: table.to_dicts() if isinstance(table, pl.DataFrame) else table for name, table in tables.items()}


@pytest.fixture(params=["native", pytest.param("python", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of reading and sweeping, with blocks so small that every table has many."""
    monkeypatch.setattr(sqlite, "_BLOCK_ROWS", 97)
    monkeypatch.setattr(sqlite.Database.blocks, "__kwdefaults__", {"where_in": None, "rows": 97})
    if request.param == "python":
        monkeypatch.setenv("ANNOT_DISABLE_NATIVE", "1")
    return str(request.param)


@pytest.mark.parametrize("name", every_third(reversed(FILES)))
def test_real_exports(tmp_path: Path, name: str, way: str) -> None:
    """Real exports in blocks of 97 rows give the same rows and sums."""
    path = unpacked(f"nsys/{name}.sqlite.gz", tmp_path)
    streamed = source(path)
    assert max(block.height for block in streamed.work_blocks()) < 400
    assert everything(streamed) == everything(load(path)), way


@pytest.mark.parametrize("device", [True, False])
def test_small_exports(tmp_path: Path, device: bool, way: str) -> None:
    """So does a small training run, with device work and without."""
    path = training(device=device).write(tmp_path / "x")
    assert everything(source(path)) == everything(load(path)), way


def test_edge_semantics(way: str) -> None:
    """So do hand-made edge cases, open ranges among them."""
    path = shared("nsys/edge_semantics/edge_semantics.sqlite")
    assert everything(source(path)) == everything(load(path)), way


def test_open_range_and_late_launches(tmp_path: Path, way: str) -> None:
    """An open range lasts to the last launch, which is read after the ranges."""
    profile = training(device=True)
    profile.range("open", 50, None)
    profile.call(10**9, 10**9 + 5, 7777)
    profile.kernel(10**9 + 10, 10**9 + 20, 7777)
    path = profile.write(tmp_path / "x")
    assert everything(source(path)) == everything(load(path)), way
    row = by_layer(attribute(source(path))).row(by_predicate=pl.col("layer") == "open", named=True)
    assert (row["host_ns"], row["gpu_ns"]) == (10**9 - 45, 6_970_010), way


def test_kernels_far_out_of_order(tmp_path: Path, way: str) -> None:
    """Kernels that no block can put in order are sorted as a whole."""
    profile = SqliteProfile()
    profile.range("all", 0, 10_000)
    for number in range(600):
        profile.call(number, number, number)
        start = 100_000 - 100 * number
        profile.kernel(start, start + 150, number)
    path = profile.write(tmp_path / "x")
    row = by_layer(attribute(source(path))).row(0, named=True)
    assert (row["gpu_ns"], row["gpu_busy_ns"]) == (600 * 150, 600 * 100 + 50), way


def test_launches_out_of_order_with_one_id(tmp_path: Path, way: str) -> None:
    """Of two calls with one id the earlier counts, also if it stands many blocks later."""
    profile = SqliteProfile()
    profile.range("early", 0, 10)
    profile.range("late", 5000, 6000)
    profile.call(5500, 5501, 1)
    for number in range(500):
        profile.call(7000 + number, 7000 + number, 100 + number)
    profile.call(5, 6, 1)
    profile.kernel(9000, 9003, 1)
    path = profile.write(tmp_path / "x")
    assert by_layer(attribute(source(path))).select("layer", "gpu_ns").rows() == [("early", 3), ("late", 0)], way


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), max_size=6), st.lists(st.integers(0, 30), max_size=8)
)
def test_merged_loses_nothing(blocks: list[list[int]], others: list[int]) -> None:
    """Merging keeps every row; a table in order comes out in order."""

    frames = (pl.DataFrame({"start": starts}) for starts in blocks)
    table = pl.DataFrame({"start": others}, {"start": pl.Int64})
    got = [start for block in merged(frames, table) for start in block["start"]]
    flat = [start for starts in blocks for start in starts]
    assert sorted(got) == sorted(flat + others)
    if flat == sorted(flat):
        assert got == sorted(got)


def test_merged_mends_a_disorder_of_half_a_block() -> None:
    """Rows that are late by less than half a block come out in order all the same."""
    blocks = (pl.DataFrame({"start": starts}) for starts in ([0, 1, 2, 4], [3, 5, 6, 8], [7, 9, 10, 11]))
    got = [start for block in merged(blocks, pl.DataFrame({"start": [5]})) for start in block["start"]]
    assert got == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("by", every_third(name for name, view in views().items() if view.calls))
def test_analyses_of_what_is_read_in_blocks(tmp_path, by):
    """The tables about one profile are the same from a file in blocks, with the names of its calls, as from memory."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    blocks, memory = (Run(read).view(by, total=True) for read in (source(path, calls=True), load(path)))
    assert blocks.rows.equals(memory.rows)
    assert blocks.meta == memory.meta
    assert Run(str(path)).view(by, total=True).rows.equals(memory.rows)


def test_no_report_holds_the_whole_file(tmp_path, monkeypatch):
    """Whatever the table, a large export stays in its file."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    monkeypatch.setattr(run, "_IN_MEMORY", 0)
    monkeypatch.setattr(sqlite_export, "read", None)
    for key in views():
        assert Run(str(path)).view(key, total=True).view.key == key


def test_texts_with_numbers_of_their_own_are_not_kept(tmp_path: Path) -> None:
    """Ranges of emit_nvtx have a text each. polars keeps categories, so a large export must not make these any."""
    profile, count = SqliteProfile(), 500
    profile.range("step", 0, 10 * count)  # registered, which is one category
    for call in range(count):
        profile.event(59, 10 * call, 10 * call + 5, f"aten::mm, seq = {call}, op_id = {call}", thread(1), domainId=0)
    streamed = source(profile.write(tmp_path / "large.sqlite"))
    before = pl.Series(["a name of this test, before"]).cast(pl.Categorical)
    rows = by_layer(attribute(streamed))
    after = pl.Series(["a name of this test, after"]).cast(pl.Categorical)
    assert rows.select("layer", "calls").rows()[0] == ("step", 1)
    assert int(after.to_physical()[0]) - int(before.to_physical()[0]) < count / 10


@pytest.mark.parametrize("text", ["registered", "own"])
def test_blocks_with_registered_and_own_texts(tmp_path: Path, text: str) -> None:
    """A block with both kinds of text names every range, whichever of them it begins with."""
    profile = SqliteProfile()
    profile.range("registered", 0, 5) if text == "registered" else profile.event(59, 0, 5, "own", thread(1), domainId=0)
    profile.range("registered", 10, 15)
    profile.event(59, 20, 25, "own", thread(1), domainId=0)
    path = profile.write(tmp_path / "mixed.sqlite")
    assert everything(source(path)) == everything(load(path))
    calls = dict(by_layer(attribute(source(path))).select("layer", "calls").iter_rows())
    assert calls == {"registered": 1 + (text == "registered"), "own": 1 + (text == "own"), "(unattributed)": 0}
