"""Rows of an Nsight Systems export as its own reports read them.

They differ from the tables of `annot.profile`: repeated rows of an API call with its backtrace and unnamed domains are
included, CUDA graphs are not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from annot.errors import AnnotError
from annot.read.nsys.sqlite_export import process_of, read_strings
from annot.read.sqlite import MAGIC, ROW, Database, check_columns, journal_notes, open_database, resolve

__all__ = ["Activity", "read_activity"]

_DOMAIN: Final = 75
_STYLES: Final = {59: "PushPop", 60: "StartEnd", 70: "PushPop", 71: "StartEnd"}
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_ON_GPU: Final = (_KERNEL, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_GPU_COLUMNS: Final = frozenset({"start", "end", "correlationId", "globalPid"})
_NEEDED: Final = {
    "NVTX_EVENTS": frozenset({"start", "end", "eventType", "globalTid"}),
    _RUNTIME: frozenset({"start", "end", "correlationId", "globalTid"}),
    **dict.fromkeys(_ON_GPU, _GPU_COLUMNS),
}


@dataclass(frozen=True, slots=True)
class Activity:
    """Ranges, API calls and GPU activities of an export.

    Times are in ns. Columns are Int64, except for name, style (String) and kernel (Boolean).

    Args:
        ranges: id (row id), thread, start, end, name ("domain:text", may be null), style ("PushPop" or "StartEnd") of
            all ranges that ended on their own thread. Open ranges end with the last NVTX event.
        calls: process, thread, start, end, correlation of every row of the API.
        work: process, correlation, start, end, kernel (false for copies and memsets), name (of the kernel, otherwise
            null).
        notes: notes of the reader, a sentence each.
    """

    ranges: pl.DataFrame
    calls: pl.DataFrame
    work: pl.DataFrame
    notes: tuple[str, ...] = ()


def read_activity(path: str | os.PathLike[str]) -> Activity:
    """Read an SQLite export of Nsight Systems or a recording of annot, which has the same tables.

    Args:
        path: the SQLite file.

    Raises:
        AnnotError: the file does not exist, has another format or is damaged.
    """
    path = Path(path)
    _check_format(path)
    with open_database(path) as database:
        check_columns(path, database.columns, _NEEDED)
        if not database.columns.keys() & _NEEDED.keys():
            raise AnnotError(f"{path} is an SQLite file without NVTX ranges and CUDA activity")
        strings = read_strings(database)
        return Activity(
            _ranges(database, strings), _calls(database), _gpu(database, strings), tuple(journal_notes(path))
        )


def _check_format(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except (OSError, ValueError) as error:
        raise AnnotError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if magic != MAGIC:
        raise AnnotError(f"{path} is not an SQLite export of Nsight Systems")


def _ranges(database: Database, strings: pl.DataFrame) -> pl.DataFrame:
    table = "NVTX_EVENTS"
    if table not in database.columns:
        columns = dict.fromkeys(("id", "thread", "start", "end"), pl.Int64)
        return pl.DataFrame(schema=columns | {"name": pl.String, "style": pl.String})
    integers = {
        "id": ROW, "type": "eventType", "start": "start", "end": "end", "thread": "globalTid",
        "ended_by": "endGlobalTid", "string": "textId", "domain": "domainId",
    }  # fmt: skip
    rows = database.scan(table, integers, {"text": "text"}, where_in=("eventType", (_DOMAIN, *_STYLES)))
    text = "text" if "text" in database.columns[table] else "NULL"
    nameless = database.rows(f"SELECT rowid FROM {table} WHERE {text} IS NULL")
    rows = rows.with_columns(nameless=pl.col("id").is_in([row for (row,) in nameless]))
    name = resolve(rows["string"], strings)
    ((last,),) = database.rows(f'SELECT max(CAST(max(ifnull("end", start), start) AS INTEGER)) FROM {table}')
    rows = rows.with_columns(
        pl.coalesce(name, pl.when(~pl.col("nameless")).then("text")).alias("name"),
        pl.col("end").fill_null(pl.lit(last if isinstance(last, int) else None, pl.Int64)),
    )
    ranges = rows.filter(
        (pl.col("type") != _DOMAIN) & pl.col("ended_by").is_null() & (pl.col("start") <= pl.col("end"))
    )
    return _in_domains(ranges.drop_nulls("thread"), rows).select(
        "id", "thread", "start", "end", "name",
        pl.col("type").replace_strict(_STYLES, return_dtype=pl.String).alias("style"),
    )  # fmt: skip


def _in_domains(ranges: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Prefix range names with the domain name. Domain ids are unique per process only."""
    process = process_of("thread")
    domains = rows.filter(pl.col("type") == _DOMAIN).sort("start").with_columns(process)
    domains = domains.select("process", "domain", prefix="name").drop_nulls()
    domains = domains.unique(["process", "domain"], keep="first")
    ranges = ranges.with_columns(process).join(domains, on=["process", "domain"], how="left", maintain_order="left")
    prefixed = pl.concat_str("prefix", pl.lit(":"), "name")
    return ranges.with_columns(pl.when(pl.col("prefix").is_null()).then("name").otherwise(prefixed).alias("name"))


def _calls(tables: Database) -> pl.DataFrame:
    names = ("process", "thread", "start", "end", "correlation")
    if _RUNTIME not in tables.columns:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    columns = {"thread": "globalTid", "start": "start", "end": "end", "correlation": "correlationId"}
    rows = tables.scan(_RUNTIME, columns).drop_nulls()
    return rows.filter(pl.col("start") <= pl.col("end")).select(process_of("thread"), *names[1:])


def _gpu(tables: Database, strings: pl.DataFrame) -> pl.DataFrame:
    columns = {"process": "globalPid", "correlation": "correlationId", "start": "start", "end": "end"}
    empty = dict.fromkeys(columns, pl.Int64) | {"kernel": pl.Boolean, "name": pl.String}
    parts = [pl.DataFrame(schema=empty)]
    for table in (table for table in _ON_GPU if table in tables.columns):
        rows = tables.scan(table, columns | {"string": "demangledName"}).drop_nulls(["start", "end"])
        name = resolve(rows["string"], strings).alias("name")
        parts.append(rows.select(*columns, kernel=pl.lit(table == _KERNEL)).with_columns(name))
    return pl.concat(parts)
