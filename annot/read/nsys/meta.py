"""Metadata of an Nsight Systems export: exporter, time, GPUs, processes, and facts in the marks of annot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import polars as pl

from annot.labels.marks import (
    CPU,
    LOADER,
    MACHINE,
    MEMORY,
    SCOPE,
    SOURCE,
    WORK,
    cpu_model,
    parse_cpu,
    parse_loader,
    parse_machine,
    parse_rank,
    parse_source,
)
from annot.labels.tag import DOMAIN, NOTE
from annot.read.sqlite import ACTIVITY, Database
from annot.read.text import counted, integer, sentences

T = TypeVar("T")

_PROGRAM: Final = {"command": "ANNOT_COMMAND", "folder": "ANNOT_FOLDER", "script": "ANNOT_SCRIPT"}
_RANK: Final = ("rank", "world_size")
_LONGEST: Final = 40
"""Maximum length of a version."""
_MOST_MACHINES: Final = 8
"""Maximum number of different machines or versions in a file that are listed."""
_MOST_LOADERS: Final = 64
"""Maximum number of different loaders of a process that are listed."""
_NO_CUDA: Final = 0
"""`computeMajor` of a GPU that CUDA does not support, such as an integrated GPU on Windows."""


def read_meta(tables: Database) -> tuple[dict[str, Any], list[str]]:
    """Return the entries of `Profile.meta` that the export contains, and notes of annot's recorder on its data.

    All entries except producer are optional.

    producer: name and version of the exporter, not of the profiler. Can be "".
    devices: a dictionary for each CUDA GPU, with the columns of the export: name, memoryBandwidth (bytes/s),
        clockRate (Hz), smCount, totalMemory (bytes), computeMajor, computeMinor, uuid ... `cuDevice` is the
        device id of kernels.
    processes: a dictionary for each process of the machine: process (as in the tables), pid, name.
    utc_start_ns: time 0 of the profile, in ns since 1970.
    analysis_start_ns: start of the collection in ns.
    rank, world_size, cut: of a recording of annot.
    program: of a recording of `annot run`, see `annot.util.program.Program.facts`.
    cpu, software: model of the CPU, and versions of the GPU driver.
    """
    capture = _entries(tables, "META_DATA_CAPTURE")
    counts = {name: integer(value) or 0 for name, value in capture if name.startswith("ANNOT_")}
    named = {row["globalPid"]: row for row in tables.records("PROCESSES") if isinstance(row.get("globalPid"), int)}
    facts: dict[str, Any] = {
        "devices": _devices(tables),
        "processes": [_named(process, row) for process, row in sorted(named.items())],
        "utc_start_ns": _instant(tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
        "analysis_start_ns": _instant(tables, "ANALYSIS_DETAILS", "startTime"),
        "rank": integer(dict(capture).get("ANNOT_RANK", "")),
        "world_size": integer(dict(capture).get("ANNOT_WORLD_SIZE", "")),
        "cut": _cut(dict(capture)),
        "program": {name: dict(capture)[key] for name, key in _PROGRAM.items() if key in dict(capture)},
        **_machine(tables),
    }
    present = {name: fact for name, fact in facts.items() if fact not in (None, "", [], {})}
    exported = dict(_entries(tables, "EXPORT_META_DATA") + _entries(tables, "META_DATA_EXPORT"))
    product = (exported.get("EXPORT_PRODUCT_NAME", ""), exported.get("EXPORT_PRODUCT_VERSION", ""))
    noted = {"The recorder closed {range} at the end of the recording.": counts.get("ANNOT_OPEN_RANGES", 0)}
    notes = [value for name, value in capture if name == "ANNOT_NOTE"] + sentences(Counter(noted))
    return {"producer": " ".join(filter(None, product)), **present}, notes


def _cut(capture: Mapping[str, str]) -> str:
    """Return the sentence about events that annot's recorder could not write."""
    lost, reason = integer(capture.get("ANNOT_LOST_EVENTS", "")) or 0, capture.get("ANNOT_LOST_REASON")
    why = f": {reason}." if reason else ". Check for a full disk."
    return f"The recording is cut: {counted(lost, 'event')} could not be written{why}" if lost else ""


def _entries(tables: Database, table: str) -> list[tuple[str, str]]:
    rows = tables.records(table)
    return [(str(row["name"]), str(row["value"])) for row in rows if row.keys() >= {"name", "value"}]


def _devices(tables: Database) -> list[dict[str, Any]]:
    gpus = {row.get("id", row.get("deviceId")): row for row in tables.records("TARGET_INFO_GPU")}
    numbered = {(row.get("gpuId"), row.get("cudaId")): row for row in tables.records("TARGET_INFO_CUDA_DEVICE")}
    if numbered:
        return [
            {**gpus.get(gpu, {}), **row, "cuDevice": number}
            for (gpu, number), row in numbered.items()
            if number is not None
        ]
    return [gpu for gpu in gpus.values() if gpu.get("computeMajor") != _NO_CUDA]


def _machine(tables: Database) -> dict[str, Any]:
    """Return the model of the CPU, and the driver of a profile with kernels. Nsight writes 0 for a driver it lacks."""
    system = dict(_entries(tables, "TARGET_INFO_SYSTEM_ENV"))
    cuda = integer(system.get("CudaDriverVersion", "")) or 0
    versions = {
        "NVIDIA driver": system.get("NvDriverVersion", ""),
        "CUDA driver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda > 0 else "",
    }
    kernels = f"{ACTIVITY}KERNEL" in tables.columns
    software = {name: version[:_LONGEST] for name, version in versions.items() if version.strip("0. ") and kernels}
    return {"cpu": cpu_model(system.get("CpuDescription", "")), "software": software}


def _named(process: int, row: Mapping[str, Any]) -> dict[str, Any]:
    return {"process": process, "pid": row.get("pid", process >> 24 & 0xFFFFFF), "name": str(row.get("name", ""))}


def _instant(tables: Database, table: str, column: str) -> int | None:
    values = (row.get(column) for row in tables.records(table))
    return next((value for value in values if isinstance(value, int)), None)


class AnnotMarks:
    """Facts in the marks that were added so far, without repetitions."""

    def __init__(self) -> None:
        self.notes: list[str] = []  # sentences for the report
        self.has_memory = False  # whether the marks include those of `annot.labels.marks`
        self._ranks: dict[int, tuple[int, int]] = {}  # rank and world size by process; the last mark counts
        self._cpus: dict[int, dict[str, int | str]] = {}  # threads and cores by process; the last mark counts
        self._loaders: defaultdict[int, list[dict[str, int | str]]] = defaultdict(list)  # different ones by process
        self._machine: dict[str, str] = {}  # versions and the model of the CPU; several are separated by commas
        self._scopes: list[str] = []  # texts that map name scopes to layers
        self._works: list[str] = []  # texts with the work of operators
        self._sources: dict[str, str] = {}  # file and line of module classes

    def add(self, marks: pl.DataFrame) -> None:
        """Add rows of `annot.profile.MARKS`, in the order of the file."""
        own = marks.filter(pl.col("domain") == DOMAIN).select("process", "start", pl.col("text").cast(pl.String))
        if own.is_empty():
            return
        self._scopes = list(dict.fromkeys((*self._scopes, *_texts(own, SCOPE))))
        self._works = list(dict.fromkeys((*self._works, *_texts(own, WORK))))
        for module, source in filter(None, map(parse_source, _texts(own, SOURCE))):
            _add(self._sources, module, source)  # classes of the same name
        for facts in filter(None, map(parse_machine, _texts(own, MACHINE)[:_MOST_MACHINES])):
            for name, fact in facts.items():
                _add(self._machine, name, fact)
        self.notes = list(dict.fromkeys((*self.notes, *(mark.removeprefix(NOTE) for mark in _texts(own, NOTE)))))
        self.has_memory |= own["text"].str.starts_with(f"{MEMORY} ").any()
        self._ranks |= _parsed(own, "Rank ", parse_rank)
        self._cpus |= _parsed(own, CPU, parse_cpu)
        for process, loader in _parsed(own, LOADER, parse_loader):
            if loader not in self._loaders[process] and len(self._loaders[process]) < _MOST_LOADERS:
                self._loaders[process].append(loader)

    def with_facts(self, meta: dict[str, Any], processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the entries of `Profile.meta` with the processes and the facts.

        If the ranks of all processes are equal, the profile itself gets them too.
        """
        versions = {name: fact for name, fact in self._machine.items() if name != "CPU"}
        facts: dict[str, Any] = {
            "scopes": self._scopes,
            "works": self._works,
            "sources": self._sources,
            "software": versions | meta.get("software", {}),
            "cpu": self._machine.get("CPU"),
            "processes": self._processes(processes),
        }
        ranks = set(self._ranks.values())
        common = dict(zip(_RANK, *ranks, strict=True)) if len(ranks) == 1 else {}
        return meta | {name: fact for name, fact in facts.items() if fact} | common

    def _processes(self, processes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = {process["process"]: process for process in processes}
        facts: list[tuple[int, dict[str, Any]]] = [(process, {"cpu": cpu}) for process, cpu in self._cpus.items()]
        facts += [(process, {"loaders": loaders}) for process, loaders in self._loaders.items()]
        facts += [(process, dict(zip(_RANK, ranks, strict=True))) for process, ranks in self._ranks.items()]
        for process, more in facts:
            rows[process] = rows.get(process, _named(process, {})) | more
        return [rows[process] for process in sorted(rows)]


def _texts(marks: pl.DataFrame, prefix: str) -> list[str]:
    """Return the different texts with a prefix, in order."""
    text = marks["text"]
    return text.filter(text.str.starts_with(prefix)).unique(maintain_order=True).to_list()


def _parsed(marks: pl.DataFrame, prefix: str, parse: Callable[[str], T | None]) -> list[tuple[int, T]]:
    """Return process and facts of the marks with a prefix, by start."""
    rows = marks.filter(pl.col("text").str.starts_with(prefix)).sort("start", maintain_order=True)
    facts = map(cache(parse), rows["text"])
    return [(process, fact) for process, fact in zip(rows["process"], facts, strict=True) if fact is not None]


def _add(facts: dict[str, str], name: str, fact: str) -> None:
    same = facts.get(name, "")
    facts[name] = same if fact in same.split(", ") else ", ".join(filter(None, (same, fact)))
