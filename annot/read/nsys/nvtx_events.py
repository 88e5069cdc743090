"""NVTX ranges and marks of an Nsight Systems export, with the texts of their string, domain and category ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import polars as pl

from annot.labels.tag import FINDINGS
from annot.profile import MARKS, RANGES
from annot.read.sqlite import ROW, Tables, resolve, with_times

__all__ = [
    "FINDINGS_PROCESS", "TABLE", "Names", "as_marks", "as_ranges", "event_blocks", "process_of", "read_strings",
]  # fmt: skip

FINDINGS_PROCESS: Final = 10 * 2**20
"""First of the process ids that annot assigns. Linux process ids are below 4 * 2**20 (PID_MAX_LIMIT)."""

TABLE: Final = "NVTX_EVENTS"

_CATEGORY, _MARK, _DOMAIN = 33, 34, 75
_PUSH: Final = (59, 70)  # 70 and 71: ranges imported from NVTXT
_START: Final = (60, 71)
_IMPORTED: Final = 70

_COLUMNS: Final = {
    "id": ROW, "type": "eventType", "start": "start", "end": "end", "thread": "globalTid",
    "end_thread": "endGlobalTid", "domain_id": "domainId", "string": "textId",
}  # fmt: skip
_TEXTS: Final = {"text": "text"}
_CATEGORIES: Final = {"category_id": "category"}
_COLORS: Final = {"color": "color"}
_INTEGERS: Final = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_REALS: Final = ("doubleValue", "floatValue")


class Names:
    """Names of domains and categories. Their ids are unique per process only."""

    def __init__(self, tables: Tables, strings: pl.DataFrame) -> None:
        columns = {name: _COLUMNS[name] for name in ("type", "thread", "domain_id", "string")} | _CATEGORIES
        self._named, self._text = pl.DataFrame(schema={"type": pl.Int64}), strings.schema["value"]
        if TABLE in tables.columns:
            rows = tables.scan(TABLE, columns, _TEXTS, (_COLUMNS["type"], (_CATEGORY, _DOMAIN)))
            self._named = _resolve_texts(rows, strings).with_columns(pl.col("text").cast(pl.String))

    @cached_property
    def has_findings(self) -> bool:
        """Whether the export contains findings that annot added to the report."""
        return FINDINGS in self._named.filter(pl.col("type") == _DOMAIN)["text"] if self._named.height else False

    @property
    def domains(self) -> int:
        """Number of named domains."""
        return int((self._named["type"] == _DOMAIN).sum())

    def with_names(self, rows: pl.DataFrame, kind: int, name: str, *outer: str) -> pl.DataFrame:
        """Replace the ids of domains or categories, which are unique inside the ids `outer`, by their names."""
        keys, number = [*outer, f"{name}_id"], pl.col(f"{name}_id")
        named = self._named.filter(pl.col("type") == kind).select(*keys, pl.col("text").alias(name))
        named = named.unique(keys, keep="last", maintain_order=True)
        numbered = pl.format("{} {}", pl.lit(name), number)
        text = pl.coalesce(name, pl.when(number == 0).then(pl.lit("")).otherwise(numbered)).alias(name)
        names = rows.select(keys).unique().join(named, on=keys, how="left").with_columns(text.cast(self._text))
        return rows.join(names, on=keys, how="left", maintain_order="left", nulls_equal=True).drop(f"{name}_id")


def event_blocks(tables: Tables, strings: pl.DataFrame, names: Names, *, full: bool) -> Iterator[pl.DataFrame]:
    """Yield ranges and marks, for `as_ranges` and `as_marks`, if `full` with payload, category and color.

    Strings as `pl.Categorical` take a quarter of the memory.
    """
    columns = _COLUMNS | ({name: name for name in _INTEGERS} | _CATEGORIES | _COLORS if full else {})
    if TABLE not in tables.columns:
        return
    reals = tables.reals(TABLE, [name for name in _REALS if name in tables.columns[TABLE]]) if full else None
    for rows in tables.blocks(TABLE, columns, _TEXTS):
        rows = _resolve_texts(rows.filter(pl.col("type").is_in((_MARK, *_PUSH, *_START))), strings)
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


def as_ranges(events: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    """Return the ranges among events, with the columns `annot.profile.RANGES`.

    `notes` counts ranges without valid times or thread, which are skipped.
    """
    marks = events["type"] == _MARK
    ranges = with_times(events.filter(~marks) if marks.any() else events, "range", notes, open_ends=True)
    if without_thread := ranges["thread"].null_count():
        notes["annot skipped {range} without a thread."] += without_thread
        ranges = ranges.drop_nulls("thread")
    return ranges.select(name for name in RANGES if name in ranges.columns)


def as_marks(events: pl.DataFrame) -> pl.DataFrame:
    """Return the marks with a time and a thread, with the columns `annot.profile.MARKS`."""
    marks = events.filter(pl.col("type") == _MARK).drop_nulls(["start", "thread"])
    return marks.select(name for name in MARKS if name in marks.columns)


def read_strings(tables: Tables) -> pl.DataFrame:
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
    kind = pl.when(pl.col("type").is_in(_PUSH)).then(pl.lit("push")).otherwise(pl.lit("start")).alias("kind")
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
