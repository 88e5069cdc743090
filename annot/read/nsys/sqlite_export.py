"""Reader for SQLite exports of Nsight Systems (2020 to 2026) and for recordings of annot, which have the same tables.

Nsight Systems creates a table only if it has rows, and releases add, rename and reorder columns. Tables and columns are
therefore optional and are accessed by name. The ids of correlations, domains, categories and graph nodes are unique
per process only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.labels.tag import FINDINGS
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
)
from annot.read.nsys.meta import AnnotMarks, read_meta
from annot.read.sqlite import (
    ACTIVITY,
    COPY_COLUMNS,
    MAGIC,
    ROW,
    Database,
    check_columns,
    journal_notes,
    open_database,
    resolve,
    with_copy_kinds,
    with_times,
)
from annot.read.text import sentences

NAME: Final = "nsys_sqlite"

FINDINGS_PROCESS: Final = 10 * 2**20
"""First of the process ids that annot assigns. Linux process ids are below 4 * 2**20 (PID_MAX_LIMIT)."""

_NVTX: Final = "NVTX_EVENTS"

_CATEGORY, _MARK, _DOMAIN = 33, 34, 75
_PUSHED: Final = (59, 70)  # 70 and 71: ranges imported from NVTXT
_STARTED: Final = (60, 71)
_IMPORTED: Final = 70

_TIMES: Final = {"start": "start", "end": "end"}
_NVTX_IDS: Final = {"end_thread": "endGlobalTid", "domain_id": "domainId", "string": "textId"}
_EVENT_COLUMNS: Final = {"id": ROW, "type": "eventType", **_TIMES, "thread": "globalTid", **_NVTX_IDS}
_EVENT_TEXTS: Final = {"text": "text"}
_CATEGORIES: Final = {"category_id": "category"}
_COLORS: Final = {"color": "color"}
_INTEGERS: Final = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_REALS: Final = ("doubleValue", "floatValue")

_CALLS: Final = (0, 1)  # runtime and driver API; with --cudabacktrace, class 67 repeats each call
_RUNTIME, _KERNEL, _GRAPH = ACTIVITY + "RUNTIME", ACTIVITY + "KERNEL", ACTIVITY + "GRAPH_TRACE"
_MEMCPY, _MEMSET = ACTIVITY + "MEMCPY", ACTIVITY + "MEMSET"

_GPU_ROWS: Final = frozenset({"start", "end", "correlationId"})
_NEEDED: Final = {
    _NVTX: frozenset({"start", "end", "eventType", "globalTid"}),
    _RUNTIME: frozenset({"start", "end", "globalTid", "correlationId", "nameId"}),
    **dict.fromkeys((_KERNEL, _GRAPH, _MEMCPY, _MEMSET), _GPU_ROWS),
}
_GPU_IDS: Final = {"correlation": "correlationId", "pid": "globalPid", "device": "deviceId", "stream": "streamId"}
_GPU_COLUMNS: Final = _TIMES | _GPU_IDS | {"node": "graphNodeId"}

_HOST_MEMORY: Final = (0, 1)
"""Pageable and pinned in ENUM_CUDA_MEM_KIND, whose numbers are not those of CUPTI."""


def _check(path: Path, tables: Mapping[str, Set[str]]) -> None:
    """Raise `AnnotError` if the export lacks NVTX ranges and CUDA activity or a needed column."""
    if not any(table == _NVTX or table.startswith(ACTIVITY) for table in tables):
        if "StringIds" in tables:
            raise AnnotError(f"{path} is a profile without NVTX ranges and without CUDA activity")
        names = ", ".join(sorted(tables)[:4]) or "no tables"
        raise AnnotError(f"{path} is SQLite but not a profile: it has no table {_NVTX}. It contains {names}.")
    check_columns(path, tables, _NEEDED)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is SQLite and not nvprof's; see `annot.read.formats.Reader`."""
    if not head.startswith(MAGIC):
        return False
    try:
        with open_database(path) as database:
            return not {"_id_", "value"} <= database.columns.get("StringTable", frozenset())
    except AnnotError:
        return True


def read(path: Path) -> Profile:
    """Read an export; see `annot.read.formats.Reader`."""
    export = Export(path, calls=True)
    events = list(export.event_blocks(full=True))
    ranges, marks = pick_all((ranges for ranges, _ in events), RANGES), pick_all((marks for _, marks in events), MARKS)
    launches = pick_all(export.launch_blocks(), LAUNCHES)
    with open_database(path) as database:
        kernels = pick_all(export.kernels(database), KERNELS)
        copies = pick_all(export.copies(database), COPIES)
    return Profile.build(export.meta, ranges=ranges, marks=marks, launches=launches, kernels=kernels, copies=copies)


def read_exported(path: Path, name: str, exported: Path) -> Profile:
    """Read the export of a file with another format, whose `NAME` is `name`."""
    try:
        profile = read(exported)
    except AnnotError as error:
        raise AnnotError(str(error).replace(str(exported), str(path))) from None
    return replace(profile, meta=profile.meta | {"source": str(path), "format": name})


def stream(path: Path, *, calls: bool = False) -> Export:
    """Open an export that is read in blocks when its rows are needed; see `annot.read.formats.source`."""
    return Export(path, calls=calls)


class Export:
    """An export as an `annot.profile.Source`. Tables are read in blocks.

    If `calls`, the names of API calls are read, which the attribution does not use.
    """

    def __init__(self, path: Path, *, calls: bool = False) -> None:
        self._path, self._named_calls = path, calls
        self._annot_marks = AnnotMarks()
        self._notes: dict[str, Counter[str]] = {}
        self._seen: set[int] = set()
        with open_database(path) as database:
            try:
                _check(path, database.columns)
            except AnnotError as error:  # the rows may be in the journal
                raise AnnotError(". ".join([str(error).removesuffix("."), *journal_notes(path)])) from None
            self._strings = read_strings(database).with_columns(pl.col("value").cast(pl.Categorical))
            self._origins = read_origins(database)
            meta, notes = read_meta(database)
        self._meta = {"source": str(path), "format": NAME} | meta
        self._facts = [*journal_notes(path), *notes]

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield ranges; see `annot.profile.Source`."""
        return (ranges for ranges, _ in self.event_blocks(full=False))

    def event_blocks(self, *, full: bool) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield ranges and marks of each block, if `full` with payload, category and color."""
        notes, has_ranges = self._counter("ranges"), False
        self._annot_marks = AnnotMarks()
        with open_database(self._path) as tables:
            names = _Names(tables, self._strings)
            for events in _named_events(tables, self._strings, names, full=full):
                ranges, marks = _as_ranges(events, notes), _as_marks(events)
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
        return pick_all((marks for _, marks in self.event_blocks(full=True)), MARKS)

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
        return self._annot_marks.with_facts(meta, processes) | {"notes": notes}

    def last_launch(self) -> int | None:
        """Return the end of the last API call in ns; see `annot.profile.Source`."""
        columns = _TIMES | {"class": "eventClass"}
        with open_database(self._path) as tables:
            ends = [_calls(rows, Counter())["end"].max() for rows in tables.blocks(_RUNTIME, columns)]
        return max((end for end in ends if isinstance(end, int)), default=None)

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield API calls; see `annot.profile.Source`."""
        notes = self._counter("launches")
        columns = _TIMES | {"thread": "globalTid", "correlation": "correlationId", "class": "eventClass"}
        columns |= {"string": "nameId"} if self._named_calls else {}
        with open_database(self._path) as tables:
            for rows in tables.blocks(_RUNTIME, columns):
                rows = _calls(rows, notes)
                name = [resolve(rows["string"], self._strings).alias("name")] if self._named_calls else []
                rows = rows.select("start", "end", "thread", "correlation", process_of("thread"), *name)
                self._seen.update(rows["process"].unique())
                yield rows

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield kernels, copies and memsets by start time, as `merged` orders them; see `annot.profile.Source`."""
        with open_database(self._path) as tables:
            copies = copies_as_work(pick_all(self.copies(tables), COPIES))
            kernels = (kernels_as_work(rows) for rows in self.kernels(tables))
            yield from merged(kernels, copies.with_columns(pl.col("name").cast(pl.Categorical)))

    def kernels(self, tables: Database) -> Iterator[pl.DataFrame]:
        """Yield kernels, and the CUDA graph launches of `--cuda-graph-trace=graph`, which has no rows for kernels."""
        notes = self._counter("kernels")
        for rows in self._activities(tables, _KERNEL, "kernel", notes, string="demangledName", short="shortName"):
            name = resolve(rows["string"], self._strings).alias("name")
            if name.null_count():
                short = resolve(rows["short"], self._strings)
                name = pl.select(pl.coalesce(name, short, pl.lit("", pl.Categorical)).alias("name")).to_series()
            yield rows.with_columns(name)
        for rows in self._activities(tables, _GRAPH, "CUDA graph", notes, graph="graphId"):
            notes[_WHOLE_GRAPHS] += rows.height
            graph = pl.format("CUDA graph {}", pl.col("graph").fill_null(0)).cast(pl.Categorical)
            yield rows.with_columns(graph.alias("name"))

    def copies(self, tables: Database) -> Iterator[pl.DataFrame]:
        """Yield copies and memsets."""
        notes = self._counter("copies")
        for rows in self._activities(tables, _MEMCPY, "copy", notes, **COPY_COLUMNS):
            yield with_copy_kinds(rows, *_HOST_MEMORY)
        for rows in self._activities(tables, _MEMSET, "memset", notes, bytes="bytes"):
            yield rows.with_columns(pl.lit("memset").alias("kind"))

    def _activities(
        self, tables: Database, table: str, noun: str, notes: Counter[str], **more: str
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


class _Names:
    """Names of domains and categories. Their ids are unique per process only.

    `domains` is the number of named domains. `has_findings` says whether annot added findings to the report.
    """

    def __init__(self, tables: Database, strings: pl.DataFrame) -> None:
        columns = {name: _EVENT_COLUMNS[name] for name in ("type", "thread", "domain_id", "string")} | _CATEGORIES
        self._named, self._text = pl.DataFrame(schema={"type": pl.Int64}), strings.schema["value"]
        if _NVTX in tables.columns:
            rows = tables.scan(_NVTX, columns, _EVENT_TEXTS, (_EVENT_COLUMNS["type"], (_CATEGORY, _DOMAIN)))
            self._named = _resolve_texts(rows, strings).with_columns(pl.col("text").cast(pl.String))
        domains = self._named.filter(pl.col("type") == _DOMAIN)
        self.domains = domains.height
        self.has_findings = not domains.is_empty() and FINDINGS in domains["text"]

    def with_names(self, rows: pl.DataFrame, kind: int, name: str, *outer: str) -> pl.DataFrame:
        """Replace the ids of domains or categories, which are unique inside the ids `outer`, by their names."""
        keys, number = [*outer, f"{name}_id"], pl.col(f"{name}_id")
        named = self._named.filter(pl.col("type") == kind).select(*keys, pl.col("text").alias(name))
        named = named.unique(keys, keep="last", maintain_order=True)
        numbered = pl.format("{} {}", pl.lit(name), number)
        text = pl.coalesce(name, pl.when(number == 0).then(pl.lit("")).otherwise(numbered)).alias(name)
        names = rows.select(keys).unique().join(named, on=keys, how="left").with_columns(text.cast(self._text))
        return rows.join(names, on=keys, how="left", maintain_order="left", nulls_equal=True).drop(f"{name}_id")


def _named_events(tables: Database, strings: pl.DataFrame, names: _Names, *, full: bool) -> Iterator[pl.DataFrame]:
    """Yield ranges and marks, for `_as_ranges` and `_as_marks`, if `full` with payload, category and color.

    Strings as `pl.Categorical` take a quarter of the memory.
    """
    columns = _EVENT_COLUMNS | ({name: name for name in _INTEGERS} | _CATEGORIES | _COLORS if full else {})
    if _NVTX not in tables.columns:
        return
    reals = tables.reals(_NVTX, [name for name in _REALS if name in tables.columns[_NVTX]]) if full else None
    for rows in tables.blocks(_NVTX, columns, _EVENT_TEXTS):
        rows = _resolve_texts(rows.filter(pl.col("type").is_in((_MARK, *_PUSHED, *_STARTED))), strings)
        if reals is not None:
            rows = rows.with_columns(_payload(rows, reals))
            rows = names.with_names(rows, _CATEGORY, "category", "process", "domain_id")
        rows = names.with_names(_drop_imported_findings(rows), _DOMAIN, "domain", "process")
        yield rows.filter(pl.col("domain").cast(pl.String) != FINDINGS) if names.has_findings else rows


def _drop_imported_findings(rows: pl.DataFrame) -> pl.DataFrame:
    """Remove findings that annot added to the report. NVTXT does not support domains; their process id marks them."""
    latest = rows["type"].max()
    if isinstance(latest, int) and latest >= _IMPORTED:
        number = pl.col("thread") // 2**24 % 2**24
        rows = rows.filter(~((pl.col("type") >= _IMPORTED) & (number >= FINDINGS_PROCESS)).fill_null(False))
    return rows


def _as_ranges(events: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    """Return the ranges among events, with the columns `annot.profile.RANGES`.

    `notes` counts ranges without valid times or thread, which are skipped.
    """
    marks = events["type"] == _MARK
    ranges = with_times(events.filter(~marks) if marks.any() else events, "range", notes, open_ends=True)
    if without_thread := ranges["thread"].null_count():
        notes["annot skipped {range} without a thread."] += without_thread
        ranges = ranges.drop_nulls("thread")
    return ranges.select(name for name in RANGES if name in ranges.columns)


def _as_marks(events: pl.DataFrame) -> pl.DataFrame:
    """Return the marks with a time and a thread, with the columns `annot.profile.MARKS`."""
    marks = events.filter(pl.col("type") == _MARK).drop_nulls(["start", "thread"])
    return marks.select(name for name in MARKS if name in marks.columns)


def read_strings(tables: Database) -> pl.DataFrame:
    """Return the table StringIds: "string" (Int64, unique) and "value" (String)."""
    if not {"id", "value"} <= tables.columns.get("StringIds", frozenset()):
        return pl.DataFrame(schema={"string": pl.Int64, "value": pl.String})
    return tables.scan("StringIds", {"string": "id"}, {"value": "value"}).unique("string", keep="first")


def process_of(column: str) -> pl.Expr:
    """Return the process of a globalTid or globalPid, as the column "process".

    The ids are <hardware:8><vm:8><pid:24><tid:24>. The result keeps everything except the tid, because processes on
    two machines can have the same pid.
    """
    return (pl.col(column) & pl.lit(~0xFFFFFF, pl.Int64)).alias("process")


def _resolve_texts(rows: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    text = resolve(rows["string"], strings).alias("text")
    if text.null_count():  # polars keeps every category: texts with a number of their own stay strings
        text = rows.select(pl.coalesce(text.cast(pl.String), "text").alias("text")).to_series()
    numbers = [name for name in ("domain_id", "category_id") if name in rows.columns]
    rows = rows.drop("string").with_columns(process_of("thread"), text, pl.col(numbers).fill_null(0))
    if "end_thread" not in rows.columns:
        return rows
    foreign = pl.when(pl.col("end_thread") != pl.col("thread")).then(pl.col("end_thread")).alias("end_thread")
    kind = pl.when(pl.col("type").is_in(_PUSHED)).then(pl.lit("push")).otherwise(pl.lit("start")).alias("kind")
    return rows.with_columns(foreign, kind.cast(_KIND))


_KIND: Final = pl.Enum(["push", "start"])


def _payload(rows: pl.DataFrame, reals: pl.DataFrame) -> pl.Series:
    """Return the payloads of the events as text."""
    texts = [
        rows[name].reinterpret(signed=False).cast(pl.String)  # SQLite integers are signed; the export keeps the bits
        if name == "uint64Value"
        else rows[name].cast(pl.String)
        for name in _INTEGERS
        if rows[name].null_count() < rows.height
    ]
    if not reals.is_empty():
        joined = rows.select("id").join(reals, on="id", how="left", maintain_order="left")
        texts.append(joined["real"].cast(pl.String))
    if not texts:
        return pl.Series("payload", [None], pl.String).new_from_index(0, rows.height)
    return rows.select(pl.coalesce(texts).alias("payload")).to_series()


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


def read_origins(tables: Database) -> pl.DataFrame:
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
