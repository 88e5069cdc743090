"""Reader for SQLite exports of Nsight Systems (2020 to 2026) and for recordings of annot, which have the same tables.

Nsight Systems creates a table only if it has rows, and releases add, rename and reorder columns. Tables and columns are
therefore optional and are accessed by name. The ids of correlations, domains, categories and graph nodes are unique
per process only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import (
    COPIES,
    KERNELS,
    LAUNCHES,
    MARKS,
    RANGES,
    Profile,
    conform,
    copies_as_work,
    kernels_as_work,
    pick_all,
    pinned_memory,
)
from annot.read.nsys import nvtx_events
from annot.read.nsys.meta import AnnotMarks, notes_of_recorder, read_meta
from annot.read.nsys.nvtx_events import process_of, read_strings
from annot.read.sqlite import ACTIVITY, MAGIC, Database, Tables, check_columns, open_database, resolve, with_times
from annot.read.text import sentences

__all__ = ["NAME", "Export", "check", "read", "read_profile", "sniff", "stream"]

NAME: Final = "nsys_sqlite"

_CALLS: Final = (0, 1)  # runtime and driver API; with --cudabacktrace, class 67 repeats each call
_RUNTIME, _KERNEL, _GRAPH = ACTIVITY + "RUNTIME", ACTIVITY + "KERNEL", ACTIVITY + "GRAPH_TRACE"
_MEMCPY, _MEMSET = ACTIVITY + "MEMCPY", ACTIVITY + "MEMSET"

_GPU_ROWS: Final = frozenset({"start", "end", "correlationId"})
_NEEDED: Final = {
    nvtx_events.TABLE: frozenset({"start", "end", "eventType", "globalTid"}),
    _RUNTIME: frozenset({"start", "end", "globalTid", "correlationId", "nameId"}),
    **dict.fromkeys((_KERNEL, _GRAPH, _MEMCPY, _MEMSET), _GPU_ROWS),
}
_GPU_COLUMNS: Final = {
    "start": "start", "end": "end", "correlation": "correlationId", "pid": "globalPid", "device": "deviceId",
    "stream": "streamId", "node": "graphNodeId",
}  # fmt: skip

_COPY_KINDS: Final = {
    0: "unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP", 11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD",
}  # fmt: skip


_HOST_MEMORY: Final = (0, 1)
"""Pageable and pinned in ENUM_CUDA_MEM_KIND, whose numbers are not those of CUPTI."""


def check(path: Path, tables: Tables, kind: str) -> None:
    """Raise `AnnotError` if the export, a file of this kind, lacks NVTX ranges and CUDA activity or a needed column."""
    if not any(table == nvtx_events.TABLE or table.startswith(ACTIVITY) for table in tables.columns):
        if "StringIds" in tables.columns:
            raise AnnotError(f"{path} is a profile without NVTX ranges and without CUDA activity")
        names = ", ".join(sorted(tables.columns)[:4]) or "no tables"
        raise AnnotError(
            f"{path} is {kind} but not a profile: it has no table {nvtx_events.TABLE}. It contains {names}."
        )
    check_columns(path, tables.columns, _NEEDED)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is SQLite; see `annot.read.formats.Reader`."""
    return head.startswith(MAGIC)


def read(path: Path) -> Profile:
    """Read an export; see `annot.read.formats.Reader`."""
    with open_database(path) as database:
        _check(path, database)
        return read_profile(lambda: nullcontext(database), {"source": str(path), "format": NAME}, database.notes)


def stream(path: Path, *, calls: bool = False) -> Export:
    """Open an export that is read in blocks when its rows are needed; see `annot.read.formats.source`."""
    with open_database(path) as database:
        _check(path, database)
        notes = database.notes
    return Export(partial(open_database, path), {"source": str(path), "format": NAME}, notes, calls=calls)


def _check(path: Path, database: Database) -> None:
    """Call `check` and add the journal notes to its error: the rows may be in the journal."""
    try:
        check(path, database, "SQLite")
    except AnnotError as error:
        raise AnnotError(". ".join([str(error).removesuffix("."), *database.notes])) from None


class Export:
    """An export as an `annot.profile.Source`. Tables are read in blocks.

    `opened` opens the tables, for each read; `check` must accept them. `meta` is source and format, `facts` are notes
    on the file. If `full`, payload, category and color of ranges, and names of API calls are read too, which the
    attribution does not use. If `calls`, the names of API calls are read even if not `full`.
    """

    def __init__(
        self, opened: Callable[[], AbstractContextManager[Tables]], meta: dict[str, Any], facts: Sequence[str] = (),
        *, full: bool = False, calls: bool = False,
    ) -> None:  # fmt: skip
        self._opened, self._named_calls = opened, full or calls
        self._annot_marks = AnnotMarks()
        self._notes: dict[str, Counter[str]] = {}
        with opened() as tables:
            strings = read_strings(tables)
            self._strings = strings if full else strings.with_columns(pl.col("value").cast(pl.Categorical))
            self._origins = read_origins(tables)
            self._facts = [*facts, *notes_of_recorder(tables)]
            self._meta = meta | read_meta(tables)
            self._seen: set[int] = set()

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield ranges; see `annot.profile.Source`."""
        return (ranges for ranges, _ in self._event_blocks(full=False))

    def events(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return all ranges and marks, with the columns `annot.profile.RANGES` and `annot.profile.MARKS`."""
        kind = pl.col("kind").cast(pl.String)
        blocks = [(ranges.with_columns(kind), marks) for ranges, marks in self._event_blocks(full=True)]
        return pick_all((ranges for ranges, _ in blocks), RANGES), pick_all((marks for _, marks in blocks), MARKS)

    def _event_blocks(self, *, full: bool) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield ranges and marks of each block."""
        notes, has_ranges = self._counter("ranges"), False
        self._annot_marks = AnnotMarks()
        with self._opened() as tables:
            names = nvtx_events.Names(tables, self._strings)
            for events in nvtx_events.event_blocks(tables, self._strings, names, full=full):
                ranges, marks = nvtx_events.as_ranges(events, notes), nvtx_events.as_marks(events)
                self._annot_marks.add(marks)
                self._seen.update(ranges["process"].unique())
                has_ranges |= not ranges.is_empty()
                yield ranges, marks
        self._notes["none"] = Counter(() if has_ranges else _no_ranges(names.domains))

    @property
    def marks(self) -> pl.DataFrame:
        """The marks with payloads if they include memory marks. Read the ranges first."""
        if not self._annot_marks.has_memory:
            return conform(None, MARKS)
        with self._opened() as tables:
            names = nvtx_events.Names(tables, self._strings)
            blocks = nvtx_events.event_blocks(tables, self._strings, names, full=True)
            texts = pl.col("text", "domain", "category").cast(pl.String)
            return pick_all((nvtx_events.as_marks(events).with_columns(texts) for events in blocks), MARKS)

    @property
    def captured(self) -> pl.DataFrame:
        """Empty: a file of Nsight Systems has its captures among its ranges; see `annot.profile.Source`."""
        return conform(None, RANGES)

    @property
    def meta(self) -> dict[str, Any]:
        """`Profile.meta`. It includes notes and ranks of the rows that were read so far."""
        noted = (note for table, notes in self._notes.items() if table != "none" for note in sentences(notes))
        notes = [*self._facts, *self._annot_marks.notes, *self._notes.get("none", ()), *noted]
        processes = [process for process in self._meta.get("processes", ()) if process["process"] in self._seen]
        meta = {name: fact for name, fact in self._meta.items() if name != "processes"}
        meta |= {"processes": processes} if processes else {}
        return self._annot_marks.with_facts(meta) | {"notes": notes}

    def last_launch(self) -> int | None:
        """Return the end of the last API call in ns; see `annot.profile.Source`."""
        columns = {"start": "start", "end": "end", "class": "eventClass"}
        with self._opened() as tables:
            ends = [_calls(rows, Counter())["end"].max() for rows in tables.blocks(_RUNTIME, columns)]
        return max((end for end in ends if isinstance(end, int)), default=None)

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield API calls; see `annot.profile.Source`."""
        notes = self._counter("launches")
        columns = {"start": "start", "end": "end", "thread": "globalTid", "correlation": "correlationId"}
        columns |= {"class": "eventClass"} | ({"string": "nameId"} if self._named_calls else {})
        with self._opened() as tables:
            for rows in tables.blocks(_RUNTIME, columns):
                rows = _calls(rows, notes)
                name = [resolve(rows["string"], self._strings).alias("name")] if self._named_calls else []
                rows = rows.select("start", "end", "thread", "correlation", process_of("thread"), *name)
                self._seen.update(rows["process"].unique())
                yield rows

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield kernels, copies and memsets by start time, as `merged` orders them; see `annot.profile.Source`."""
        with self._opened() as tables:
            copies = copies_as_work(pick_all(self.copies(tables), COPIES))
            kernels = (kernels_as_work(rows) for rows in self.kernels(tables))
            yield from merged(kernels, copies.with_columns(pl.col("name").cast(self._text)))

    def kernels(self, tables: Tables) -> Iterator[pl.DataFrame]:
        """Yield kernels, and the CUDA graph launches of `--cuda-graph-trace=graph`, which has no rows for kernels."""
        notes = self._counter("kernels")
        for rows in self._activities(tables, _KERNEL, "kernel", notes, string="demangledName", short="shortName"):
            name = resolve(rows["string"], self._strings).alias("name")
            if name.null_count():
                short = resolve(rows["short"], self._strings)
                name = pl.select(pl.coalesce(name, short, pl.lit("", self._text)).alias("name")).to_series()
            yield rows.with_columns(name)
        for rows in self._activities(tables, _GRAPH, "CUDA graph", notes, graph="graphId"):
            notes[_WHOLE_GRAPHS] += rows.height
            graph = pl.format("CUDA graph {}", pl.col("graph").fill_null(0)).cast(self._text)
            yield rows.with_columns(graph.alias("name"))

    def copies(self, tables: Tables) -> Iterator[pl.DataFrame]:
        """Yield copies and memsets."""
        notes = self._counter("copies")
        kind = pl.col("copy").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String).alias("kind")
        more = {"bytes": "bytes", "copy": "copyKind", "source": "srcKind", "target": "dstKind"}
        pinned = pinned_memory(*(pl.any_horizontal(pl.col("source", "target") == number) for number in _HOST_MEMORY))
        for rows in self._activities(tables, _MEMCPY, "copy", notes, **more):
            yield rows.with_columns(kind, pinned)
        for rows in self._activities(tables, _MEMSET, "memset", notes, bytes="bytes"):
            yield rows.with_columns(pl.lit("memset").alias("kind"))

    def _activities(
        self, tables: Tables, table: str, noun: str, notes: Counter[str], **more: str
    ) -> Iterator[pl.DataFrame]:
        for rows in tables.blocks(table, _GPU_COLUMNS | more):
            rows = with_times(rows, noun, notes).with_columns(process_of("pid"))
            if rows["process"].null_count():
                rows = self._fill_process(rows, notes)
            rows = with_origins(rows, self._origins)
            lost = ((rows["node"] != 0) & rows["origin_start"].is_null()).sum()
            if lost:
                notes[_UNCAPTURED] += int(lost)
            self._seen.update(rows["process"].unique())
            yield rows

    def _fill_process(self, rows: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
        """Fill missing process ids if a single process launched all GPU activities."""
        if len(self._launching) == 1:
            return rows.with_columns(pl.col("process").fill_null(self._launching[0]))
        notes[_NO_PROCESS] += rows["process"].null_count()
        return rows

    @property
    def _text(self) -> pl.DataType:
        """Data type of text columns."""
        return self._strings.schema["value"]

    @cached_property
    def _launching(self) -> list[int]:
        return sorted({process for rows in self.launch_blocks() for process in rows["process"].unique().drop_nulls()})

    def _counter(self, table: str) -> Counter[str]:
        """Return a new counter for the notes on a table. Each read of the table starts at zero."""
        self._notes[table] = Counter()
        return self._notes[table]


_WHOLE_GRAPHS: Final = (
    "Nsight Systems traced {CUDA graph launch} as a whole, without kernels and layers. "
    "Use `nsys profile --cuda-graph-trace=node`."
)
_UNCAPTURED: Final = (
    "annot attributes {GPU activity} of CUDA graphs to the ranges of the graph launch, because the capture of the "
    "graph node is unknown."
)
_NO_PROCESS: Final = "annot found no launch of {GPU activity}, because the profile does not name the process."


def _calls(rows: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    """Return the rows of API calls with valid times."""
    calls = rows["class"].is_in(_CALLS).fill_null(True)
    return with_times(rows if calls.all() else rows.filter(calls), "API call", notes)


def read_profile(
    opened: Callable[[], AbstractContextManager[Tables]], meta: dict[str, Any], facts: Sequence[str] = ()
) -> Profile:
    """Return the profile in the tables of an export; the arguments are those of `Export`."""
    export = Export(opened, meta, facts, full=True)
    ranges, marks = export.events()
    launches = pick_all(export.launch_blocks(), LAUNCHES)
    with opened() as tables:
        kernels = pick_all(export.kernels(tables), KERNELS)
        copies = pick_all(export.copies(tables), COPIES)
    return Profile.build(export.meta, ranges=ranges, marks=marks, launches=launches, kernels=kernels, copies=copies)


def _no_ranges(domains: int) -> list[str]:
    notes = [
        "The profile has no NVTX ranges, so annot cannot attribute GPU time to layers. "
        "Wrap training in `with annot.emit_ranges(model):`, or run `annot doctor`."
    ]
    if domains:
        notes.append(
            "The profile names NVTX domains without ranges. The package nvtx 0.2.12 and later sends no ranges to "
            "Nsight Systems before 2024. Install nvtx==0.2.11 or a newer Nsight Systems."
        )
    return notes


def merged(blocks: Iterator[pl.DataFrame], others: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows of almost sorted blocks and of another table in the order of their start.

    The rows are sorted if those of the blocks are out of order by at most half a block.
    """
    others = _sorted(others)
    held: pl.DataFrame | None = None
    for block in blocks:
        rows = _sorted(block if held is None else pl.concat([held, block], how="diagonal_relaxed"))
        ready = rows.height - block.height // 2
        held = rows.slice(ready)
        if ready:
            until = others["start"].search_sorted(rows["start"][ready - 1], "right")
            yield _together(rows.head(ready), others.head(until))
            others = others.slice(until)
    rest = others if held is None else _together(held, others)
    if rest.height:
        yield rest


def _together(rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    return _sorted(pl.concat([rows, others], how="diagonal_relaxed")) if others.height else rows


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows if rows["start"].is_sorted() else rows.sort("start", maintain_order=True)


# Nodes of CUDA graphs (`nsys profile --cuda-graph-trace=node`). A launched graph is a clone of the captured graph,
# possibly over several steps. Nsight Systems records the creation of each node, and for a clone the original node
# (graphNodeId, originalGraphNodeId).
# Up to Nsight Systems 2023.4, CUDA_GRAPH_EVENTS is the table of nodes. By 2024.2 it is the table of graphs.
_NODE_TABLES: Final = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
_NODE_NEEDED: Final = frozenset({"start", "globalTid", "graphNodeId", "originalGraphNodeId"})
_NODE_COLUMNS: Final = {
    "origin_start": "start",
    "origin_thread": "globalTid",
    "node": "graphNodeId",
    "original": "originalGraphNodeId",
    "class": "eventClass",
}
_SET_PARAMETERS: Final = 111  # eventClass of a change to an existing node (2026); the other classes create a node
_KEY: Final = ("process", "node")
_ORIGIN: Final = ("origin_thread", "origin_start")


def read_origins(tables: Tables) -> pl.DataFrame:
    """Return the captured nodes of an export and their clones.

    The columns are process and node (unique pairs), origin_thread and origin_start: thread and time (ns) of the
    capture. Nodes with incomplete, contradictory or circular records are left out.
    """
    table = next((name for name in _NODE_TABLES if tables.columns.get(name, frozenset()) >= _NODE_NEEDED), None)
    if table is None:
        return pl.DataFrame(schema=dict.fromkeys([*_KEY, *_ORIGIN], pl.Int64))
    rows = tables.scan(table, _NODE_COLUMNS).filter(pl.col("class").ne_missing(_SET_PARAMETERS))
    original = pl.when(pl.col("original") != 0).then(pl.col("original")).alias("original")
    return _follow_captures(rows.with_columns(process_of("origin_thread"), original).drop_nulls(_KEY))


def with_origins(activities: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Add origin_thread and origin_start to GPU activities. They are null outside CUDA graphs and for unknown nodes.

    The column node is null or 0 outside CUDA graphs.
    """
    if activities["node"].null_count() == activities.height:
        return activities.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _ORIGIN)
    return activities.join(origins, on=_KEY, how="left", maintain_order="left")


def _follow_captures(rows: pl.DataFrame) -> pl.DataFrame:
    """Follow each node to its captured original."""
    nodes = _unique_nodes(rows).with_row_index("row")
    originals = nodes.select("process", pl.col("node").alias("original"), pl.col("row").alias("target"))
    joined = nodes.join(originals, on=["process", "original"], how="left", maintain_order="left")
    target = joined["target"].fill_null(nodes["row"])
    for _ in range(nodes.height.bit_length()):  # pointer doubling; the bound ends circular records
        further = target.gather(target)
        if further.equals(target):
            break
        target = further
    return nodes.select(*_KEY, pl.col(_ORIGIN).gather(target)).drop_nulls(_ORIGIN)


def _unique_nodes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row per node without contradictory nodes. Nsight Systems repeats the nodes per graph instantiation."""
    captured = pl.col("original").is_null()
    instant = [pl.when(captured).then(name).alias(name) for name in _ORIGIN]
    return rows.select(*_KEY, "original", *instant).unique().unique(_KEY, keep="none")
