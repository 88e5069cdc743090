"""Export a recording to an SQLite file in the layout of an Nsight Systems export, and read an interrupted recording.

The file contains the tables that `annot.read.nsys.sqlite_export` reads.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import Profile, conform
from annot.read.nsys.sqlite_export import read_exported
from annot.read.recording.events import HAS_COLOR, HAS_TEXT, MARK, Tally, read_events
from annot.read.recording.files import MACHINE, PART_SUFFIX, Kind, Part, UnreadableError, global_tid, read_part
from annot.read.sqlite import new_database
from annot.read.text import counted, sentences
from annot.util.distribution import version

NAME: Final = "recording"


@dataclass(frozen=True, slots=True)
class Recording:
    """Summary of a recording."""

    events: int
    """Number of ranges and marks."""
    ranges: int
    marks: int
    processes: int
    threads: int
    open_ranges: int
    """Ranges that were open at the end of the recording. They end there."""
    unmatched_pops: int
    """Pops and range ends without a start in the recording."""
    lost: int
    """Events that the recorder could not write: pushes, pops, starts, ends and marks."""
    reason: str
    """The first error of the system while it wrote; empty if it is unknown."""
    notes: list[str] = field(default_factory=list)
    """Sentences about data that could not be read, matched or written."""

    def loss(self, place: Path) -> str:
        """Return the sentence about events that are missing from `place`, empty if there are none."""
        reason = self.reason or "Check for a full disk"
        return f"{counted(self.lost, 'event')} could not be written to {place}: {reason}." if self.lost else ""


def assemble(parts: Path, out: Path, *, meta: Mapping[str, str] | None = None, even_empty: bool = True) -> Recording:
    """Combine the files of the recorder into one profile.

    Args:
        parts: the folder with the parts.
        out: the SQLite file to write. An existing file is replaced when the new file is complete.
        meta: additional entries of the table META_DATA_CAPTURE.
        even_empty: write the file although the recording has no ranges.

    Raises:
        AnnotError: no part can be read, or `out` cannot be written.
    """
    processes, notes = _read_parts(parts)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(temporary)) as database:
            database.executescript(_TABLES)
        names, tally = _Names(), Tally()
        with new_database(temporary) as append:
            end = _write_events(partial(append, "NVTX_EVENTS"), processes, names, tally)
        recording = _summary(processes, tally, notes)
        _write_facts(temporary, processes, names, end, recording, meta or {})
        if recording.ranges or even_empty:
            os.replace(temporary, out)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise AnnotError(f"{out} cannot be written: {reason}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return recording


def _read_parts(folder: Path) -> tuple[list[Part], list[str]]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise AnnotError(f"{folder} cannot be read: {error.strerror}") from None
    processes, notes = [], []
    for path in paths:
        if path.suffix != PART_SUFFIX or not path.is_file():  # opening a named pipe would wait for ever
            continue
        try:
            processes.append(read_part(path))
        except UnreadableError as error:
            notes.append(f"{path.name} cannot be read: {error}")
        except OSError as error:
            notes.append(f"{path.name} cannot be read: {error.strerror}")
    if notes and not processes:
        raise AnnotError(f"{folder} has no readable part of a recording: {notes[0]}")
    processes.sort(key=lambda process: process.started)
    return processes, notes


def _write_events(append: Callable[[pl.DataFrame], None], processes: list[Part], names: _Names, tally: Tally) -> int:
    """Write NVTX_EVENTS, and return the time of the last event in ns since the start of the recording."""
    origin = processes[0].started if processes else 0
    unended: list[pl.DataFrame] = []
    for process in processes:
        domains = names.add(process)
        append(names.rows(process, domains, origin))
        strings = names.strings_of(process)
        for events in read_events(process, tally):
            table = _events_table(events, process.pid, origin, domains, strings)
            is_mark = table["eventType"] == MARK
            tally.marks += int(is_mark.sum())
            tally.ranges += int((~is_mark).sum())
            is_open = table["end"].is_null() & ~is_mark
            unended.append(table.filter(is_open))
            append(table.filter(~is_open))
    end = max([tally.last_time, *(process.stopped for process in processes), origin]) - origin
    for frame in unended:
        append(frame.with_columns(end=pl.max_horizontal("start", pl.lit(end))))
    return end


def _summary(processes: list[Part], tally: Tally, notes: list[str]) -> Recording:
    return Recording(
        events=tally.ranges + tally.marks,
        ranges=tally.ranges,
        marks=tally.marks,
        processes=len({process.pid for process in processes}),
        threads=len(tally.threads),
        open_ranges=tally.open_ranges,
        unmatched_pops=tally.unmatched_pops,
        lost=sum(process.lost_events for process in processes),
        reason=next((os.strerror(process.error) for process in processes if process.error), ""),
        notes=[*notes, *_notes(tally, processes)],
    )


def _notes(tally: Tally, processes: list[Part]) -> list[str]:
    lost_names = sum(process.lost_names for process in processes)
    counts = {
        "The recording contains {range end} without a start, which was lost or not recorded.": tally.unmatched_pops,
        "The recorder lost the end of {range}. annot uses the time when recording resumed.": tally.lost_ends,
        "The recorder could not write {name} of ranges, domains or categories.": lost_names,
    }
    return sentences(Counter(counts))


def sniff(path: Path, head: bytes) -> bool:
    """Return whether this is a folder with parts of a recording; see `annot.read.formats.Reader`."""
    return path.is_dir() and any(path.glob(f"*{PART_SUFFIX}"))


def read(path: Path) -> Profile:
    """Assemble the parts of a recording in a temporary folder and read the result."""
    if not sniff(path, b""):
        raise AnnotError(f"{path} is a folder without parts of an annot recording")
    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        out = Path(scratch) / "recording.sqlite"
        assemble(path, out)
        return read_exported(path, NAME, out)


_OF_EVENT: Final = ("start", "end", "eventType", "rangeId", "category", "color", "text", "globalTid", "endGlobalTid")
_IDS_AND_INTEGERS: Final = ("textId", "domainId", "uint64Value", "int64Value", "doubleValue", "uint32Value")
_VALUES: Final = ("int32Value", "floatValue", "jsonTextId", "jsonText")
_EVENTS: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys((*_OF_EVENT, *_IDS_AND_INTEGERS, *_VALUES), pl.Int64),
    **dict.fromkeys(("doubleValue", "floatValue"), pl.Float64),
    **dict.fromkeys(("text", "jsonText"), pl.String),
}

_SQL_TYPES: Final[dict[type[pl.DataType], str]] = {pl.Int64: "INTEGER", pl.Float64: "REAL", pl.String: "TEXT"}
_REQUIRED: Final = {"start": " NOT NULL", "eventType": " NOT NULL"}
_COLUMNS: Final = ", ".join(f"{name} {_SQL_TYPES[kind]}{_REQUIRED.get(name, '')}" for name, kind in _EVENTS.items())
_TABLES: Final = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE NVTX_EVENTS ({_COLUMNS});
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE ANALYSIS_DETAILS (
    globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL
);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
"""

_EVENT_TYPES: Final = {
    33: "NvtxCategory",
    34: "NvtxMark",
    39: "NvtxThread",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    75: "NvtxDomainCreate",
    76: "NvtxDomainDestroy",
}
_TYPE_OF: Final = {Kind.CATEGORY: 33, Kind.THREAD_NAME: 39, Kind.DOMAIN_NAME: 75, Kind.DOMAIN_END: 76}

_SCHEMA_VERSION: Final = {"": "3.7.2", "_MAJOR": "3", "_MINOR": "7", "_MICRO": "2"}
_TIME: Final = "%Y-%m-%dT%H:%M:%S"
_PRIORITY: Final = 20
_LOST_NAME: Final = "(name lost)"


def _events_table(
    events: pl.DataFrame, pid: int, origin: int, domains: Mapping[int, int], strings: Mapping[int, int]
) -> pl.DataFrame:
    """Return rows of NVTX_EVENTS for the events of a process from `annot.read.recording.events.read_events`.

    `origin` is time 0 of the profile, in ns on the clock of the events. `domains` and `strings` are the ids of domains
    and strings in the profile, by their ids in the recording.
    """
    registered = (pl.col("flags") & HAS_TEXT == 0) & (pl.col("string") != 0)
    text_id = pl.when(registered).then(pl.col("string").replace_strict(strings, default=None, return_dtype=pl.Int64))
    process = pl.lit(global_tid(pid), pl.Int64)
    table = events.select(
        "payload",
        pl.col("end") - origin,
        payload_type=pl.col("flags") & 7,
        start=pl.col("time") - origin,
        category=pl.when(pl.col("category") != 0).then("category"),
        color=pl.when(pl.col("flags") & HAS_COLOR != 0).then("color"),
        eventType="type",
        rangeId="range",
        text=pl.when(registered & text_id.is_null()).then(pl.lit(_LOST_NAME)).otherwise("inline"),
        globalTid=process + pl.col("thread"),
        endGlobalTid=process + pl.col("end_thread"),
        textId=text_id,
        domainId=pl.col("domain").replace(domains),
    )
    of_type = pl.col("payload_type")
    integers = [pl.when(of_type == type_).then(value).alias(name) for name, (type_, value) in _INTEGERS.items()]
    table = table.with_columns(*integers, *(_floats(table, name, *spec) for name, spec in _FLOATS.items()))
    return conform(table.drop("payload", "payload_type"), _EVENTS)


_LOW: Final = pl.col("payload") & 0xFFFFFFFF
_SIGN: Final = 1 << 31
_INTEGERS: Final = {
    "uint64Value": (1, pl.col("payload").reinterpret(signed=True)),
    "int64Value": (2, pl.col("payload").reinterpret(signed=True)),
    "uint32Value": (4, _LOW.cast(pl.Int64)),
    "int32Value": (5, (_LOW ^ _SIGN).cast(pl.Int64) - _SIGN),
}
_FLOATS: Final = {"doubleValue": (3, "Q", "d"), "floatValue": (6, "I", "f")}


def _floats(table: pl.DataFrame, name: str, type_: int, bits: str, number: str) -> pl.Series:
    column = pl.Series(name, [None], pl.Float64).new_from_index(0, table.height)
    rows = (table["payload_type"] == type_).arg_true()
    if rows.is_empty():
        return column
    raw = table["payload"].gather(rows) & (0xFFFFFFFF if bits == "I" else 0xFFFFFFFFFFFFFFFF)
    return column.scatter(rows, list(array(number, array(bits, raw.to_list()).tobytes())))


class _Names:
    """Strings, domains and thread names of all processes."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self._domains: dict[int, dict[str, int]] = {}
        self._named_domains: set[tuple[int, int]] = set()
        self.threads: dict[int, str] = {}

    def string(self, text: str) -> int:
        """Return the id of a text in StringIds."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def add(self, process: Part) -> dict[int, int]:
        """Add the domains and threads of a process. Return the domain ids of the profile by those of the process.

        After `exec`, a process has the same process id, and the new program can use the same id for another domain.
        """
        numbers = self._domains.setdefault(process.pid, {})
        domains = {}
        for definition in process.definitions:
            if definition.kind == Kind.DOMAIN_NAME:
                taken = definition.domain in numbers.values()
                number = max(numbers.values()) + 1 if taken else definition.domain
                domains[definition.domain] = numbers.setdefault(definition.text, number)
            elif definition.kind == Kind.THREAD_NAME:
                self.threads[global_tid(process.pid, definition.thread)] = definition.text
        for thread, name in process.thread_names.items():
            self.threads.setdefault(global_tid(process.pid, thread), name)
        return domains

    def strings_of(self, process: Part) -> dict[int, int]:
        """Return the ids in StringIds by the string ids of a process."""
        strings = (definition for definition in process.definitions if definition.kind == Kind.STRING)
        return {string.number: self.string(string.text) for string in strings}

    def rows(self, process: Part, domains: Mapping[int, int], origin: int) -> pl.DataFrame:
        """Return the rows of NVTX_EVENTS with the names of domains, categories and threads."""
        rows = []
        for definition in process.definitions:
            domain = domains.get(definition.domain, definition.domain)
            if definition.kind not in _TYPE_OF or (
                definition.kind == Kind.DOMAIN_NAME and not self._is_new(process.pid, domain)
            ):
                continue
            row = {
                "start": definition.time - origin,
                "eventType": _TYPE_OF[definition.kind],
                "category": definition.number if definition.kind == Kind.CATEGORY else None,
                "text": None if definition.kind == Kind.DOMAIN_END else definition.text,
                "globalTid": global_tid(process.pid, definition.thread),
                "domainId": domain,
            }
            rows.append(row)
        return pl.DataFrame(rows, schema=_EVENTS, orient="row")

    def _is_new(self, pid: int, domain: int) -> bool:
        """Return whether a domain has no row yet. The reports of Nsight Systems count its ranges once per row."""
        new = (pid, domain) not in self._named_domains
        self._named_domains.add((pid, domain))
        return new


def _write_facts(
    path: Path, processes: list[Part], names: _Names, end: int, recording: Recording, meta: Mapping[str, str]
) -> None:
    """Write all tables except NVTX_EVENTS.

    `processes` are by start of the recording, which ends `end` ns later. `meta` are entries of META_DATA_CAPTURE.
    """
    rows_of_processes = {
        global_tid(process.pid): (global_tid(process.pid), process.pid, process.program) for process in processes
    }
    notes = [("ANNOT_NOTE", note) for note in recording.notes]
    counts = {
        "ANNOT_LOST_EVENTS": str(recording.lost),
        "ANNOT_LOST_REASON": recording.reason,
        "ANNOT_OPEN_RANGES": str(recording.open_ranges),
        "ANNOT_UNMATCHED_POPS": str(recording.unmatched_pops),
        **meta,
    }
    exported = {
        "EXPORT_PRODUCT_NAME": "annot",
        "EXPORT_PRODUCT_VERSION": version(),
        **{f"EXPORT_SCHEMA_VERSION{suffix}": number for suffix, number in _SCHEMA_VERSION.items()},
        "EXPORT_TIME_UTC": datetime.now(UTC).strftime(_TIME),
    }
    tables: dict[str, list[tuple[Any, ...]]] = {
        "PROCESSES": list(rows_of_processes.values()),
        "ThreadNames": [(names.string(name), _PRIORITY, thread) for thread, name in names.threads.items()],
        "StringIds": [(number, text) for text, number in names.strings.items()],
        "ENUM_NSYS_EVENT_TYPE": [(number, name, name) for number, name in _EVENT_TYPES.items()],
        "META_DATA_EXPORT": list(exported.items()),
        "META_DATA_CAPTURE": [("CAPTURE_EVENT_TYPE", "NvtxEvents"), *counts.items(), *notes],
        "ANALYSIS_DETAILS": [(MACHINE, end, 0, end)],
        "TARGET_INFO_SESSION_START_TIME": [_start_time(processes[0].started_utc)] if processes else [],
    }
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        for table, rows in tables.items():
            if rows:
                database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def _start_time(utc_ns: int) -> tuple[int, str, str]:
    utc = datetime.fromtimestamp(utc_ns // 10**9, UTC)
    return utc_ns, utc.strftime(_TIME), utc.astimezone().strftime(_TIME)
