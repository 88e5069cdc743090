"""The SQLite layout of Nsight Systems: its exports of 2020 to 2026, and annot's own recordings.

Any table and any column can be absent, and their order changes, so everything is asked for by name. Ids of
correlations, domains and categories are unique per process only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import COPIES, KERNELS, LAUNCHES, MARKS, RANGES, Profile, conform, pick
from annot.read.sqlite import MAGIC, Database, open_database

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "nsys_sqlite"

_CATEGORY, _MARK, _DOMAIN = 33, 34, 75
_PUSH = (59, 70)  # the second of each pair is an import of NVTXT
_START = (60, 71)
_WORK = "CUPTI_ACTIVITY_KIND_"
_CALLS = "(0, 1)"  # runtime and driver API; class 67 repeats each call with its backtrace

_GPU_ROWS: Final = frozenset({"start", "end", "correlationId", "globalPid"})
_NEEDED: Final = {
    "NVTX_EVENTS": frozenset({"start", "end", "eventType", "globalTid"}),
    _WORK + "RUNTIME": frozenset({"start", "end", "globalTid", "correlationId", "nameId"}),
    **{_WORK + table: _GPU_ROWS for table in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET")},
}

_COPY_KINDS: Final = {
    0: "unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP", 11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD",
}  # fmt: skip

_PAYLOADS = ("uint64Value", "int64Value", "uint32Value", "int32Value", "doubleValue", "floatValue")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is SQLite; see `annot.read.Reader`."""
    return head.startswith(MAGIC)


def read(path: Path) -> Profile:
    """Read an export; see `annot.read.Reader`.

    Raises:
        AnnotError: the file is cut or damaged, or holds neither NVTX ranges nor CUDA activity.
    """
    with open_database(path) as database:
        _check(path, database)
        strings = _strings(database)
        events = _events(database, strings)
        return Profile.build(
            _meta(path, database),
            ranges=_ranges(events),
            marks=pick(events.filter(pl.col("type") == _MARK), MARKS),
            launches=_launches(database, strings),
            kernels=pl.concat([_kernels(database, strings), _graphs(database)]),
            copies=pl.concat([_copies(database), _sets(database)]),
        )


def _check(path: Path, database: Database) -> None:
    work = [table for table in database.columns if table.startswith(_WORK)]
    if "NVTX_EVENTS" not in database.columns and not work:
        if "StringIds" in database.columns:
            raise AnnotError(f"{path} is a profile without NVTX ranges and without CUDA activity")
        found = ", ".join(sorted(database.columns)[:4]) or "no table at all"
        raise AnnotError(f"{path} is SQLite, but no profile: it has no table NVTX_EVENTS, but {found}")
    for table, needed in _NEEDED.items():
        missing = sorted(needed - database.columns.get(table, needed))
        if missing:
            raise AnnotError(f"{path} is no Nsight Systems export: its {table} has no column {missing[0]}")


def _meta(path: Path, database: Database) -> dict[str, Any]:
    exported = dict(_entries(database, "EXPORT_META_DATA") + _entries(database, "META_DATA_EXPORT"))
    product = (exported.get("EXPORT_PRODUCT_NAME", ""), exported.get("EXPORT_PRODUCT_VERSION", ""))
    notes = _notes_of_recorder(_entries(database, "META_DATA_CAPTURE"))
    if not database.has("NVTX_EVENTS"):
        notes.append("the profile holds no NVTX ranges, so nothing can be attributed")
    return {"source": str(path), "format": NAME, "producer": " ".join(filter(None, product)), "notes": notes}


def _entries(database: Database, table: str) -> list[tuple[str, str]]:
    if database.columns.get(table, frozenset()) < {"name", "value"}:
        return []
    return [(str(name), str(value)) for name, value in database.rows(f"SELECT name, value FROM {table}")]


def _notes_of_recorder(capture: list[tuple[str, str]]) -> list[str]:
    """What annot's recorder says that it lost or had to make up."""
    counts = {
        name: int(value)
        for name, value in capture
        if name.startswith("ANNOT_") and value.isdecimal() and len(value) < 19
    }
    notes = [value for name, value in capture if name == "ANNOT_NOTE"]
    if lost := counts.get("ANNOT_LOST_EVENTS"):
        notes.append(f"{lost:,} events could not be written and are missing")
    if unended := counts.get("ANNOT_OPEN_RANGES"):
        ranges = "1 range was" if unended == 1 else f"{unended:,} ranges were"
        notes.append(f"{ranges} still open when the recording ended, and end there")
    return notes


def _strings(database: Database) -> pl.DataFrame:
    if database.columns.get("StringIds", frozenset()) < {"id", "value"}:
        return pl.DataFrame(schema={"string": pl.Int64, "value": pl.String})
    return database.scan("StringIds", {"string": "id"}, {"value": "value"}).unique("string", keep="first")


def _spelt(frame: pl.DataFrame, column: str, strings: pl.DataFrame) -> pl.Series:
    """The strings that a column of ids stands for, null where an id is null or unknown."""
    spelt = frame.select(string=column).join(strings, on="string", how="left", maintain_order="left")
    return spelt["value"]


def _process(column: str) -> pl.Expr:
    return pl.col(column) & pl.lit(~0xFFFFFF, pl.Int64)


def _events(database: Database, strings: pl.DataFrame) -> pl.DataFrame:
    """Marks and ranges of every kind with their names, domains and categories spelt out."""
    if "NVTX_EVENTS" not in database.columns:
        return pl.DataFrame(schema={**RANGES, "type": pl.Int64})
    named = _nvtx_rows(database, (_CATEGORY, _DOMAIN), strings)
    events = _nvtx_rows(database, (_MARK, *_PUSH, *_START), strings)
    domains = named.filter(pl.col("type") == _DOMAIN).select("process", "domain_id", domain="text")
    categories = named.filter(pl.col("type") == _CATEGORY)
    categories = categories.select("process", "domain_id", "category_id", category="text")
    events = events.with_columns(pl.col("domain_id", "category_id").fill_null(0))
    for names in (domains, categories):
        keys = [key for key in names.columns if key.endswith("_id")]
        names = names.with_columns(pl.col(keys).fill_null(0)).unique(["process", *keys], keep="last")
        events = events.join(names, on=["process", *keys], how="left", maintain_order="left")
    return events.with_columns(
        _or_number("domain", "domain_id"),
        _or_number("category", "category_id"),
        pl.when(pl.col("end_thread") != pl.col("thread")).then(pl.col("end_thread")).alias("end_thread"),
    )


def _or_number(name: str, number: str) -> pl.Expr:
    numbered = pl.format("{} {}", pl.lit(name), number)
    return pl.coalesce(name, pl.when(pl.col(number) == 0).then(pl.lit("")).otherwise(numbered)).alias(name)


def _nvtx_rows(database: Database, types: tuple[int, ...], strings: pl.DataFrame) -> pl.DataFrame:
    integers = {
        "id": "rowid", "type": "eventType", "start": "start", "end": '"end"', "thread": "globalTid",
    }  # fmt: skip
    optional = {
        "end_thread": "endGlobalTid", "category_id": "category", "domain_id": "domainId",
        "string": "textId", "color": "color",
    }  # fmt: skip
    integers |= {name: database.column("NVTX_EVENTS", column) for name, column in optional.items()}
    texts = {"text": database.column("NVTX_EVENTS", "text"), "payload": _payload(database)}
    rows = database.scan("NVTX_EVENTS", integers, texts, where=f"eventType IN {(*types,)}")
    return rows.with_columns(
        _process("thread").alias("process"),
        pl.coalesce(_spelt(rows, "string", strings), rows["text"]).alias("text"),
        pl.when(pl.col("payload") != "").then(pl.col("payload")).alias("payload"),
    )


def _payload(database: Database) -> str:
    there = [name for name in _PAYLOADS if name in database.columns["NVTX_EVENTS"]]
    if not there:
        return "NULL"
    # SQLite keeps an unsigned number of 64 bits as a signed one.
    spelt = [
        f"CASE WHEN {name} IS NOT NULL THEN printf('%u', {name}) END" if name == "uint64Value" else name
        for name in there
    ]
    return f"coalesce({', '.join(spelt)}, NULL)"


def _ranges(events: pl.DataFrame) -> pl.DataFrame:
    kind = pl.when(pl.col("type").is_in(_PUSH)).then(pl.lit("push")).otherwise(pl.lit("start"))
    usable = pl.col("start").is_not_null() & pl.col("thread").is_not_null()
    ranges = events.filter((pl.col("type") != _MARK) & usable)
    return pick(ranges.with_columns(kind.alias("kind")), RANGES)


def _launches(database: Database, strings: pl.DataFrame) -> pl.DataFrame:
    table = _WORK + "RUNTIME"
    if table not in database.columns:
        return conform(None, LAUNCHES)
    where = f"eventClass IN {_CALLS}" if "eventClass" in database.columns[table] else "1"
    integers = {"start": "start", "end": '"end"', "thread": "globalTid"}
    rows = database.scan(table, integers | {"correlation": "correlationId", "string": "nameId"}, {}, where)
    names = _spelt(rows, "string", strings).alias("name")
    rows = rows.with_columns(_process("thread").alias("process"), names)
    return pick(rows, LAUNCHES)


def _work(database: Database, table: str, **more: str) -> pl.DataFrame:
    common = {"process": "globalPid", "device": "deviceId", "stream": "streamId"}
    names = {"start": "start", "end": "end", "correlation": "correlationId"} | common | more
    integers = {name: database.column(table, column) for name, column in names.items()}
    rows = database.scan(table, integers, {})
    return rows.with_columns(_process("process"))


def _kernels(database: Database, strings: pl.DataFrame) -> pl.DataFrame:
    table = _WORK + "KERNEL"
    if table not in database.columns:
        return conform(None, KERNELS)
    rows = _work(database, table, string="demangledName", short="shortName")
    name = pl.coalesce(_spelt(rows, "string", strings), _spelt(rows, "short", strings), pl.lit(""))
    return pick(rows.with_columns(name.alias("name")), KERNELS)


def _graphs(database: Database) -> pl.DataFrame:
    """CUDA graphs traced as one piece: their kernels have no rows of their own."""
    table = _WORK + "GRAPH_TRACE"
    if table not in database.columns:
        return conform(None, KERNELS)
    rows = _work(database, table, graph="graphId")
    name = pl.format("CUDA graph {}", pl.col("graph").fill_null(0))
    return pick(rows.with_columns(name.alias("name")), KERNELS)


def _copies(database: Database) -> pl.DataFrame:
    table = _WORK + "MEMCPY"
    if table not in database.columns:
        return conform(None, COPIES)
    rows = _work(database, table, bytes="bytes", copy="copyKind")
    kind = pl.col("copy").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String)
    return pick(rows.with_columns(kind.alias("kind")), COPIES)


def _sets(database: Database) -> pl.DataFrame:
    table = _WORK + "MEMSET"
    if table not in database.columns:
        return conform(None, COPIES)
    rows = _work(database, table, bytes="bytes")
    return pick(rows.with_columns(pl.lit("memset").alias("kind")), COPIES)
