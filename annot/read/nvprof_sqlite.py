"""The SQLite file of nvprof (``nvprof -o``), and so of the Visual Profiler: the records of CUPTI as tables.

The layout is that of nvprof 11.8, which reads what the tests write. Names are numbers of strings, and those of
kernels mangled. The kernels bear no process: nvprof writes a file per process, and of several the launch tells.
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import COPIES, KERNELS, LATEST, LAUNCHES, MARKS, RANGES, Profile, conform, pick
from annot.read.nsys_layout import sentences, spelt, with_times
from annot.read.sqlite import MAGIC, Database, open_database

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "nvprof_sqlite"

_RECORDS: Final = "CUPTI_ACTIVITY_KIND_"
_MARKER: Final = _RECORDS + "MARKER"
_KERNELS: Final = ("CONCURRENT_KERNEL", "KERNEL")
_COPIES: Final = ("MEMCPY", "MEMCPY2")
_CALLS: Final = ("RUNTIME", "DRIVER")
_WORK: Final = frozenset({"start", "end", "correlationId"})
_NEEDED: Final = {
    "StringTable": frozenset({"_id_", "value"}),
    _MARKER: frozenset({"flags", "timestamp", "id", "objectId", "name"}),
    **{_RECORDS + table: _WORK | {"processId", "threadId", "cbid"} for table in _CALLS},
    **{_RECORDS + table: _WORK for table in (*_KERNELS, *_COPIES, "MEMSET", "GRAPH_TRACE")},
}

_INSTANT, _START, _END = 1, 2, 4  # flags of a marker
_OF_PROCESS: Final = 1  # kind of object that a range belongs to, if not a thread: it was started, not pushed
_ARGB: Final = 2  # flag of a marker's data: the color is known

_NO_KERNELS: Final = conform(None, KERNELS)

_COPY_KINDS: Final = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
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


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is SQLite with tables of nvprof; see `annot.read.Reader`."""
    if not head.startswith(MAGIC):
        return False
    try:
        with open_database(path) as database:
            return {"_id_", "value"} <= database.columns.get("StringTable", frozenset())
    except AnnotError:
        return False


def read(path: Path) -> Profile:
    """Read a file of nvprof; see `annot.read.Reader`.

    Raises:
        AnnotError: the file is cut or damaged, or holds neither NVTX ranges nor CUDA activity.
    """
    with open_database(path) as database:
        _check(path, database)
        strings = database.scan("StringTable", {"string": "_id_"}, {"value": "value"})
        strings = strings.filter(pl.col("string") != 0).unique("string", keep="first")
        counted: Counter[str] = Counter()
        launches = _launches(database, counted)
        markers = _markers(database, strings, launches)
        kernels = pl.concat([_kernels(database, strings, counted), _graphs(database, counted)])
        copies = pl.concat([*(_copies(database, table, counted) for table in _COPIES), _sets(database, counted)])
        notes = [*database.notes, *sentences(counted), *_notes(database, kernels)]
        return Profile.build(
            {"source": str(path), "format": NAME, "producer": "nvprof", "notes": notes},
            ranges=pick(_with_data(database, _ranges(markers)), RANGES),
            marks=pick(markers.filter(pl.col("flags") & _INSTANT != 0), MARKS),
            launches=launches,
            kernels=_with_process(kernels, launches),
            copies=_with_process(copies, launches),
        )


def _check(path: Path, database: Database) -> None:
    if not any(database.has(table) for table in _NEEDED if table.startswith(_RECORDS)):
        raise AnnotError(f"{path} is a file of nvprof without NVTX ranges and without CUDA activity")
    for table, needed in _NEEDED.items():
        missing = sorted(needed - database.columns.get(table, needed))
        if missing:
            raise AnnotError(f"{path} is no file of nvprof that annot knows: its {table} has no column {missing[0]}")


def _notes(database: Database, kernels: pl.DataFrame) -> list[str]:
    notes = []
    if not database.has(_MARKER):
        notes.append("the profile holds no NVTX ranges, so nothing can be attributed")
    if kernels["name"].str.starts_with("_Z").any():
        notes.append("names of kernels are mangled, as nvprof keeps them")
    if any(database.has(_RECORDS + table) for table in ("METRIC", "EVENT")):
        notes.append("counters are left out: the file names them by number only, so let nvprof print them with --csv")
    if database.has(_RECORDS + "CDP_KERNEL"):
        notes.append("kernels launched by kernels are left out: their time is part of that of the launching ones")
    return notes


def _launches(database: Database, notes: Counter[str]) -> pl.DataFrame:
    names = zip(_CALLS, (_RUNTIME, _DRIVER), strict=True)
    return pl.concat([_calls(database, table, of_table, notes) for table, of_table in names])


def _calls(database: Database, table: str, names: dict[int, str], notes: Counter[str]) -> pl.DataFrame:
    if _RECORDS + table not in database.columns:
        return conform(None, LAUNCHES)
    integers = {
        "process": "processId", "thread": "threadId & 0xFFFFFFFF", "start": "start", "end": '"end"',
        "correlation": "correlationId", "number": "cbid",
    }  # fmt: skip
    rows = _timed(database.scan(_RECORDS + table, integers, {}), "calls", notes)
    known = pl.col("number").replace_strict(names, default=None, return_dtype=pl.String)
    numbered = pl.format("{} call {}", pl.lit(table.lower()), pl.col("number"))
    return pick(rows.with_columns(pl.coalesce(known, numbered).alias("name")), LAUNCHES)


def _timed(rows: pl.DataFrame, what: str, notes: Counter[str]) -> pl.DataFrame:
    """Leave out what CUPTI could not time: both times are 0 then."""
    known = pl.when((pl.col("start") != 0) | (pl.col("end") != 0)).then("start")
    return with_times(rows.with_columns(known.alias("start")), what, notes)


def _work(database: Database, table: str, notes: Counter[str], **more: str) -> pl.DataFrame:
    integers = {"start": "start", "end": '"end"', "correlation": "correlationId"}
    optional = {"device": "deviceId", "stream": "streamId"} | more
    integers |= {name: database.column(_RECORDS + table, column) for name, column in optional.items()}
    what = "kernels" if "KERNEL" in table or "GRAPH" in table else "copies"
    return _timed(database.scan(_RECORDS + table, integers, {}), what, notes)


def _kernels(database: Database, strings: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    tables = [table for table in _KERNELS if _RECORDS + table in database.columns]
    rows = [_work(database, table, notes, name="name") for table in tables]
    named = [part.with_columns(spelt(part["name"], strings).fill_null("")) for part in rows]
    return pl.concat([_NO_KERNELS, *(pick(part, KERNELS) for part in named)])


def _graphs(database: Database, notes: Counter[str]) -> pl.DataFrame:
    """CUDA graphs traced as one piece."""
    if _RECORDS + "GRAPH_TRACE" not in database.columns:
        return _NO_KERNELS
    rows = _work(database, "GRAPH_TRACE", notes, graph="graphId")
    return pick(rows.with_columns(name=pl.format("CUDA graph {}", pl.col("graph").fill_null(0))), KERNELS)


def _copies(database: Database, table: str, notes: Counter[str]) -> pl.DataFrame:
    if _RECORDS + table not in database.columns:
        return conform(None, COPIES)
    rows = _work(database, table, notes, bytes="bytes", copy="copyKind")
    kind = pl.col("copy").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String)
    return pick(rows.with_columns(kind.alias("kind")), COPIES)


def _sets(database: Database, notes: Counter[str]) -> pl.DataFrame:
    if _RECORDS + "MEMSET" not in database.columns:
        return conform(None, COPIES)
    rows = _work(database, "MEMSET", notes, bytes="bytes")
    return pick(rows.with_columns(kind=pl.lit("memset")), COPIES)


def _with_process(work: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Give work the process of the file, or of its launch where there are several that use other numbers."""
    processes = launches["process"].unique()
    if processes.len() < 2:
        only = processes[0] if processes.len() else 0
        return work.with_columns(pl.lit(only, pl.Int64).alias("process"))
    of_launch = launches.select("correlation", "process").unique().filter(~pl.col("correlation").is_duplicated())
    return (
        work.drop("process").join(of_launch, on="correlation", how="left", maintain_order="left").select(work.columns)
    )


def _markers(database: Database, strings: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return flags, number, start, process, thread, domain, text and kind of each instant: a mark or half a range."""
    if _MARKER not in database.columns:
        schema = {"flags": pl.Int64, "number": pl.Int64, "kind": pl.String} | dict(MARKS)
        return pl.DataFrame(schema=schema)
    integers = {
        "flags": "flags", "number": "id", "start": "timestamp", "name": "name",
        "object_kind": database.column(_MARKER, "objectKind"), "domain": database.column(_MARKER, "domain"),
    }  # fmt: skip
    rows = database.scan(_MARKER, integers, {"object": "hex(objectId)"})
    rows = rows.filter(pl.col("start").is_between(1, LATEST))
    objects = rows.select("object").unique()
    pairs = [_object(text) for text in objects["object"]]
    threads = launches["thread"].unique()
    lone = threads[0] if threads.len() == 1 else 0
    objects = objects.with_columns(
        pl.Series("process", [process for process, _ in pairs], pl.Int64),
        pl.Series("thread", [thread or lone for _, thread in pairs], pl.Int64),
    )
    rows = rows.join(objects, on="object", how="left", maintain_order="left")
    kind = pl.when(pl.col("object_kind") == _OF_PROCESS).then(pl.lit("start")).otherwise(pl.lit("push"))
    text, domain = (spelt(rows[name], strings).fill_null("") for name in ("name", "domain"))
    return rows.with_columns(kind.alias("kind"), text.alias("text"), domain)


def _object(spelt: str) -> tuple[int, int]:
    """Return process and thread of an object: four and eight bytes."""
    data = bytes.fromhex(spelt)
    if len(data) < 8:
        return 0, 0
    process, thread = struct.unpack_from("<II", data)
    return process, thread


def _ranges(markers: pl.DataFrame) -> pl.DataFrame:
    """Join each start with its end."""
    starts = markers.filter(pl.col("flags") & _START != 0)
    ends = markers.filter(pl.col("flags") & _END != 0)
    ends = ends.select("process", "number", end="start", end_thread="thread")
    ends = ends.unique(["process", "number"], keep="first", maintain_order=True)
    ranges = starts.join(ends, on=["process", "number"], how="left", maintain_order="left")
    other = pl.when(pl.col("end_thread") != pl.col("thread")).then(pl.col("end_thread"))
    return ranges.with_row_index("id").with_columns(pl.col("id").cast(pl.Int64), other.alias("end_thread"))


def _with_data(database: Database, ranges: pl.DataFrame) -> pl.DataFrame:
    """Add color and category."""
    table = _RECORDS + "MARKER_DATA"
    if not {"flags", "id", "color", "category"} <= database.columns.get(table, frozenset()):
        return ranges
    data = database.scan(table, {"number": "id", "argb": f"flags & {_ARGB}", "color": "color", "named": "category"}, {})
    data = data.unique("number", keep="first")
    category = pl.when(pl.col("named") > 0).then(pl.format("category {}", pl.col("named"))).otherwise(pl.lit(""))
    color = pl.when(pl.col("argb") != 0).then(pl.col("color") & 0xFFFFFFFF)
    joined = ranges.join(data, on="number", how="left", maintain_order="left")
    return joined.with_columns(category.alias("category"), color.alias("color"))
