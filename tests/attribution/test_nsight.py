"""The reference `nsight_rule`: equal to what Nsight Systems printed for real profiles, and prints here."""

from __future__ import annotations

import csv
import gzip
import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nsight_rule as nsight
import polars as pl
import pytest
from commands import needs_nsys
from hypothesis import given, settings
from hypothesis import strategies as st
from nsight_activity import Activity, read_activity
from nsight_rule import nvtx_gpu_proj_sum, nvtx_gpu_proj_trace, nvtx_kern_sum
from random_inputs import examples
from shared_data import shared, unpacked
from sqlite_profile import SqliteProfile, process, thread

from annot.errors import AnnotError
from annot.util.installed_tools import find_nsys

Report = Callable[[Activity], pl.DataFrame]
REPORTS: dict[str, Report] = {
    "nvtx_gpu_proj_trace": nvtx_gpu_proj_trace, "nvtx_gpu_proj_sum": nvtx_gpu_proj_sum, "nvtx_kern_sum": nvtx_kern_sum,
}  # fmt: skip
PROFILES = (
    "athrun_lm_attn_windows.2026.2", "ginda_mfu_2gpu_before.2026.2", "jsun_lm_fwd_bwd.2025.1",
    "pipit_saxpy_mpi.2022.2", "zx_lm_fwd_nvtx.2024.6",
)  # fmt: skip


def as_csv(table: pl.DataFrame) -> str:
    return table.write_csv(quote_style="necessary")


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("name", PROFILES)
def test_equals_the_official_file(name: str, report: str, tmp_path: Path) -> None:
    """Every byte is that of the CSV which Nsight Systems 2023.4 wrote for the same real profile."""
    packed = report == "nvtx_gpu_proj_trace"
    expected = shared(f"nsys/oracle/{name}.nsys23_{report}.csv{'.gz' if packed else ''}").read_bytes()
    expected = gzip.decompress(expected) if packed else expected
    activity = read_activity(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))
    assert as_csv(REPORTS[report](activity)) == expected.decode()


@pytest.mark.parametrize("report", ["nvtx_gpu_proj_trace", "nvtx_kern_sum"])
def test_equals_the_official_file_of_edge_cases(report: str) -> None:
    """Duplicates, crossing ranges, other threads, open ranges, graphs, two devices, calls recorded twice."""
    activity = read_activity(shared("nsys/edge_semantics/edge_semantics.sqlite"))
    expected = shared(f"nsys/edge_semantics/edge_{report}.csv").read_text()
    assert as_csv(REPORTS[report](activity)) == expected


def test_portions_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels summed up owner by owner give what they give at once."""
    activity = read_activity(shared("nsys/edge_semantics/edge_semantics.sqlite"))
    whole = nvtx_kern_sum(activity)
    monkeypatch.setattr(nsight, "_PAIRS_AT_ONCE", 1)
    assert nvtx_kern_sum(activity).equals(whole)


def test_what_would_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Too many pairs and too long stacks end in a sentence, before they are made."""
    profile = SqliteProfile()
    for level in range(10):
        profile.range("r", level, 100 - level)
        profile.call(50, 51, 1)
        profile.kernel(200, 201, 1)
    activity = read_activity(profile.write(tmp_path / "p.sqlite"))
    assert nvtx_kern_sum(activity)["Total Time (ns)"].to_list() == [10 * 10 * 10]
    monkeypatch.setattr(nsight, "_PAIRS_LIMIT", 999)
    with pytest.raises(AnnotError, match="1,000 pairs"):
        nvtx_kern_sum(activity)
    monkeypatch.setattr(nsight, "_PAIRS_LIMIT", 99)
    with pytest.raises(AnnotError, match="100 pairs"):
        nvtx_kern_sum(activity)
    monkeypatch.setattr(nsight, "_STACKS_LIMIT", 50)
    with pytest.raises(AnnotError, match="RangeStack"):
        nvtx_gpu_proj_trace(activity)
    assert nvtx_gpu_proj_sum(activity)["Range Instances"].to_list() == [10]


def test_envelope_parents_and_levels(tmp_path: Path) -> None:
    """Two crossing ranges own one kernel, the shorter one is the parent; gaps and other devices count."""
    profile = SqliteProfile()
    profile.range("batch", 0, 1000, domain="train")
    profile.range("wide", 100, 600, kind=60)
    profile.range("late", 300, 700, kind=60)
    profile.range("leaf", 400, 500)
    profile.range("idle", 800, 900)
    profile.call(410, 420, 1)
    profile.kernel(2000, 2100, 1)
    profile.call(650, 660, 2)
    profile.kernel(5000, 5600, 2, device=1)
    table = nvtx_gpu_proj_trace(read_activity(profile.write(tmp_path / "p.sqlite")))
    ids = dict(table.select("Name", "RangeId").rows())
    shown = table.select(
        "Name", "Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps", "Lvl", "NumChild", "ParentId"
    )
    batch = ids["train:batch"]
    assert shown.rows() == [
        ("train:batch", 2000, 3600, 2, 0, 2, None),
        ("wide", 2000, 100, 1, 1, 0, batch),
        ("late", 2000, 3600, 2, 1, 1, batch),
        ("leaf", 2000, 100, 1, 2, 0, ids["late"]),
    ]
    assert table["RangeStack"].to_list()[-1] == f":{batch}:{ids['late']}:{ids['leaf']}"


def test_work_in_no_range_has_a_row(tmp_path: Path) -> None:
    """What was launched outside, but not what has no known call, stands in the first row of the trace."""
    profile = SqliteProfile()
    profile.range("r", 0, 100)
    for at, number in ((10, 1), (200, 2), (300, 3)):
        profile.call(at, at + 5, number)
        profile.kernel(1000 + at, 1010 + at, number)
    profile.kernel(1, 9000, 999)
    activity = read_activity(profile.write(tmp_path / "p.sqlite"))
    shown = nvtx_gpu_proj_trace(activity).select("Name", "Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps")
    assert shown.rows() == [(None, 1200, 110, 2), ("r", 1010, 10, 1)]
    kernels = nvtx_kern_sum(activity).select("NVTX Range", "PID", "Kern Inst", "Total Time (ns)")
    assert kernels.rows() == [(None, None, 1, 8999), (None, 1, 2, 20), ("r", 1, 1, 10)]


def test_without_ranges_or_work(tmp_path: Path) -> None:
    """A profile that has only one of both gives tables of the same columns."""
    ranges, kernels = SqliteProfile(), SqliteProfile()
    ranges.range("r", 0, 100)
    kernels.call(0, 5, 1)
    kernels.kernel(10, 20, 1)
    full = read_activity(kernels.write(tmp_path / "kernels.sqlite"))
    empty = read_activity(ranges.write(tmp_path / "ranges.sqlite"))
    for report in REPORTS.values():
        assert report(empty).is_empty()
        assert report(empty).schema == report(full).schema
    assert nvtx_gpu_proj_trace(full)["NumGPUOps"].to_list() == [1]
    assert nvtx_kern_sum(full)["NVTX Inst"].to_list() == [0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{}", "is not an SQLite export"), (b"SQLite format 3\x00" + bytes(200), "damaged"), (None, "cannot be read")],
)
def test_other_files_are_refused(content: bytes | None, reason: str, tmp_path: Path) -> None:
    """One sentence names the file and says why."""
    path = tmp_path / "p.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AnnotError, match=rf"p\.sqlite .*{reason}"):
        read_activity(path)


def test_missing_column_is_refused(tmp_path: Path) -> None:
    """A table that lacks what the rule needs is named."""
    profile = SqliteProfile()
    profile.add("CUPTI_ACTIVITY_KIND_MEMSET", start=1, end=2)
    with pytest.raises(AnnotError, match=r"CUPTI_ACTIVITY_KIND_MEMSET lacks the column correlationId"):
        read_activity(profile.write(tmp_path / "p.sqlite"))


def official(report: str, old: str, path: Path) -> list[dict[str, str]]:
    """What the installed Nsight Systems prints; versions before 2023.4 call the report otherwise, and nothing None."""
    nsys = find_nsys()
    assert nsys
    name = report if nsys.version >= (2023, 4) else old
    command = [str(nsys.path), "stats", "--report", name, "--format", "csv", "--output", "-", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=path.parent, timeout=120)
    lines = done.stdout.splitlines(keepends=True)
    begin = next(n for n, line in enumerate(lines) if line.startswith(("Name,", "NVTX Range,")))
    body = "".join(lines[begin:]).strip("\n")
    rows = csv.DictReader(io.StringIO(body))
    return [{key: "" if value == "None" else value for key, value in row.items()} for row in rows]


def as_printed(table: pl.DataFrame) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(table))))


def check_against_tool(path: Path) -> None:
    """Compare the two reports that 2022.4 has, which knows no row for what lies in no range."""
    activity = read_activity(path)
    table = nvtx_gpu_proj_trace(activity).filter(pl.col("RangeId").is_not_null())
    printed = official("nvtx_gpu_proj_trace", "nvtxgpuproj", path)
    theirs = [row for row in printed if row["RangeId"]]
    assert as_printed(table.sort("RangeId")) == sorted(theirs, key=lambda row: int(row["RangeId"]))
    kernels = as_printed(nvtx_kern_sum(activity))
    assert kernels == sorted(official("nvtx_kern_sum", "nvtxkernsum", path), key=lambda row: kernels.index(row))


# On the profile of ginda 2022.4 takes minutes and loses parents, because it compares times in single precision.
@needs_nsys
@pytest.mark.parametrize("name", [name for name in PROFILES if not name.startswith("ginda")])
def test_equals_the_installed_tool(name: str, tmp_path: Path) -> None:
    """`nsys stats` prints the same for real profiles."""
    check_against_tool(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))


ranges = st.tuples(
    st.integers(1, 2), st.integers(0, 12), st.integers(0, 9) | st.none(), st.sampled_from(["a", "b", ""]),
    st.sampled_from([59, 59, 60, 70, 71]), st.sampled_from(["", "dom"]), st.booleans(),
)  # fmt: skip
calls = st.tuples(st.integers(1, 2), st.integers(0, 14), st.integers(0, 3), st.integers(1, 5), st.sampled_from([0, 67]))
work = st.tuples(st.integers(1, 6), st.integers(0, 99), st.integers(0, 30), st.booleans(), st.sampled_from("kl"))


def write_random(path: Path, rows: tuple[list[Any], list[Any], list[Any]]) -> Path:
    """Write a profile in which threads 1 and 2 of process 1 and thread 1 of process 2 do the same."""
    profile = SqliteProfile()
    # The tool needs one row in each table, and one known end.
    profile.range("first", -10, -9)
    profile.call(-10, -10, 77)
    profile.kernel(0, 1, 77)
    profile.copy(0, 1, 78)
    for number, start, length, text, kind, domain, foreign in rows[0]:
        end = None if length is None else start + length
        ended_by = thread(3) if foreign and kind in (60, 71) else None
        profile.range(text, start, end, kind=kind, number=number, domain=domain, endGlobalTid=ended_by)
    for number, start, length, correlation, kind in rows[1]:
        profile.call(start, start + length, correlation, number=number, kind=kind)
    profile.call(5, 6, 1, of_process=2)
    for correlation, start, length, kernel, name in rows[2]:
        if kernel:
            profile.kernel(start, start + length, correlation, name)
        else:
            profile.copy(start, start + length, correlation)
    profile.kernel(3, 4, 1, of_process=2)
    assert process(1) != process(2)
    return profile.write(path)


@needs_nsys
@settings(max_examples=examples(40), deadline=None, database=None, derandomize=True)
@given(st.tuples(st.lists(ranges, max_size=10), st.lists(calls, max_size=8), st.lists(work, max_size=8)))
def test_equals_the_installed_tool_on_random_profiles(
    tmp_path_factory: pytest.TempPathFactory, rows: tuple[list[Any], list[Any], list[Any]]
) -> None:
    """`nsys stats` prints the same for small profiles full of ties."""
    check_against_tool(write_random(tmp_path_factory.mktemp("random") / "p.sqlite", rows))
