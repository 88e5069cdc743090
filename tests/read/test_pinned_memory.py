"""Whether the host memory of copies is pinned, in all formats that record it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from nvprof_file import NvprofFile
from shared_data import shared, unpacked
from xplane_profile import XPlaneProfile

from annot import load
from annot.profile import Profile

DATA = Path(__file__).resolve().parents[1] / "data"


def _counts(profile: Profile) -> dict[tuple[str, bool | None], int]:
    counts = profile.copies.group_by("kind", "pinned").len()
    return {(kind, pinned): count for kind, pinned, count in counts.iter_rows()}


@pytest.mark.parametrize(
    "name",
    ["nsys/pipit_saxpy_mpi.2022.2.sqlite.gz", "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz",
     "nsys/ginda_h100_2gpu_1s.2026.2.sqlite.gz"],
)  # fmt: skip
def test_exports_of_nsight_systems(name: str, tmp_path: Path) -> None:
    """The kinds of memory on both sides are those of the table; Nsight counts pageable as 0 and pinned as 1."""
    path = unpacked(name, tmp_path)
    with sqlite3.connect(path) as database:
        rows = database.execute("select srcKind, dstKind, count(*) from CUPTI_ACTIVITY_KIND_MEMCPY group by 1, 2")
        expected = {(0, 2): False, (2, 0): False, (1, 2): True, (2, 1): True, (2, 2): None}
        counts: dict[bool | None, int] = {}
        for source, target, count in rows:
            pinned = expected[source, target]
            counts[pinned] = counts.get(pinned, 0) + count
    found = load(path).copies
    copies = found.filter(found["kind"] != "memset")
    assert dict(copies["pinned"].value_counts().iter_rows()) == counts
    blocks = [block for block in load(path).work_blocks() if "pinned" in block.columns]
    assert sum(int(block["pinned"].count()) for block in blocks) == counts.get(True, 0) + counts.get(False, 0)


def test_traces_of_torch_profiler(tmp_path: Path) -> None:
    """The names of copies say it: pageable, pinned, or only host."""
    counts = _counts(load(shared("kineto/hta_recsys_a100_cudagraph.json.gz")))
    assert counts[("HtoD", False)] == 45
    assert counts[("HtoD", True)] == 35
    assert counts[("DtoH", False)] == 30
    names = ("Memcpy HtoD (Host -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD", "Memset (Device)")
    events = [{"ph": "X", "cat": "gpu_memcpy", "name": name, "ts": 10, "dur": 1} for name in names]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert load(tmp_path / "trace.json").copies["pinned"].to_list() == [None, True, None, None]


def test_traces_of_the_cupti_backend_of_torch_profiler(tmp_path: Path) -> None:
    """All copies have the same name. Their arguments have the direction, numbers where PyTorch knows no name."""
    sides = [("HtoD", "pinned", "device"), ("DtoH", "device", "pageable"), ("DtoD", "device", "device"), (9, 1, 3)]
    events = [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 10 * at, "dur": 1,
         "args": dict(zip(("copy kind", "src kind", "dst kind"), side, strict=True))}
        for at, side in enumerate(sides)
    ]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    copies = load(tmp_path / "trace.json").copies.select("kind", "pinned").rows()
    assert copies == [("HtoD", True), ("DtoH", False), ("DtoD", None), ("unknown", None)]


def test_files_of_nvprof(tmp_path: Path) -> None:
    """The columns SrcMemType and DstMemType of CSV, and the numbers of CUPTI, where 1 is pageable and 2 pinned."""
    assert load(DATA / "nvprof_gpu_trace.csv").copies["pinned"].to_list() == [False, None]
    file = NvprofFile(tmp_path / "x.nvprof")
    place = {"contextId": 1, "streamId": 7, "dstKind": 3, "copyKind": 1, "bytes": 8}
    for kind in (0, 1, 2):
        file.add("MEMCPY", start=10 + 10 * kind, end=15 + 10 * kind, correlationId=kind, srcKind=kind, **place)
    assert load(file.write()).copies["pinned"].to_list() == [None, False, True]


def test_xplane_files(tmp_path: Path) -> None:
    """The details of a copy name the memory on both sides."""
    file = XPlaneProfile()
    gpu = file.plane("/device:GPU:0")
    stream = gpu.line("Stream #7", 7)
    for at, memory in enumerate(("pageable", "pinned", "device")):
        details = f"kind_src:{memory} kind_dst:device size:64 dest:0 async:1"
        gpu.event(stream, "MemcpyH2D", 1_000 * at, 500, memcpy_details=details)
    assert load(file.write(tmp_path / "x.xplane.pb")).copies["pinned"].to_list() == [False, True, None]
