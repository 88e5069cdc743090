"""Metadata of an Nsight Systems export: exporter, time, GPUs, processes, and facts in the marks of annot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from annot.labels.marks import (
    CPU,
    LOADER,
    MACHINE,
    MEMORY,
    SCOPE,
    SOURCE,
    cpu_model,
    parse_cpu,
    parse_loader,
    parse_machine,
    parse_rank,
    parse_source,
)
from annot.labels.tag import DOMAIN, NOTE
from annot.read.csv_text import integer
from annot.read.notes import counted, sentences
from annot.read.nsys.schema import ACTIVITY, Tables

__all__ = [
    "AnnotMarks",
    "notes_of_recorder",
    "read_meta",
    "with_cpus",
    "with_loaders",
    "with_machine",
    "with_ranks",
]

_LONGEST: Final = 40
"""Maximum length of a version."""
_MOST_MACHINES: Final = 8
"""Maximum number of different machines or versions in a file that are listed."""
_MOST_LOADERS: Final = 64
"""Maximum number of different marks about loaders in a block of a file that are read."""
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
    rank, world_size, cut: of a recording of annot.
    cpu, software: model of the CPU, and versions of the GPU driver.
    """
    capture = _entries(tables, "META_DATA_CAPTURE")
    named = {row["globalPid"]: row for row in tables.records("PROCESSES") if isinstance(row.get("globalPid"), int)}
    facts: dict[str, Any] = {
        "devices": _devices(tables),
        "processes": [_named(process, row) for process, row in sorted(named.items())],
        "utc_start_ns": _instant(tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
        "analysis_start_ns": _instant(tables, "ANALYSIS_DETAILS", "startTime"),
        "rank": integer(dict(capture).get("ANNOT_RANK", "")),
        "world_size": integer(dict(capture).get("ANNOT_WORLD_SIZE", "")),
        "cut": _cut(dict(capture)),
        **_machine(tables),
    }
    present = {name: fact for name, fact in facts.items() if fact not in (None, "", [], {})}
    exported = dict(_entries(tables, "EXPORT_META_DATA") + _entries(tables, "META_DATA_EXPORT"))
    product = (exported.get("EXPORT_PRODUCT_NAME", ""), exported.get("EXPORT_PRODUCT_VERSION", ""))
    return {"producer": " ".join(filter(None, product)), **present}


def with_ranks(meta: dict[str, Any], ranks: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """Return the entries of `Profile.meta` with rank and world size of each process.

    If all ranks are equal, the profile itself gets them too.
    """
    facts = _add_process_facts(
        meta, {key: dict(zip(("rank", "world_size"), rank, strict=True)) for key, rank in ranks.items()}
    )
    different = set(ranks.values())
    return facts | (dict(zip(("rank", "world_size"), *different, strict=True)) if len(different) == 1 else {})


def with_machine(meta: dict[str, Any], machine: Mapping[str, str]) -> dict[str, Any]:
    """Return the entries of `Profile.meta` with the facts of `annot.labels.marks.parse_machine`."""
    software = {name: fact for name, fact in machine.items() if name != "CPU"} | meta.get("software", {})
    cpu = machine.get("CPU") or meta.get("cpu")
    return meta | ({"software": software} if software else {}) | ({"cpu": cpu} if cpu else {})


def with_cpus(meta: dict[str, Any], cpus: Mapping[int, dict[str, int | str]]) -> dict[str, Any]:
    """Return the entries of `Profile.meta` with the facts of `annot.labels.marks.parse_cpu` as ``cpu`` of processes."""
    return _add_process_facts(meta, {process: {"cpu": facts} for process, facts in cpus.items()})


def with_loaders(meta: dict[str, Any], loaders: Mapping[int, list[dict[str, int]]]) -> dict[str, Any]:
    """Return the entries of `Profile.meta` with the facts of `annot.labels.marks.parse_loader` as ``loaders``."""
    return _add_process_facts(meta, {process: {"loaders": facts} for process, facts in loaders.items()})


def _add_process_facts(meta: dict[str, Any], facts: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    if not facts:
        return meta
    processes = {process["process"]: process for process in meta.get("processes", ())}
    for process, more in facts.items():
        processes[process] = (processes.get(process) or _named(process, {})) | more
    return meta | {"processes": [processes[process] for process in sorted(processes)]}


def _cut(capture: Mapping[str, str]) -> str:
    """Return the sentence about events that annot's recorder could not write."""
    lost, reason = integer(capture.get("ANNOT_LOST_EVENTS", "")) or 0, capture.get("ANNOT_LOST_REASON")
    why = f": {reason}." if reason else ". Check for a full disk."
    return f"The recording is cut: {counted(lost, 'event')} could not be written{why}" if lost else ""


def notes_of_recorder(tables: Tables) -> list[str]:
    """Return notes on the data of annot's recorder, and on ranges that it closed."""
    capture = _entries(tables, "META_DATA_CAPTURE")
    counts = {name: integer(value) or 0 for name, value in capture if name.startswith("ANNOT_")}
    noted = {"The recorder closed {range} at the end of the recording.": counts.get("ANNOT_OPEN_RANGES", 0)}
    return [value for name, value in capture if name == "ANNOT_NOTE"] + sentences(Counter(noted))


def _entries(tables: Tables, table: str) -> list[tuple[str, str]]:
    rows = tables.records(table)
    return [(str(row["name"]), str(row["value"])) for row in rows if row.keys() >= {"name", "value"}]


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


def _machine(tables: Tables) -> dict[str, Any]:
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


def _instant(tables: Tables, table: str, column: str) -> int | None:
    values = (row.get(column) for row in tables.records(table))
    return next((value for value in values if isinstance(value, int)), None)


class AnnotMarks:
    """Facts in the marks that were added so far, without repetitions."""

    def __init__(self) -> None:
        self.ranks: dict[int, tuple[int, int]] = {}  # rank and world size by process; the last mark counts
        self.cpus: dict[int, dict[str, int | str]] = {}  # threads and cores by process; the last mark counts
        self.loaders: dict[int, list[dict[str, int]]] = {}  # different DataLoaders by process
        self.machine: dict[str, str] = {}  # versions and the model of the CPU; several are separated by commas
        self.notes: list[str] = []  # sentences for the report
        self.scopes: list[str] = []  # texts that map name scopes to layers; see `annot.labels.marks`
        self.sources: dict[str, str] = {}  # file and line of module classes
        self.has_memory = False  # whether the marks include those of `annot.labels.marks`

    def add(self, marks: pl.DataFrame) -> None:
        """Add rows of `annot.profile.MARKS`, in the order of the file."""
        own = marks.filter(pl.col("domain") == DOMAIN)
        if own.is_empty():
            return
        text = pl.col("text").cast(pl.String)
        scopes = own.select(text).filter(text.str.starts_with(SCOPE))["text"].unique(maintain_order=True)
        self.scopes = list(dict.fromkeys((*self.scopes, *scopes)))
        sources = own.select(text).filter(text.str.starts_with(SOURCE))["text"].unique(maintain_order=True)
        for module, source in filter(None, map(parse_source, sources)):
            _add(self.sources, module, source)  # classes of the same name
        machines = own.select(text).filter(text.str.starts_with(MACHINE))["text"].unique(maintain_order=True)
        for facts in filter(None, map(parse_machine, machines.head(_MOST_MACHINES))):
            for name, fact in facts.items():
                _add(self.machine, name, fact)
        notes = own.select(text).filter(text.str.starts_with(NOTE))["text"].unique(maintain_order=True)
        self.notes += [note for mark in notes if (note := mark.removeprefix(NOTE)) not in self.notes]
        self.has_memory |= bool(own.select(text.str.starts_with(f"{MEMORY} ").any()).item())
        ranks = own.filter(text.str.starts_with("Rank ")).sort("start")
        parsed_ranks = ((process, parse_rank(mark)) for process, mark in ranks.select("process", text).iter_rows())
        self.ranks |= {process: rank for process, rank in parsed_ranks if rank is not None}
        cpus = own.filter(text.str.starts_with(CPU)).sort("start")
        cores = ((process, parse_cpu(mark)) for process, mark in cpus.select("process", text).iter_rows())
        self.cpus |= {process: fact for process, fact in cores if fact is not None}
        loaders = own.filter(text.str.starts_with(LOADER)).select("process", text).unique(maintain_order=True)
        for process, mark in loaders.head(_MOST_LOADERS).iter_rows():
            loader, others = parse_loader(mark), self.loaders.get(process, [])
            if loader is not None and loader not in others:
                self.loaders[process] = [*others, loader]


def _add(facts: dict[str, str], name: str, fact: str) -> None:
    same = facts.get(name, "")
    facts[name] = same if fact in same.split(", ") else ", ".join(filter(None, (same, fact)))
