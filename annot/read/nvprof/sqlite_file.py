"""Reader for SQLite files of nvprof (``nvprof -o``) and the Visual Profiler: CUPTI activity records as tables.

The layout is that of nvprof 11.8, which imports the files that the tests write. Names are ids in StringTable, and
kernel names are mangled. Kernel records have no process: nvprof writes a file per process. In a file with several
processes, the launch determines the process of a kernel.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import COPIES, KERNELS, LATEST, LAUNCHES, MARKS, RANGES, Profile, pick, pick_all
from annot.read.sqlite import (
    ACTIVITY,
    COPY_COLUMNS,
    MAGIC,
    Columns,
    Database,
    check_columns,
    journal_notes,
    open_database,
    resolve,
    with_copy_kinds,
    with_times,
)
from annot.read.text import sentences

NAME: Final = "nvprof_sqlite"

_MARKER: Final = ACTIVITY + "MARKER"
_KERNELS: Final = ("CONCURRENT_KERNEL", "KERNEL")
_COPIES: Final = ("MEMCPY", "MEMCPY2")
_GPU_COLUMNS: Final = frozenset({"start", "end", "correlationId"})
_NEEDED: Final = {
    "StringTable": frozenset({"_id_", "value"}),
    _MARKER: frozenset({"flags", "timestamp", "id", "objectId", "name"}),
    **{ACTIVITY + table: _GPU_COLUMNS | {"processId", "threadId", "cbid"} for table in ("RUNTIME", "DRIVER")},
    **{ACTIVITY + table: _GPU_COLUMNS for table in (*_KERNELS, *_COPIES, "MEMSET", "GRAPH_TRACE")},
}

_INSTANT, _START, _END = 1, 2, 4  # CUpti_ActivityFlag of a marker
_OF_PROCESS: Final = 1  # CUPTI_ACTIVITY_OBJECT_PROCESS: a start/end range; push/pop ranges belong to a thread
_ARGB: Final = 2  # CUPTI_ACTIVITY_FLAG_MARKER_COLOR_ARGB: the color is set

_HOST_MEMORY: Final = (1, 2)
"""Pageable and pinned in CUpti_ActivityMemoryKind."""
_RUNTIME: Final = {
    13: "cudaLaunch", 31: "cudaMemcpy", 32: "cudaMemcpy2D", 41: "cudaMemcpyAsync", 44: "cudaMemcpy2DAsync",
    49: "cudaMemset", 51: "cudaMemsetAsync", 131: "cudaStreamSynchronize", 137: "cudaEventSynchronize",
    160: "cudaMemcpyPeer", 161: "cudaMemcpyPeerAsync", 165: "cudaDeviceSynchronize", 211: "cudaLaunchKernel",
    213: "cudaLaunch", 214: "cudaLaunchKernel", 215: "cudaMemcpy", 225: "cudaMemcpyAsync", 233: "cudaMemset",
    235: "cudaMemsetAsync", 239: "cudaStreamSynchronize", 269: "cudaLaunchCooperativeKernel",
    270: "cudaLaunchCooperativeKernel", 311: "cudaGraphLaunch", 312: "cudaGraphLaunch", 430: "cudaLaunchKernelExC",
    431: "cudaLaunchKernelExC",
}  # fmt: skip
_DRIVER: Final = {
    17: "cuCtxSynchronize", 115: "cuLaunch", 121: "cuEventSynchronize", 126: "cuStreamSynchronize",
    276: "cuMemcpyHtoD", 277: "cuMemcpyHtoDAsync", 278: "cuMemcpyDtoH", 279: "cuMemcpyDtoHAsync",
    280: "cuMemcpyDtoD", 281: "cuMemcpyDtoDAsync", 305: "cuMemcpy", 306: "cuMemcpyAsync", 307: "cuLaunchKernel",
    442: "cuLaunchKernel", 477: "cuLaunchCooperativeKernel", 478: "cuLaunchCooperativeKernel",
    514: "cuGraphLaunch", 515: "cuGraphLaunch", 652: "cuLaunchKernelEx", 653: "cuLaunchKernelEx",
}  # fmt: skip
_CALLS: Final = {"RUNTIME": _RUNTIME, "DRIVER": _DRIVER}


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is SQLite; see `annot.read.formats.Reader`."""
    return head.startswith(MAGIC)


def read(path: Path) -> Profile:
    """Read a file of nvprof; see `annot.read.formats.Reader`."""
    with open_database(path) as database:
        if not any(database.has(table) for table in _NEEDED if table.startswith(ACTIVITY)):
            raise AnnotError(f"{path} is an nvprof file without NVTX ranges and without CUDA activity")
        check_columns(path, database.columns, _NEEDED, "a supported nvprof file")
        strings = database.scan("StringTable", {"string": "_id_"}, {"value": "value"})
        strings = strings.filter(pl.col("string") != 0).unique("string", keep="first")
        counted: Counter[str] = Counter()
        launches = pick_all(_launches(database, counted), LAUNCHES)
        markers = _markers(database, strings, launches)
        kernels = pick_all(_kernels(database, strings, counted), KERNELS)
        copies = pick_all(_copies(database, counted), COPIES)
        notes = [*journal_notes(path), *sentences(counted), *_notes(database, kernels)]
        return Profile.build(
            {"source": str(path), "format": NAME, "producer": "nvprof", "notes": notes},
            ranges=pick(_add_color_and_category(database, _ranges(markers)), RANGES),
            marks=pick(markers.filter(pl.col("flags") & _INSTANT != 0), MARKS),
            launches=launches,
            kernels=_fill_process(kernels, launches),
            copies=_fill_process(copies, launches),
        )


def _notes(database: Database, kernels: pl.DataFrame) -> list[str]:
    mangled = bool(kernels["name"].str.starts_with("_Z").any())
    counters = database.has(ACTIVITY + "METRIC") or database.has(ACTIVITY + "EVENT")
    nested = database.has(ACTIVITY + "CDP_KERNEL")
    notes = {
        "The profile has no NVTX ranges, so annot cannot attribute GPU time to layers.": not database.has(_MARKER),
        "Kernel names are mangled, as nvprof stores them.": mangled,
        "annot skipped the counters, because the file contains only their ids. Use `nvprof --csv`.": counters,
        "annot skipped kernels launched by kernels. The time of the parent kernels includes them.": nested,
    }
    return [note for note, applies in notes.items() if applies]


def _launches(database: Database, notes: Counter[str]) -> Iterator[pl.DataFrame]:
    columns = {"process": "processId", "thread": "threadId", "number": "cbid"}
    for table, names in _CALLS.items():
        rows = _timed(database, table, columns, "API call", notes)
        named = pl.col("number").replace_strict(names, default=None, return_dtype=pl.String)
        numbered = pl.format("{} call {}", pl.lit(table.lower()), pl.col("number"))
        yield rows.with_columns(pl.col("thread") & 0xFFFFFFFF, pl.coalesce(named, numbered).alias("name"))


def _timed(database: Database, table: str, columns: Columns, noun: str, notes: Counter[str]) -> pl.DataFrame:
    """Return the rows of a table with valid times. CUPTI sets both to 0 if it cannot collect them."""
    columns = {"start": "start", "end": "end", "correlation": "correlationId", **columns}
    start = pl.when((pl.col("start") != 0) | (pl.col("end") != 0)).then("start")
    rows = database.scan(ACTIVITY + table, columns).with_columns(start.alias("start"))
    return with_times(rows, noun, notes)


def _activities(database: Database, table: str, noun: str, notes: Counter[str], **more: str) -> pl.DataFrame:
    return _timed(database, table, {"device": "deviceId", "stream": "streamId", **more}, noun, notes)


def _kernels(database: Database, strings: pl.DataFrame, notes: Counter[str]) -> Iterator[pl.DataFrame]:
    """Yield kernels, and the launches of CUDA graphs that were traced as a whole."""
    for table in _KERNELS:
        rows = _activities(database, table, "kernel", notes, name="name")
        yield rows.with_columns(resolve(rows["name"], strings).fill_null(""))
    rows = _activities(database, "GRAPH_TRACE", "kernel", notes, graph="graphId")
    yield rows.with_columns(name=pl.format("CUDA graph {}", pl.col("graph").fill_null(0)))


def _copies(database: Database, notes: Counter[str]) -> Iterator[pl.DataFrame]:
    for table in _COPIES:
        yield with_copy_kinds(_activities(database, table, "copy", notes, **COPY_COLUMNS), *_HOST_MEMORY)
    yield _activities(database, "MEMSET", "copy", notes, bytes="bytes").with_columns(kind=pl.lit("memset"))


def _fill_process(activities: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Add the only process of the file, or the process of the launch if its correlation id is unique."""
    processes = launches["process"].unique()
    if processes.len() < 2:
        only = processes[0] if processes.len() else 0
        return activities.with_columns(pl.lit(only, pl.Int64).alias("process"))
    of_launch = launches.select("correlation", "process").unique().filter(~pl.col("correlation").is_duplicated())
    joined = activities.drop("process").join(of_launch, on="correlation", how="left", maintain_order="left")
    return joined.select(activities.columns)


def _markers(database: Database, strings: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return flags, number, start, process, thread, domain, text and kind of each marker: a mark, a start or an end."""
    columns = {"flags": "flags", "number": "id", "start": "timestamp", "name": "name", "object_kind": "objectKind"}
    rows = database.scan(_MARKER, columns | {"domain": "domain"})
    query = f"SELECT hex(objectId) FROM {_MARKER} NOT INDEXED"
    hexadecimal = database.query(query, {"object": pl.String}) if _MARKER in database.columns else ()
    rows = rows.hstack(pl.concat([pl.DataFrame(schema={"object": pl.String}), *hexadecimal]))
    rows = rows.filter(pl.col("start").is_between(1, LATEST))
    objects = rows.select("object").unique()
    pairs = [_object(text) for text in objects["object"]]
    threads = launches["thread"].unique()
    only = threads[0] if threads.len() == 1 else 0
    objects = objects.with_columns(
        pl.Series("process", [process for process, _ in pairs], pl.Int64),
        pl.Series("thread", [thread or only for _, thread in pairs], pl.Int64),
    )
    rows = rows.join(objects, on="object", how="left", maintain_order="left")
    kind = pl.when(pl.col("object_kind") == _OF_PROCESS).then(pl.lit("start")).otherwise(pl.lit("push"))
    text, domain = (resolve(rows[name], strings).fill_null("") for name in ("name", "domain"))
    return rows.with_columns(kind.alias("kind"), text.alias("text"), domain)


def _object(digits: str) -> tuple[int, int]:
    """Return process and thread of a CUpti_ActivityObjectKindId in hexadecimal."""
    data = bytes.fromhex(digits)
    if len(data) < 8:
        return 0, 0
    process, thread = struct.unpack_from("<II", data)
    return process, thread


def _ranges(markers: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges: starts with their ends."""
    starts = markers.filter(pl.col("flags") & _START != 0)
    ends = markers.filter(pl.col("flags") & _END != 0)
    ends = ends.select("process", "number", end="start", end_thread="thread")
    ends = ends.unique(["process", "number"], keep="first", maintain_order=True)
    ranges = starts.join(ends, on=["process", "number"], how="left", maintain_order="left")
    other = pl.when(pl.col("end_thread") != pl.col("thread")).then(pl.col("end_thread"))
    return ranges.with_row_index("id").with_columns(pl.col("id").cast(pl.Int64), other.alias("end_thread"))


def _add_color_and_category(database: Database, ranges: pl.DataFrame) -> pl.DataFrame:
    """Add color and category."""
    table = ACTIVITY + "MARKER_DATA"
    if not {"flags", "id", "color", "category"} <= database.columns.get(table, frozenset()):
        return ranges
    columns = {"number": "id", "flags": "flags", "color": "color", "named": "category"}
    data = database.scan(table, columns).unique("number", keep="first")
    category = pl.when(pl.col("named") > 0).then(pl.format("category {}", pl.col("named"))).otherwise(pl.lit(""))
    color = pl.when(pl.col("flags_right") & _ARGB != 0).then(pl.col("color") & 0xFFFFFFFF)
    joined = ranges.join(data, on="number", how="left", maintain_order="left")
    return joined.with_columns(category.alias("category"), color.alias("color"))
