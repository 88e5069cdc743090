"""What an Nsight Systems export says about its machine, its processes and its beginning."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from shared_data import unpacked
from sqlite_profile import SqliteProfile, process, thread

from annot.read.nsys import sqlite_export


def _meta(profile: SqliteProfile, path: Path) -> dict[str, Any]:
    profile.range("r", 0, 9)
    meta = sqlite_export.read(profile.write(path)).meta
    json.dumps(meta)  # other stages write it into their files
    return meta


@pytest.mark.parametrize(
    ("name", "gpu", "bandwidth", "multiprocessors", "memory", "capability"),
    [
        ("athrun_lm_attn_windows.2026.2", "NVIDIA RTX 5000 Ada Generation Laptop GPU", 576_064, 76, 17170956288, (8, 9)),  # noqa: E501
        ("jsun_lm_fwd_bwd.2025.1", "NVIDIA GeForce RTX 3070 Ti", 608_064, 48, 8589410304, (8, 6)),
        ("pipit_saxpy_mpi.2022.2", "NVIDIA A100-SXM4-40GB", 1_555_200, 108, 42297524224, (8, 0)),
    ],
)  # fmt: skip
def test_devices_of_real_machines(
    tmp_path: Path, name: str, gpu: str, bandwidth: int, multiprocessors: int, memory: int,
    capability: tuple[int, int],
) -> None:  # fmt: skip
    """The one GPU that CUDA sees is there with its peaks; on Windows the others of the machine are not."""
    (found,) = sqlite_export.read(unpacked(f"nsys/{name}.sqlite.gz", tmp_path)).meta["devices"]
    assert (found["cuDevice"], found["name"], found["memoryBandwidth"]) == (0, gpu, bandwidth * 10**6)
    assert (found["smCount"], found["totalMemory"]) == (multiprocessors, memory)
    assert (found["computeMajor"], found["computeMinor"]) == capability


def test_devices_of_2020(tmp_path: Path) -> None:
    """The oldest layout numbers the GPUs in another column; what it does not know is absent."""
    profile = SqliteProfile()
    profile.add("TARGET_INFO_GPU", vmId=1, deviceId=0, name="Tesla V100", memoryBandwidth=900, smCount=None)
    assert _meta(profile, tmp_path / "x")["devices"] == [
        {"vmId": 1, "deviceId": 0, "name": "Tesla V100", "memoryBandwidth": 900}
    ]  # fmt: skip


def test_devices_that_cuda_renumbers(tmp_path: Path) -> None:
    """The order of rows is not that of the numbers, and CUDA's numbers need not be those of the machine."""
    profile = SqliteProfile()
    for number, name in ((1, "B"), (0, "A"), (2, "Intel")):
        profile.add("TARGET_INFO_GPU", id=number, name=name, cuDevice=0, computeMajor=0 if name == "Intel" else 9)
    profile.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=5)
    profile.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=1, pid=5)
    profile.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=1, pid=6)
    devices = _meta(profile, tmp_path / "x")["devices"]
    assert [(device["cuDevice"], device["name"]) for device in devices] == [(0, "B"), (1, "A")]
    profile = SqliteProfile()
    for name, capability in (("A", 9), ("Intel", 0), ("old", None)):
        profile.add("TARGET_INFO_GPU", id=name, name=name, cuDevice=0, computeMajor=capability)
    assert [device["name"] for device in _meta(profile, tmp_path / "y")["devices"]] == ["A", "old"]


def test_processes_are_those_of_the_profile(tmp_path: Path) -> None:
    """Of the 17 processes that a real file lists, the two ranks took part."""
    loaded = sqlite_export.read(unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path))
    assert [(entry["pid"], entry["name"]) for entry in loaded.meta["processes"]] == [(144, "python3"), (145, "python3")]
    assert {entry["process"] for entry in loaded.meta["processes"]} == set(loaded.kernels["process"])
    assert loaded.meta["utc_start_ns"] == 1779782330176752435


def test_what_the_file_does_not_say_is_absent(tmp_path: Path) -> None:
    """A file without metadata has no entry for it, and one whose metadata is nonsense has none either."""
    assert set(_meta(SqliteProfile(), tmp_path / "x")) == {"source", "format", "producer", "notes"}
    profile = SqliteProfile()
    profile.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs="soon", localTime=b"\xff")
    profile.add("TARGET_INFO_CUDA_DEVICE", gpuId=b"\x00", other=1)
    profile.add("PROCESSES", globalPid="none", pid=None)
    profile.add("META_DATA_EXPORT", other="x")
    profile.add("META_DATA_CAPTURE", name="ANNOT_RANK", value="-1")
    assert set(_meta(profile, tmp_path / "y")) == {"source", "format", "producer", "notes"}


def test_rank_and_world_size(tmp_path: Path) -> None:
    """What annot noted of a distributed run is in the metadata, also without a name of the process."""
    profile = SqliteProfile()
    profile.add("META_DATA_CAPTURE", name="ANNOT_RANK", value="3")
    profile.add("META_DATA_CAPTURE", name="ANNOT_WORLD_SIZE", value="8")
    profile.add("PROCESSES", globalPid=process(1))
    meta = _meta(profile, tmp_path / "x")
    assert (meta["rank"], meta["world_size"]) == (3, 8)
    assert meta["processes"] == [{"process": process(1), "pid": 1, "name": ""}]


def test_metadata_as_views(tmp_path: Path) -> None:
    """What has the name of a table but is none is passed over."""
    profile = SqliteProfile()
    profile.range("r", 0, 9)
    path = profile.write(tmp_path / "x")
    with sqlite3.connect(path) as database:
        database.execute("CREATE VIEW PROCESSES AS SELECT 1 AS globalPid")
    assert "processes" not in sqlite_export.read(path).meta


def _with_marks(texts: dict[int, list[str]], path: Path) -> dict[str, Any]:
    """The metadata of a profile whose processes, by process id, have marks of annot."""
    profile = SqliteProfile()
    for pid, marks in texts.items():
        profile.event(75, 0, None, "annot", thread(1, pid), domainId=1)
        for at, text in enumerate(marks):
            profile.event(34, at, None, text, thread(1, pid), domainId=1)
    return _meta(profile, path)


def test_profile_has_the_rank_of_its_processes_only_if_it_is_one(tmp_path: Path) -> None:
    """Processes of several ranks keep theirs; the last mark of a process counts."""
    one = _with_marks({1: ["Rank 0 of 4", "Rank 3 of 4"], 2: ["Rank 3 of 4"]}, tmp_path / "one")
    assert (one["rank"], one["world_size"]) == (3, 4)
    two = _with_marks({1: ["Rank 0 of 2"], 2: ["Rank 1 of 2"]}, tmp_path / "two")
    assert "rank" not in two
    assert [(process["rank"], process["world_size"]) for process in two["processes"]] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(("count", "listed"), [(64, 64), (65, 64)])
def test_loaders_of_a_process_are_bounded(count: int, listed: int, tmp_path: Path) -> None:
    """A process has its first 64 different loaders, in order; a loader that repeats counts once."""
    texts = [f"Loader workers={number} persistent=0 pinned=1" for number in range(count)]
    (process,) = _with_marks({1: [*texts, texts[0]]}, tmp_path / "x")["processes"]
    assert [loader["workers"] for loader in process["loaders"]] == list(range(listed))
