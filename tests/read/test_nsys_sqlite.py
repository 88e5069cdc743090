"""Reading the SQLite layout of Nsight Systems."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest
from shared_data import shared, unpacked
from sqlite_profile import SqliteProfile, process, thread

from annot import AnnotError
from annot.read.formats import load


def test_registered_and_plain_text(tmp_path: Path) -> None:
    """A range is named by its registered string if it has one, else by its own text; neither gives ""."""
    profile = SqliteProfile()
    profile.range("registered", 0, 9)
    profile.event(59, 1, 2, "plain", thread(1))
    profile.event(59, 3, 4, None, thread(1))
    profile.add("NVTX_EVENTS", eventType=59, start=5, end=6, textId=4711, text="lost id", globalTid=thread(1))
    assert load(profile.write(tmp_path / "x")).ranges["text"].to_list() == ["registered", "plain", "", "lost id"]


def test_domains_and_categories_belong_to_a_process(tmp_path: Path) -> None:
    """The same domain and category numbers mean different names in two processes."""
    profile = SqliteProfile()
    for number, name in ((1, "model"), (2, "loader")):
        profile.range("r", 0, 9, of_process=number, domain=name, category=3)
        profile.event(33, 0, None, f"{name} category", thread(1, number), category=3, domainId=1)
    profile.range("unnamed", 20, 30, of_process=1, category=8)
    profile.event(59, 40, 50, "no such domain", thread(1), domainId=77)
    ranges = load(profile.write(tmp_path / "x")).ranges
    assert ranges["domain"].to_list() == ["model", "loader", "", "domain 77"]
    assert ranges["category"].to_list() == ["model category", "loader category", "category 8", ""]
    assert ranges["process"].to_list() == [process(1), process(2), process(1), process(1)]


def test_kinds_open_ends_and_threads(tmp_path: Path) -> None:
    """Push/pop and start/end are told apart, open ends stay open, and only a foreign end thread is kept."""
    profile = SqliteProfile()
    profile.range("push", -5, None)
    profile.range("imported", 0, 1, kind=70)
    profile.range("own", 0, 9, kind=60, endGlobalTid=thread(1))
    profile.range("foreign", 0, 9, kind=71, endGlobalTid=thread(2))
    profile.event(34, 7, None, "mark", thread(1))
    loaded = load(profile.write(tmp_path / "x"))
    assert loaded.ranges.select("text", "kind", "start", "end", "end_thread").rows() == [
        ("push", "push", -5, None, None),
        ("imported", "push", 0, 1, None),
        ("own", "start", 0, 9, None),
        ("foreign", "start", 0, 9, thread(2)),
    ]
    assert loaded.marks.select("text", "start").rows() == [("mark", 7)]


def test_payload_stays_exact(tmp_path: Path) -> None:
    """A payload is kept as text: a signed, an unsigned 64-bit and a floating-point number."""
    profile = SqliteProfile()
    profile.range("signed", 0, 1, int64Value=-(2**63) + 2)
    profile.range("unsigned", 0, 1, uint64Value=-1)
    profile.range("real", 0, 1, doubleValue=0.5)
    profile.range("none", 0, 1)
    payloads = load(profile.write(tmp_path / "x")).ranges["payload"].to_list()
    assert payloads == [str(-(2**63) + 2), str(2**64 - 1), "0.5", None]


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are marked in the name; the other names are untouched."""
    profile = SqliteProfile()
    for text in ("naïve ✓", "broken"):
        profile.event(59, 0, 1, text, thread(1))
    path = profile.write(tmp_path / "x")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE NVTX_EVENTS SET text = CAST(x'ff6161' AS TEXT) WHERE text = 'broken'")
    assert load(path).ranges["text"].to_list() == ["naïve ✓", "\ufffdaa"]


def test_only_runtime_and_driver_calls_are_launches(tmp_path: Path) -> None:
    """The duplicates of event class 67, which a capture with backtraces has, are left out."""
    profile = SqliteProfile()
    for kind in (0, 1, 67):
        profile.call(kind, kind + 1, 5, kind=kind)
    launches = load(profile.write(tmp_path / "x")).launches
    assert launches["start"].to_list() == [0, 1]
    assert launches["name"].to_list() == ["cudaLaunchKernel_v7000"] * 2


def test_work_without_a_correlation_is_kept(tmp_path: Path) -> None:
    """A kernel whose correlation id is NULL has a null one here, and its columns come by name."""
    profile = SqliteProfile()
    profile.kernel(10, 30, 5, "gemm", device=3)
    profile.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["correlationId"] = None
    profile.copy(40, 50, 6, kind=2)
    profile.add("CUPTI_ACTIVITY_KIND_MEMSET", start=60, end=61, correlationId=7, globalPid=process(1))
    profile.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=70, end=99, correlationId=8, globalPid=process(1), graphId=4)
    loaded = load(profile.write(tmp_path / "x"))
    assert loaded.kernels.select("name", "device", "start", "end", "correlation").rows() == [
        ("gemm", 3, 10, 30, None),
        ("CUDA graph 4", None, 70, 99, 8),
    ]
    assert loaded.copies.select("kind", "bytes", "start").rows() == [("DtoH", 64, 40), ("memset", None, 60)]


def test_old_layout_without_optional_columns(tmp_path: Path) -> None:
    """A file of 2020 has no domains, categories, payloads and no metadata table, and is read all the same."""
    path = tmp_path / "old"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (globalTid, text, eventType, end, start)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?, 'old', 59, 9, 4)", (thread(1),))
    loaded = load(path)
    assert loaded.ranges.select("text", "start", "end", "domain", "payload").rows() == [("old", 4, 9, "", None)]
    assert loaded.meta["producer"] == ""


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    """Reading writes nothing, neither into the file nor beside it, also if its name has characters of a URI."""
    profile = SqliteProfile()
    profile.range("r", 0, 9)
    path = profile.write(tmp_path / "a b#c?d%41.sqlite")
    before = hashlib.sha256(path.read_bytes()).digest()
    path.chmod(0o444)
    assert load(path).ranges.height == 1
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "ranges", "kernels", "copies"),
    [
        ("athrun_lm_attn_windows.2026.2", 180, 4485, 243),
        ("ginda_mfu_2gpu_before.2026.2", 19118, 4010, 1289),
        ("ginda_tiny_no_nvtx.2026.1", 0, 2, 1),
        ("jsun_lm_fwd_bwd.2025.1", 31, 17032, 1782),
        ("pipit_saxpy_mpi.2022.2", 22, 5, 15),
        ("zx_lm_compile_graphtrace_no_nvtx.2024.6", 0, 40, 0),
        ("zx_lm_fwd_nvtx.2024.6", 516, 7328, 294),
    ],
)
def test_real_exports(tmp_path: Path, name: str, ranges: int, kernels: int, copies: int) -> None:
    """Real exports of 2022 to 2026, Linux and Windows, give the rows that SQL counts in them."""
    loaded = load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))
    assert (loaded.ranges.height, loaded.kernels.height, loaded.copies.height) == (ranges, kernels, copies)
    assert loaded.kernels["name"].null_count() == 0
    assert loaded.meta["producer"].startswith("NVIDIA Nsight Systems 202")
    assert bool(loaded.meta["notes"]) == (ranges == 0)


def test_real_export_without_anything(tmp_path: Path) -> None:
    """An export without NVTX and CUDA, and with text that is not UTF-8, is named and refused."""
    path = unpacked("nsys/ihor_nonutf8_meta_no_cuda.2025.6.sqlite.gz", tmp_path)
    with pytest.raises(AnnotError, match="without NVTX ranges and without CUDA activity"):
        load(path)


def test_every_cut_of_a_real_export_is_one_sentence(tmp_path: Path) -> None:
    """However much of a file is gone, the answer is a sentence with its name."""
    content = shared("nsys/edge_semantics/edge_semantics.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    for size in range(1, len(content), len(content) // 60):
        path.write_bytes(content[:size])
        with pytest.raises(AnnotError) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
