"""Files of nvprof, written in the layout of nvprof 11.8, which itself reads them: see `nvprof_file`."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
from pathlib import Path

import polars as pl
import pytest
from nvprof_file import ZERO, NvprofFile, sample
from refusals import refusal

from annot import correlate
from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.formats import reader_of
from annot.read.nvprof import csv_output, sqlite_file

DATA = Path(__file__).parents[1] / "data"


def read(path: Path) -> Profile:
    assert reader_of(path) is sqlite_file  # type: ignore[comparison-overlap]
    return sqlite_file.read(path)


def test_sample_is_read_to_the_nanosecond(tmp_path: Path):
    profile = read(sample(tmp_path / "x.nvprof"))
    ranges = profile.ranges.with_columns(pl.col("start", "end") - ZERO)
    assert ranges.select("process", "thread", "domain", "text", "kind", "start", "end").rows() == [
        (1234, 0x7F12345, "annot", "Forward Net [4,8]f32 |fwd", "push", 100, 5000),
        (1234, 0x7F12345, "annot", "fc Linear [4,8]f32 |fwd", "push", 200, 2500),
        (1234, 0x7F12345, "", "step", "start", 50, 9000),
        (1234, 0x7F12345, "", 'he said "x", y', "push", 5500, 5600),
        (1234, 0x7F12345, "", "two\nlines", "push", 5700, 5800),
    ]
    assert ranges["color"].unique().to_list() == [0xFF00FF00]
    assert ranges["category"].unique().to_list() == ["category 3"]
    assert profile.marks.select("text", "start").rows() == [("hello", ZERO + 700)]
    kernels = profile.kernels.with_columns(pl.col("start", "end") - ZERO)
    assert kernels.select("process", "device", "stream", "start", "end", "correlation", "name").rows() == [
        (1234, 0, 7, 1000, 3500, 1, "_Z7kernelAPfi"),
        (1234, 0, 7, 4000, 4700, 2, "_Z7kernelBPfi"),
        (1234, 0, 7, 7000, 7300, 3, "_Z7kernelAPfi"),
    ]
    copies = profile.copies.with_columns(pl.col("start", "end") - ZERO)
    assert copies.select("start", "end", "correlation", "kind", "bytes").rows() == [
        (8200, 8600, 4, "HtoD", 4096), (9300, 9350, 5, "memset", 1024),
    ]  # fmt: skip
    names = dict(profile.launches.select("correlation", "name").rows())
    assert names == {
        1: "cudaLaunchKernel", 2: "cudaLaunchKernel", 3: "cuLaunchKernel", 4: "cudaMemcpy", 5: "cudaMemsetAsync",
    }  # fmt: skip


def test_kernels_come_to_their_layers(tmp_path: Path):
    layers = correlate(read(sample(tmp_path / "x.nvprof")))
    own = dict(layers.select(pl.concat_str("layer", "module", "phase", separator=" "), "gpu_self_ns").rows())
    assert own[" Net forward"] == 700
    assert own["fc Linear forward"] == 2500
    assert own["step  other"] == 300 + 400
    assert sum(own.values()) == 2500 + 700 + 300 + 400 + 50


def test_file_and_what_nvprof_prints_of_it_give_the_same_layers(tmp_path: Path):
    layers = [correlate(read(sample(tmp_path / "x.nvprof"))), correlate(csv_output.read(DATA / "nvprof_trace.csv"))]
    rows = [
        layer.select("layer", "phase", "calls", "host_ns", "gpu_ns", "gpu_self_ns", "kernels", "copies")
        for layer in layers
    ]
    assert rows[0].equals(rows[1])


@pytest.mark.skipif(shutil.which("nvprof") is None, reason="needs nvprof")
def test_nvprof_itself_reads_the_sample(tmp_path: Path):
    path = sample(tmp_path / "x.nvprof")
    command = ["nvprof", "--csv", "--print-gpu-trace", "--print-api-trace", "-i", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout + said.stderr == (DATA / "nvprof_trace.csv").read_text()


def test_a_range_that_ends_on_another_thread_says_so(tmp_path: Path):
    file = NvprofFile(tmp_path / "x.nvprof")
    file.range("a", 10, 20, end_thread=77)
    file.range("b", 10, None)
    assert read(file.write()).ranges.select("text", "end", "end_thread").rows() == [
        ("a", ZERO + 20, 77), ("b", None, None),
    ]  # fmt: skip


def test_threads_of_64_bits_agree_with_the_32_of_calls(tmp_path: Path):
    file = NvprofFile(tmp_path / "x.nvprof", thread=0xF1234567)
    file.range("a", 10, 20)
    file.call(1, 12, 13, 211, thread=0xF1234567 - (1 << 32))
    file.kernel(1, 30, 35, "k")
    profile = read(file.write())
    assert profile.launches["thread"].to_list() == profile.ranges["thread"].to_list()


def test_ranges_of_a_process_without_thread_lie_on_its_only_one(tmp_path: Path):
    file = NvprofFile(tmp_path / "x.nvprof", thread=5)
    file.range("a", 10, 20, kind=1, thread=0)
    file.call(1, 12, 13, 211)
    assert read(file.write()).ranges["thread"].to_list() == [5]


def test_kernels_without_times_are_left_out_and_counted(tmp_path: Path):
    file = NvprofFile(tmp_path / "x.nvprof")
    file.kernel(1, -ZERO, -ZERO, "untimed")
    file.kernel(2, 10, 20, "timed")
    profile = read(file.write())
    assert profile.kernels["name"].to_list() == ["timed"]
    assert any("1 kernel without valid start and end times" in note for note in profile.meta["notes"])


def test_kernels_of_several_processes_follow_their_launches(tmp_path: Path):
    path = tmp_path / "x.nvprof"
    file = NvprofFile(path)
    for process, correlation in ((1, 10), (2, 20), (1, 30), (2, 30)):
        file.process = process
        file.call(correlation, correlation, correlation + 1, 211)
    for correlation in (10, 20, 30):
        file.kernel(correlation, 100 + correlation, 105 + correlation, "k")
    assert read(file.write()).kernels["process"].to_list() == [1, 2, None]


def test_ids_of_ranges_are_those_of_their_process(tmp_path: Path):
    path = tmp_path / "x.nvprof"
    file = NvprofFile(path)
    for process in (1, 2):
        file.process = process
        file.range(f"of {process}", 10 * process, 11 * process)
    file.write()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_MARKER SET id = 1")
    rows = read(path).ranges.select("process", "text", pl.col("end") - ZERO).rows()
    assert rows == [(1, "of 1", 11), (2, "of 2", 22)]


@pytest.mark.parametrize("table", ["METRIC", "EVENT"])
def test_counters_without_names_are_a_note(tmp_path: Path, table: str):
    path = sample(tmp_path / "x.nvprof")
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table}(id, value, correlationId)")
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES(5, 1, 1)")
    assert any("contains only their ids" in note for note in read(path).meta["notes"])


def test_a_file_without_activity_is_one_sentence(tmp_path: Path):
    with pytest.raises(AnnotError, match=r"x\.nvprof is an nvprof file without NVTX ranges and without CUDA activity"):
        read(NvprofFile(tmp_path / "x.nvprof").write())


def test_a_missing_column_is_named(tmp_path: Path):
    path = sample(tmp_path / "x.nvprof")
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME RENAME COLUMN threadId TO other")
    with pytest.raises(AnnotError, match="CUPTI_ACTIVITY_KIND_RUNTIME lacks the column threadId"):
        read(path)


def test_older_layouts_lack_columns_and_tables(tmp_path: Path):
    path = sample(tmp_path / "x.nvprof")
    with sqlite3.connect(path) as database:
        for column in ("domain", "objectKind"):
            database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_MARKER DROP COLUMN {column}")
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL")
        for table in ("MARKER_DATA", "MEMSET", "DRIVER"):
            database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
    profile = read(path)
    assert profile.kernels.height == 3
    assert profile.ranges.height == 5
    assert set(profile.ranges["domain"]) == {""}


def test_other_databases_are_not_taken(tmp_path: Path):
    path = tmp_path / "nsys.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds(id, value)")
    assert reader_of(path).NAME == "nsys_sqlite"
    assert not sqlite_file.sniff(path, b"NVR\0")


def test_damage_ends_in_a_profile_or_one_sentence(tmp_path: Path):
    whole = sample(tmp_path / "x.nvprof").read_bytes()
    chance = random.Random(3)
    path = tmp_path / "damaged.nvprof"
    for index in range(120):
        data = bytearray(whole)
        if index % 3 == 0:
            del data[chance.randrange(100, len(data)) :]
        for _ in range(index % 30):
            data[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert str(path) in refusal(sqlite_file, path)
