"""What the tables of an Nsight Systems export mean, of 2020 to 2026, and those of annot's own recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
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
    pick,
)  # fmt: skip
from annot.read import nsys_nvtx
from annot.read.merge import merged
from annot.read.nsys_graphs import read_origins, with_origins
from annot.read.nsys_layout import WORK, Tables, fetch_blocks, process_of, read_strings, sentences, spelt, with_times
from annot.read.nsys_meta import notes_of_recorder, read_meta, with_ranks
from annot.read.statements import Statements

__all__ = ["Export", "check", "read_profile"]

_CALLS: Final = (0, 1)  # runtime and driver API; class 67 repeats each call with its backtrace
_RUNTIME, _KERNEL, _GRAPH = WORK + "RUNTIME", WORK + "KERNEL", WORK + "GRAPH_TRACE"
_MEMCPY, _MEMSET = WORK + "MEMCPY", WORK + "MEMSET"

_GPU_ROWS: Final = frozenset({"start", "end", "correlationId"})
_NEEDED: Final = {
    nsys_nvtx.TABLE: frozenset({"start", "end", "eventType", "globalTid"}),
    _RUNTIME: frozenset({"start", "end", "globalTid", "correlationId", "nameId"}),
    **dict.fromkeys((_KERNEL, _GRAPH, _MEMCPY, _MEMSET), _GPU_ROWS),
}
_WORK_COLUMNS: Final = {
    "start": "start", "end": "end", "correlation": "correlationId", "pid": "globalPid", "device": "deviceId",
    "stream": "streamId", "node": "graphNodeId",
}  # fmt: skip

_NO_COPIES: Final = conform(None, COPIES)
_COPY_KINDS: Final = {
    0: "unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP", 11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD",
}  # fmt: skip


def check(path: Path, tables: Tables, kind: str) -> None:
    """Refuse what is no export, or an export that holds nothing to report.

    Args:
        path: the file, for the message.
        tables: its tables.
        kind: what the file is, if it is no profile.

    Raises:
        AnnotError: it holds neither NVTX ranges nor CUDA activity, or a table is not what its name says.
    """
    work = [table for table in tables.columns if table.startswith(WORK)]
    if nsys_nvtx.TABLE not in tables.columns and not work:
        if "StringIds" in tables.columns:
            raise AnnotError(f"{path} is a profile without NVTX ranges and without CUDA activity")
        found = ", ".join(sorted(tables.columns)[:4]) or "no table at all"
        raise AnnotError(f"{path} is {kind}, but no profile: it has no table {nsys_nvtx.TABLE}, but {found}")
    for table, needed in _NEEDED.items():
        missing = sorted(needed - tables.columns.get(table, needed))
        if missing:
            raise AnnotError(f"{path} is no Nsight Systems export: its {table} has no column {missing[0]}")


class Export:
    """The tables of an export as an `annot.profile.Source`, which never holds a whole table but that of the ranges.

    Args:
        opened: gives the tables, which `check` let pass, each time that some are read.
        meta: `Profile.meta` as far as the tables do not say it: source and format.
        facts: notes on the file.
        full: whether ranges have payload, category and colour, and calls their names, which no layer needs.
        calls: whether calls have their names in any case.
    """

    def __init__(
        self, opened: Callable[[], AbstractContextManager[Tables]], meta: dict[str, Any], facts: Sequence[str] = (),
        *, full: bool = False, calls: bool = False,
    ) -> None:  # fmt: skip
        self._opened, self._named_calls = opened, full or calls
        self._said = Statements()
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
        notes, found = self._counter("ranges"), False
        self._said = Statements()
        with self._opened() as tables:
            names = nsys_nvtx.Names(tables, self._strings)
            for events in nsys_nvtx.event_blocks(tables, self._strings, names, full=False):
                ranges = nsys_nvtx.as_ranges(events, notes)
                self._said.take(nsys_nvtx.as_marks(events))
                self._seen.update(ranges["process"].unique())
                found |= not ranges.is_empty()
                yield ranges
        self._notes["none"] = Counter(() if found else _no_ranges(names.domains))

    def events(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return ranges and marks in full, as `annot.profile.RANGES` and `annot.profile.MARKS`."""
        notes = self._counter("ranges")
        self._said = Statements()
        ranges, marks = [conform(None, RANGES)], [conform(None, MARKS)]
        with self._opened() as tables:
            names = nsys_nvtx.Names(tables, self._strings)
            for events in nsys_nvtx.event_blocks(tables, self._strings, names, full=True):
                events = events.with_columns(pl.col("kind").cast(pl.String))
                ranges.append(pick(nsys_nvtx.as_ranges(events, notes), RANGES))
                marks.append(pick(nsys_nvtx.as_marks(events), MARKS))
                self._said.take(marks[-1])
        together = pl.concat(ranges)
        self._seen.update(together["process"].unique())
        self._notes["none"] = Counter(_no_ranges(names.domains) if together.is_empty() else ())
        return together, pl.concat(marks)

    @property
    def marks(self) -> pl.DataFrame:
        """The marks with their payloads if the ranges, which are to be read first, came with any about memory."""
        marks = [conform(None, MARKS)]
        if self._said.tells_memory:
            with self._opened() as tables:
                names = nsys_nvtx.Names(tables, self._strings)
                blocks = nsys_nvtx.event_blocks(tables, self._strings, names, full=True)
                texts = pl.col("text", "domain", "category").cast(pl.String)
                marks += [pick(nsys_nvtx.as_marks(events).with_columns(texts), MARKS) for events in blocks]
        return pl.concat(marks)

    @property
    def meta(self) -> dict[str, Any]:
        """What is known of the profile; notes and ranks in rows that were not read yet are not among it."""
        counted = {table: sentences(notes) for table, notes in self._notes.items() if table != "none"}
        noted = (note for part in counted.values() for note in part)
        notes = [*self._facts, *self._said.notes, *self._notes.get("none", ()), *noted]
        known = [process for process in self._meta.get("processes", ()) if process["process"] in self._seen]
        meta = {name: fact for name, fact in self._meta.items() if name != "processes"}
        meta |= {"scopes": self._said.scopes} if self._said.scopes else {}
        return with_ranks(meta | ({"processes": known} if known else {}), self._said.ranks) | {"notes": notes}

    def last_launch(self) -> int | None:
        """Return when the last API call ended; see `annot.profile.Source`."""
        columns = {"start": "start", "end": "end", "class": "eventClass"}
        with self._opened() as tables:
            ends = [_calls(rows, Counter())["end"].max() for rows in fetch_blocks(tables, _RUNTIME, columns)]
        return max((end for end in ends if isinstance(end, int)), default=None)

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield API calls; see `annot.profile.Source`."""
        notes = self._counter("launches")
        columns = {"start": "start", "end": "end", "thread": "globalTid", "correlation": "correlationId"}
        columns |= {"class": "eventClass"} | ({"string": "nameId"} if self._named_calls else {})
        with self._opened() as tables:
            for rows in fetch_blocks(tables, _RUNTIME, columns):
                rows = _calls(rows, notes)
                name = [spelt(rows["string"], self._strings).alias("name")] if self._named_calls else []
                rows = rows.select("start", "end", "thread", "correlation", process_of("thread"), *name)
                self._seen.update(rows["process"].unique())
                yield rows

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield kernels, copies and sets by start, as far as the file is in order; see `annot.profile.Source`."""
        with self._opened() as tables:
            copies = copies_as_work(pl.concat([_NO_COPIES, *(pick(rows, COPIES) for rows in self.copies(tables))]))
            kernels = (kernels_as_work(rows) for rows in self.kernels(tables))
            yield from merged(kernels, copies.with_columns(pl.col("name").cast(self._text)))

    def kernels(self, tables: Tables) -> Iterator[pl.DataFrame]:
        """Yield kernels, and CUDA graphs that were traced as one piece, whose kernels have no rows of their own."""
        notes = self._counter("kernels")
        for rows in self._work(tables, _KERNEL, "kernels", notes, string="demangledName", short="shortName"):
            name = spelt(rows["string"], self._strings).alias("name")
            if name.null_count():
                short = spelt(rows["short"], self._strings)
                name = pl.select(pl.coalesce(name, short, pl.lit("", self._text)).alias("name")).to_series()
            yield rows.with_columns(name)
        for rows in self._work(tables, _GRAPH, "CUDA graphs", notes, graph="graphId"):
            notes[_ONE_PIECE] += rows.height
            graph = pl.format("CUDA graph {}", pl.col("graph").fill_null(0)).cast(self._text)
            yield rows.with_columns(graph.alias("name"))

    def copies(self, tables: Tables) -> Iterator[pl.DataFrame]:
        """Yield copies and sets of memory."""
        notes = self._counter("copies")
        kind = pl.col("copy").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String).alias("kind")
        for rows in self._work(tables, _MEMCPY, "copies", notes, bytes="bytes", copy="copyKind"):
            yield rows.with_columns(kind)
        for rows in self._work(tables, _MEMSET, "sets of memory", notes, bytes="bytes"):
            yield rows.with_columns(pl.lit("memset").alias("kind"))

    def _work(
        self, tables: Tables, table: str, what: str, notes: Counter[str], **more: str
    ) -> Iterator[pl.DataFrame]:  # fmt: skip
        for rows in fetch_blocks(tables, table, _WORK_COLUMNS | more):
            rows = with_times(rows, what, notes).with_columns(process_of("pid"))
            if rows["process"].null_count():
                rows = self._placed(rows, notes)
            rows = with_origins(rows, self._origins)
            lost = ((rows["node"] != 0) & rows["origin_start"].is_null()).sum()
            if lost:
                notes[_UNCAPTURED] += int(lost)
            self._seen.update(rows["process"].unique())
            yield rows

    def _placed(self, work: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
        """Give work that names no process the one that launched anything, if there is one only."""
        if len(self._launching) == 1:
            return work.with_columns(pl.col("process").fill_null(self._launching[0]))
        notes[_HOMELESS] += work["process"].null_count()
        return work

    @property
    def _text(self) -> pl.DataType:
        """The type of texts."""
        return self._strings.schema["value"]

    @cached_property
    def _launching(self) -> list[int]:
        return sorted({process for rows in self.launch_blocks() for process in rows["process"].unique().drop_nulls()})

    def _counter(self, table: str) -> Counter[str]:
        """Counts for notes, anew for each time that a table is read."""
        self._notes[table] = Counter()
        return self._notes[table]


_ONE_PIECE: Final = (
    "launches of CUDA graphs that were traced as one piece, so that the profile does not hold their kernels and "
    "layers, which `nsys profile --cuda-graph-trace=node` shows"
)
_UNCAPTURED: Final = (
    "kernels and copies of CUDA graphs that lead to no instant of capture, so that they count where their graph was "
    "launched"
)
_HOMELESS: Final = "kernels and copies that name no process, so that their launches are not known"


def _calls(rows: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    """The rows that are API calls and have times."""
    calls = rows["class"].is_in(_CALLS).fill_null(True)
    return with_times(rows if calls.all() else rows.filter(calls), "API calls", notes)


def read_profile(
    opened: Callable[[], AbstractContextManager[Tables]], meta: dict[str, Any], facts: Sequence[str] = ()
) -> Profile:
    """Return the profile in the tables of an export.

    Args:
        opened: gives the tables, which `check` let pass.
        meta: `Profile.meta` as far as the tables do not say it: source and format.
        facts: notes on the file.
    """
    export = Export(opened, meta, facts, full=True)
    ranges, marks = export.events()
    launches = pl.concat([conform(None, LAUNCHES), *(pick(rows, LAUNCHES) for rows in export.launch_blocks())])
    with opened() as tables:
        kernels = pl.concat([conform(None, KERNELS), *(pick(rows, KERNELS) for rows in export.kernels(tables))])
        copies = pl.concat([_NO_COPIES, *(pick(rows, COPIES) for rows in export.copies(tables))])
    return Profile.build(export.meta, ranges=ranges, marks=marks, launches=launches, kernels=kernels, copies=copies)


def _no_ranges(domains: int) -> list[str]:
    notes = ["the profile holds no NVTX ranges, so nothing can be attributed"]
    if domains:
        notes.append(
            "it names NVTX domains without a range in them: from 0.2.12 on the package nvtx sends none to an "
            "Nsight Systems before 2024"
        )
    return notes
