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
from annot.read.sqlite import MAGIC, Database, open_database

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
        for table, needed in _NEEDED.items():
            if missing := sorted(needed - database.columns.get(table, needed)):
                raise AnnotError(f"{path} is not an Nsight Systems export: {table} lacks the column {missing[0]}")
        if not database.columns.keys() & _NEEDED.keys():
            raise AnnotError(f"{path} is an SQLite file without NVTX ranges and CUDA activity")
        strings = _strings(database)
        return Activity(_ranges(database, strings), _calls(database), _gpu(database, strings), tuple(database.notes))


def _check_format(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except (OSError, ValueError) as error:
        raise AnnotError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if magic != MAGIC:
        raise AnnotError(f"{path} is not an SQLite export of Nsight Systems, which `--rule nsight` requires")


def _strings(database: Database) -> pl.DataFrame:
    if database.columns.get("StringIds", frozenset()) < {"id", "value"}:
        return pl.DataFrame(schema={"string": pl.Int64, "value": pl.String})
    return database.scan("StringIds", {"string": "id"}, {"value": "value"}).unique("string", keep="first")


def _ranges(database: Database, strings: pl.DataFrame) -> pl.DataFrame:
    table = "NVTX_EVENTS"
    if table not in database.columns:
        columns = dict.fromkeys(("id", "thread", "start", "end"), pl.Int64)
        return pl.DataFrame(schema=columns | {"name": pl.String, "style": pl.String})
    optional = {"ended_by": "endGlobalTid", "string": "textId", "domain": "domainId"}
    integers = {
        "id": database.row_number(table),
        "type": "eventType",
        "start": "start",
        "end": '"end"',
        "thread": "globalTid",
    }
    integers |= {name: database.column(table, column) for name, column in optional.items()}
    text = database.column(table, "text")
    integers["nameless"] = f"{text} IS NULL"
    types = ", ".join(map(str, (_DOMAIN, *_STYLES)))
    rows = database.scan(table, integers, {"text": text}, where=f"eventType IN ({types})")
    rows = rows.join(strings, on="string", how="left", maintain_order="left").with_columns(
        pl.coalesce("value", pl.when(pl.col("nameless") == 0).then("text")).alias("name"),
        pl.col("end").fill_null(pl.lit(_last_instant(database), pl.Int64)),
    )
    ranges = rows.filter(
        (pl.col("type") != _DOMAIN) & pl.col("ended_by").is_null() & (pl.col("start") <= pl.col("end"))
    )
    return _in_domains(ranges.drop_nulls("thread"), rows).select(
        "id", "thread", "start", "end", "name",
        pl.col("type").replace_strict(_STYLES, return_dtype=pl.String).alias("style"),
    )  # fmt: skip


def _last_instant(database: Database) -> int | None:
    ((last,),) = database.rows('SELECT max(CAST(max(ifnull("end", start), start) AS INTEGER)) FROM NVTX_EVENTS')
    return last if isinstance(last, int) else None


def _in_domains(ranges: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Prefix range names with the domain name. Domain ids are unique per process only."""
    process = _process("thread").alias("process")
    domains = rows.filter(pl.col("type") == _DOMAIN).sort("start").with_columns(process)
    domains = domains.select("process", "domain", prefix="name").drop_nulls()
    domains = domains.unique(["process", "domain"], keep="first")
    ranges = ranges.with_columns(process).join(domains, on=["process", "domain"], how="left", maintain_order="left")
    prefixed = pl.concat_str("prefix", pl.lit(":"), "name")
    return ranges.with_columns(pl.when(pl.col("prefix").is_null()).then("name").otherwise(prefixed).alias("name"))


def _process(column: str) -> pl.Expr:
    return pl.col(column) & pl.lit(~0xFFFFFF, pl.Int64)


def _calls(database: Database) -> pl.DataFrame:
    names = ("process", "thread", "start", "end", "correlation")
    if _RUNTIME not in database.columns:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    integers = {"thread": "globalTid", "start": "start", "end": '"end"', "correlation": "correlationId"}
    rows = database.scan(_RUNTIME, integers, {}).drop_nulls()
    return rows.filter(pl.col("start") <= pl.col("end")).select(_process("thread").alias("process"), *names[1:])


def _gpu(database: Database, strings: pl.DataFrame) -> pl.DataFrame:
    names = ("process", "correlation", "start", "end")
    empty = dict.fromkeys(names, pl.Int64) | {"kernel": pl.Boolean, "name": pl.String}
    parts = [pl.DataFrame(schema=empty)]
    for table in _ON_GPU:
        if table not in database.columns:
            continue
        integers = {"process": "globalPid", "correlation": "correlationId", "start": "start", "end": '"end"'}
        integers["string"] = database.column(table, "demangledName")
        rows = database.scan(table, integers, {}).drop_nulls(["start", "end"])
        rows = rows.join(strings, on="string", how="left", maintain_order="left")
        parts.append(rows.select(*names, kernel=pl.lit(table == _KERNEL), name="value"))
    return pl.concat(parts)
