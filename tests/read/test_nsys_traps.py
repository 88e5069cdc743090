"""What misleads readers of Nsight Systems exports: a test for each trap that real files hold."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from shared_data import unpacked
from sqlite_profile import SqliteProfile, process, thread

from annot.read.nsys import sqlite_export

MACHINE = 1 << 56


def test_pids_that_only_the_machine_tells_apart(tmp_path: Path) -> None:
    """Two machines in one file can have the same pid: their processes differ in the upper bits alone."""
    profile = SqliteProfile()
    for machine, name in ((0, "here"), (MACHINE, "there")):
        profile.event(75, 0, None, name, machine + thread(1), domainId=1)
        profile.event(59, 1, 9, "r", machine + thread(1), domainId=1)
        profile.kernel(2, 3, 4)
        profile.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]["globalPid"] = machine + process(1)
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert loaded.ranges.select("process", "domain").rows() == [(process(1), "here"), (MACHINE + process(1), "there")]
    assert loaded.kernels["process"].to_list() == [process(1), MACHINE + process(1)]


def test_correlation_ids_that_repeat_between_processes(tmp_path: Path) -> None:
    """In a real profile of two ranks each id of both leads to a launch of its own process."""
    loaded = sqlite_export.read(unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path))
    ids = loaded.launches.group_by("correlation").agg(processes=loaded.launches["process"].n_unique())
    assert ids.height < loaded.launches.height
    work = loaded.kernels.join(loaded.launches, on=["correlation", "process"], suffix="_call")
    assert work.height == loaded.kernels.height - 24  # launched before the capture began
    assert (work["start"] >= work["start_call"]).all()


def test_event_types_that_are_no_ranges(tmp_path: Path) -> None:
    """Names of threads and devices, ends of domains and raw halves of events are neither ranges nor marks."""
    profile = SqliteProfile()
    for kind in (33, 35, 38, 39, 66, 69, 75, 76, 97, 98, 99):
        profile.event(kind, kind, kind + 1, "no range", thread(1))
    for kind in (59, 60, 70, 71):
        profile.event(kind, kind, kind + 1, "range", thread(1), rangeId=0)
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert loaded.ranges.select("start", "kind").rows() == [(59, "push"), (60, "start"), (70, "push"), (71, "start")]
    assert loaded.marks.is_empty()


def test_names_of_domains_and_categories_that_come_late_or_twice(tmp_path: Path) -> None:
    """A name holds for the whole profile, also for what came before it; the last of two holds."""
    profile = SqliteProfile()
    profile.event(59, 1, 2, "r", thread(1), domainId=1, category=7)
    for name in ("old", "new"):
        profile.event(75, 3, None, name, thread(1), domainId=1)
        profile.event(33, 3, None, f"{name} kind", thread(1), domainId=1, category=7)
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert loaded.ranges.select("domain", "category").rows() == [("new", "new kind")]


def test_domains_without_ranges(tmp_path: Path) -> None:
    """The ranges of a too new package nvtx are missing though its domains arrive: the notes say why."""
    profile = SqliteProfile()
    profile.event(75, 3, None, "mine", thread(1), domainId=1)
    notes = sqlite_export.read(profile.write(tmp_path / "x")).meta["notes"]
    assert "no NVTX ranges" in notes[0]
    assert "package nvtx" in notes[1]


def test_negative_times(tmp_path: Path) -> None:
    """What began before time 0 keeps its times."""
    profile = SqliteProfile()
    profile.range("r", -2_800_000_000_000, -1)
    profile.call(-900, -800, 1)
    profile.kernel(-700, 5, 1)
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert loaded.ranges.select("start", "end").rows() == [(-2_800_000_000_000, -1)]
    assert loaded.launches.select("start", "end").rows() == [(-900, -800)]
    assert loaded.kernels.select("start", "end").rows() == [(-700, 5)]


def test_times_that_are_none(tmp_path: Path) -> None:
    """Rows without a start, with an end before it, or later than any clock are left out and counted."""
    profile = SqliteProfile()
    for start, end in ((1, 2), (None, 2), (3, 2), (1, 2**62 + 1), (-(2**62) - 1, 2)):
        profile.event(59, start, end, "r", thread(1))  # type: ignore[arg-type]
        profile.call(start, end, 1)  # type: ignore[arg-type]
        profile.kernel(start, end, 1)  # type: ignore[arg-type]
        profile.copy(start, end, 1)  # type: ignore[arg-type]
    profile.event(59, 5, None, "open", thread(1))
    profile.kernel(5, None, 1)  # type: ignore[arg-type]
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert loaded.ranges["text"].to_list() == ["r", "open"]
    assert [loaded.launches.height, loaded.kernels.height, loaded.copies.height] == [1, 1, 1]
    assert loaded.meta["notes"] == [
        f"annot skipped {rows} without valid start and end times."
        for rows in ("4 ranges", "4 API calls", "5 kernels", "4 copies")
    ]


def test_ranges_of_no_thread(tmp_path: Path) -> None:
    """A range without a thread can lie in no other: it is left out and counted, a mark without one is left out."""
    profile = SqliteProfile()
    for kind in (34, 59, 60):
        for tid in (thread(1), None):
            profile.event(kind, 1, 2, "r", tid)  # type: ignore[arg-type]
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert (loaded.ranges["thread"].to_list(), loaded.marks["thread"].to_list()) == ([thread(1)] * 2, [thread(1)])
    assert loaded.meta["notes"] == ["annot skipped 2 ranges without a thread."]


def test_text_that_is_not_utf8_in_the_metadata(tmp_path: Path) -> None:
    """A time in a Windows code page does not hinder the reading of what stands beside it."""
    profile = SqliteProfile()
    profile.range("r", 0, 9)
    profile.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2025.6")
    path = profile.write(tmp_path / "x")
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_TIME_LOCAL', CAST(x'cfff20' AS TEXT))")
    assert sqlite_export.read(path).meta["producer"] == "2025.6"


def test_a_thousand_levels(tmp_path: Path) -> None:
    """Pushes that were never popped nest a thousand deep; all are there, innermost last."""
    profile = SqliteProfile()
    for level in range(1006):
        profile.range(f"level {level}", level, 5000 - level if level % 2 else None)
    ranges = sqlite_export.read(profile.write(tmp_path / "x")).ranges
    assert ranges["text"].to_list() == [f"level {level}" for level in range(1006)]
    assert ranges["end"].null_count() == 503


def test_class_67_in_a_real_profile(tmp_path: Path) -> None:
    """With backtraces each launch is there twice; the kernels' 88,573,480 ns must not double by the join."""
    loaded = sqlite_export.read(unpacked("nsys/pipit_saxpy_mpi.2022.2.sqlite.gz", tmp_path))
    work = loaded.kernels.join(loaded.launches, on=["correlation", "process"], suffix="_call")
    assert (work["end"] - work["start"]).sum() == 88_573_480
    assert set(work["name_call"]) == {"cudaLaunchKernel_v7000"}


def test_no_event_class(tmp_path: Path) -> None:
    """Without the column every call is one."""
    path = tmp_path / "x"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (nameId, correlationId, globalTid, end, start)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, ?, 9, 4)", (thread(3),))
    launches = sqlite_export.read(path).launches
    assert launches.select("process", "thread", "start", "end", "name").rows() == [
        (process(1), thread(3), 4, 9, None)
    ]  # fmt: skip


def test_kernel_whose_long_name_is_lost(tmp_path: Path) -> None:
    """A trimmed file may have lost the demangled name: then the short one names the kernel, or none."""
    profile = SqliteProfile()
    for start, kernel in enumerate(("gemm", "conv", "lost")):
        profile.kernel(start, start + 1, 1, kernel)
    rows = profile.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
    rows[1]["demangledName"] = rows[2]["demangledName"] = 4711
    rows[2]["shortName"] = None
    assert sqlite_export.read(profile.write(tmp_path / "x")).kernels["name"].to_list() == ["gemm", "conv", ""]


@pytest.mark.parametrize("processes", [1, 2])
def test_work_that_names_no_process(tmp_path: Path, processes: int) -> None:
    """It belongs to the only process that launched anything; of two none is guessed."""
    profile = SqliteProfile()
    profile.range("r", 0, 9)
    for number in range(1, processes + 1):
        profile.call(1, 2, 5, of_process=number)
    profile.kernel(3, 4, 5, globalPid=None)
    profile.kernel(5, 6, 7, of_process=2)
    loaded = sqlite_export.read(profile.write(tmp_path / "x"))
    assert loaded.kernels["process"].to_list() == [process(1) if processes == 1 else None, process(2)]
    expected = "annot found no launch of 1 GPU activity, because the profile does not name the process."
    assert loaded.meta["notes"] == [expected] * (processes - 1)


def test_payload_of_a_real_number(tmp_path: Path) -> None:
    """Numbers with a point keep all their digits, also beside whole ones."""
    profile = SqliteProfile("2024.6")
    profile.range("double", 0, 1, doubleValue=0.1 + 0.2)
    profile.range("whole", 0, 1, int32Value=-3)
    profile.range("float", 0, 1, floatValue=0.5)
    profile.range("none", 0, 1)
    profile.range("extended", 0, 1, jsonText='{"a": 1}', binaryData=b"\x01")
    payloads = sqlite_export.read(profile.write(tmp_path / "x")).ranges["payload"].to_list()
    assert payloads == ["0.30000000000000004", "-3", "0.5", None, None]
