"""Metadata of an Nsight Systems export: exporter, time, GPUs and processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from annot.read.notes import counted
from annot.read.nsys.schema import Tables

__all__ = ["notes_of_recorder", "read_meta", "with_ranks"]

_NO_CUDA: Final = 0
"""`computeMajor` of a GPU that CUDA does not support, such as an integrated GPU on Windows."""


def read_meta(tables: Tables) -> dict[str, Any]:
    """Return the entries of `Profile.meta` that the export contains. All except producer are optional.

    producer: name and version of the exporter, not of the profiler. Can be "".
    devices: a dictionary for each CUDA GPU, with the columns of the export: name, memoryBandwidth (bytes/s),
        clockRate (Hz), smCount, totalMemory (bytes), computeMajor, computeMinor, uuid ... `cuDevice` is the
        device id of kernels.
    processes: a dictionary for each process of the machine: process (as in the tables), pid, name.
    utc_start_ns: time 0 of the profile, in ns since 1970.
    analysis_start_ns: start of the collection in ns.
    rank, world_size: of a recording of annot.
    """
    capture = _entries(tables, "META_DATA_CAPTURE")
    facts: dict[str, Any] = {
        "devices": _devices(tables),
        "processes": _processes(tables),
        "utc_start_ns": _instant(tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
        "analysis_start_ns": _instant(tables, "ANALYSIS_DETAILS", "startTime"),
        "rank": _number(dict(capture).get("ANNOT_RANK")),
        "world_size": _number(dict(capture).get("ANNOT_WORLD_SIZE")),
    }
    known = {name: fact for name, fact in facts.items() if fact not in (None, [])}
    return {"producer": _producer(tables), **known}


def with_ranks(meta: dict[str, Any], ranks: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """Return the entries of `Profile.meta` with rank and world size of each process.

    If all ranks are equal, the profile itself gets them too.

    Example:
        >>> with_ranks({"processes": [{"process": 7, "pid": 1, "name": "python"}]}, {7: (3, 8)})["rank"]
        3
    """
    if not ranks:
        return meta
    processes = {process["process"]: process for process in meta.get("processes", ())}
    for process, (rank, world_size) in ranks.items():
        known = processes.get(process) or _named(process, {})
        processes[process] = known | {"rank": rank, "world_size": world_size}
    facts = meta | {"processes": [processes[process] for process in sorted(processes)]}
    different = set(ranks.values())
    return facts | (dict(zip(("rank", "world_size"), *different, strict=True)) if len(different) == 1 else {})


def notes_of_recorder(tables: Tables) -> list[str]:
    """Return notes on events that annot's recorder lost, and on ranges that it closed."""
    capture = _entries(tables, "META_DATA_CAPTURE")
    counts = {name: _number(value) or 0 for name, value in capture if name.startswith("ANNOT_")}
    notes = [value for name, value in capture if name == "ANNOT_NOTE"]
    if lost := counts.get("ANNOT_LOST_EVENTS"):
        notes.append(f"The recorder could not write {counted(lost, 'event')}.")
    if unended := counts.get("ANNOT_OPEN_RANGES"):
        notes.append(f"The recorder closed {counted(unended, 'range')} at the end of the recording.")
    return notes


def _entries(tables: Tables, table: str) -> list[tuple[str, str]]:
    rows = tables.records(table)
    return [(str(row["name"]), str(row["value"])) for row in rows if row.keys() >= {"name", "value"}]


def _producer(tables: Tables) -> str:
    exported = dict(_entries(tables, "EXPORT_META_DATA") + _entries(tables, "META_DATA_EXPORT"))
    product = (exported.get("EXPORT_PRODUCT_NAME", ""), exported.get("EXPORT_PRODUCT_VERSION", ""))
    return " ".join(filter(None, product))


def _devices(tables: Tables) -> list[dict[str, Any]]:
    gpus = {row.get("id", row.get("deviceId")): row for row in tables.records("TARGET_INFO_GPU")}
    numbered = {(row.get("gpuId"), row.get("cudaId")): row for row in tables.records("TARGET_INFO_CUDA_DEVICE")}
    if numbered:
        return [
            {**gpus.get(gpu, {}), **row, "cuDevice": number}
            for (gpu, number), row in numbered.items()
            if number is not None
        ]
    return [gpu for gpu in gpus.values() if gpu.get("computeMajor") != _NO_CUDA]


def _processes(tables: Tables) -> list[dict[str, Any]]:
    named = {row["globalPid"]: row for row in tables.records("PROCESSES") if isinstance(row.get("globalPid"), int)}
    return [_named(process, row) for process, row in sorted(named.items())]


def _named(process: int, row: Mapping[str, Any]) -> dict[str, Any]:
    return {"process": process, "pid": row.get("pid", process >> 24 & 0xFFFFFF), "name": str(row.get("name", ""))}


def _instant(tables: Tables, table: str, column: str) -> int | None:
    for row in tables.records(table):
        if isinstance(row.get(column), int):
            return int(row[column])
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None
