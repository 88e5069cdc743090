"""Nsight Systems exports of 2020 to 2026: what differs between the versions changes nothing in the profile."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
import pytest
from nsys_layouts import LAYOUTS
from sqlite_profile import SqliteProfile, process, thread

from annot.profile import Profile
from annot.read.nsys import sqlite_export

TABLES = ("ranges", "marks", "launches", "kernels", "copies")


def _written(layout: str, path: Path) -> Profile:
    """A profile of two processes, with everything that all the layouts can hold."""
    profile = SqliteProfile(layout)
    for rank in (1, 2):
        profile.layer("Forward Net |fwd", 0, 900, of_process=rank, category=4, color=0xFF00FF00, int64Value=-rank)
        profile.event(33, 0, None, "kind", thread(1, rank), category=4, domainId=1)
        profile.event(34, 5, None, "mark", thread(2, rank))
        profile.range("crossing", 100, 300, kind=60, of_process=rank, rangeId=0, endGlobalTid=thread(2, rank))
        profile.call(10, 20, 7, of_process=rank)
        profile.call(30, 40, 8, of_process=rank, kind=1)
        profile.kernel(50, 50 + rank, 7, f"kernel of {rank}", of_process=rank, device=rank)
        profile.copy(60, 70, 8, of_process=rank, graphNodeId=22)
        profile.node(11, None, 15, of_process=rank)
        profile.node(22, 11, 950, of_process=rank)
    profile.add("CUPTI_ACTIVITY_KIND_MEMSET", start=80, end=90, deviceId=1, streamId=7, bytes=16, value=0,
                correlationId=8, globalPid=process(1))  # fmt: skip
    return sqlite_export.read(profile.write(path))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_content_in_every_layout(tmp_path: Path, layout: str) -> None:
    """Columns that come, go and change places, and a table that changes its name, give the same profile."""
    oldest, profile = _written("2020.3", tmp_path / "oldest"), _written(layout, tmp_path / "this")
    for table in TABLES:
        assert getattr(profile, table).equals(getattr(oldest, table)), table
    assert profile.meta["notes"] == []


def test_content_of_the_oldest_layout(tmp_path: Path) -> None:
    """The layout of 2020 is read value by value."""
    profile = _written("2020.3", tmp_path / "x")
    first = profile.ranges.row(0, named=True)
    assert (first["text"], first["domain"], first["category"]) == ("Forward Net |fwd", "annot", "kind")
    assert (first["payload"], first["color"], first["kind"]) == ("-1", 0xFF00FF00, "push")
    assert profile.ranges["end_thread"].to_list() == [None, thread(2), None, thread(2, 2)]
    assert profile.launches.select("process", "thread", "start", "end", "correlation").rows() == [
        (process(rank), thread(1, rank), start, start + 10, number)
        for rank in (1, 2)
        for start, number in ((10, 7), (30, 8))
    ]  # fmt: skip
    assert profile.kernels.select("process", "device", "stream", "end", "name").rows() == [
        (process(1), 1, 7, 51, "kernel of 1"), (process(2), 2, 7, 52, "kernel of 2"),
    ]  # fmt: skip
    assert profile.copies.select("kind", "bytes", "origin_thread", "origin_start").rows() == [
        ("HtoD", 64, thread(1), 15), ("HtoD", 64, thread(1, 2), 15), ("memset", 16, None, None),
    ]  # fmt: skip
    assert profile.meta["producer"] == ""


@pytest.mark.parametrize("table", ["EXPORT_META_DATA", "META_DATA_EXPORT"])
def test_producer_in_either_table(tmp_path: Path, table: str) -> None:
    """The table that names the exporter changed its own name."""
    profile = SqliteProfile()
    profile.range("r", 0, 9)
    profile.add(table, name="EXPORT_PRODUCT_NAME", value="NVIDIA Nsight Systems")
    profile.add(table, name="EXPORT_PRODUCT_VERSION", value="2023.1.2")
    assert sqlite_export.read(profile.write(tmp_path / "x")).meta["producer"] == "NVIDIA Nsight Systems 2023.1.2"


def test_stray_columns_and_tables(tmp_path: Path) -> None:
    """Columns that somebody added with ALTER TABLE, and tables of old statistics, are passed over."""
    profile = SqliteProfile("2022.2")
    profile.range("r", 0, 9)
    profile.call(1, 2, 5)
    profile.kernel(3, 4, 5)
    path = profile.write(tmp_path / "x")
    before = sqlite_export.read(path)
    with sqlite3.connect(path) as database:
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
            database.execute(f"ALTER TABLE {table} ADD COLUMN name TEXT")
            database.execute(f"UPDATE {table} SET name = 'stray'")
        database.execute("CREATE TABLE cudaKernelStats (name, total)")
    after = sqlite_export.read(path)
    for table in TABLES:
        assert getattr(after, table).equals(getattr(before, table)), table


@pytest.mark.parametrize(
    "absent", ["StringIds", "NVTX_EVENTS", "RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "CUDA_GRAPH_NODE_EVENTS"]
)
def test_any_table_may_be_absent(tmp_path: Path, absent: str) -> None:
    """Tables are made only where there is something to put in: without one, the others are the same."""
    whole = _written("2026.2", tmp_path / "whole")
    path = tmp_path / "x"
    path.write_bytes((tmp_path / "whole").read_bytes())
    with sqlite3.connect(path) as database:
        prefix = "CUPTI_ACTIVITY_KIND_" if absent.isupper() and "_" not in absent else ""
        database.execute(f"DROP TABLE {prefix}{absent}")
    part = sqlite_export.read(path)
    lost = {
        "StringIds": (), "NVTX_EVENTS": ("ranges", "marks"), "RUNTIME": ("launches",), "KERNEL": ("kernels",),
        "MEMCPY": ("copies",), "MEMSET": ("copies",), "CUDA_GRAPH_NODE_EVENTS": (),
    }  # fmt: skip
    for table in TABLES:
        kept = [name for name in getattr(whole, table).columns if not name.startswith(("text", "name", "origin"))]
        same = getattr(part, table).select(kept).equals(getattr(whole, table).select(kept))
        assert same == (table not in lost[absent]), table


def test_only_some_columns(tmp_path: Path) -> None:
    """Work without a device, stream, size or process is kept, its columns null."""
    path = tmp_path / "x"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (correlationId, end, start)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (5, 9, 4)")
    profile = sqlite_export.read(path)
    row = profile.copies.row(0, named=True)
    assert {name: value for name, value in row.items() if value is not None} == {
        "start": 4, "end": 9, "correlation": 5, "kind": "unknown",
    }  # fmt: skip
    assert profile.kernels.schema["name"] == pl.String
