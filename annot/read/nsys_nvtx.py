"""The NVTX events of an Nsight Systems export: ranges and marks with their names spelt out."""

from __future__ import annotations

from collections import Counter
from typing import Final

import polars as pl

from annot.profile import MARKS, RANGES, pick
from annot.read.nsys_layout import ROW, Tables, fetch_blocks, process_of, spelt, with_times
from annot.tag import DOMAIN, NOTE

__all__ = ["TABLE", "Events", "read_events"]

TABLE: Final = "NVTX_EVENTS"

_CATEGORY, _MARK, _DOMAIN = 33, 34, 75
_PUSH: Final = (59, 70)  # the second of each pair is an import of NVTXT
_START: Final = (60, 71)

_COLUMNS: Final = {
    "id": ROW, "type": "eventType", "start": "start", "end": "end", "thread": "globalTid",
    "end_thread": "endGlobalTid", "domain_id": "domainId", "string": "textId",
}  # fmt: skip
_CATEGORIES: Final = {"category_id": "category"}
_COLORS: Final = {"color": "color"}
_INTEGERS: Final = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_REALS: Final = ("doubleValue", "floatValue")


class Events:
    """What an export says through NVTX.

    Args:
        rows: a row per range or mark.
        domains: how many domains it names.
        full: whether the rows have all columns.
    """

    def __init__(self, rows: pl.DataFrame, domains: int, *, full: bool) -> None:
        marks = rows["type"] == _MARK
        self._marks = rows.filter(marks)
        self._ranges = rows.filter(~marks) if self._marks.height else rows
        self._full = full
        self.domains = domains

    def ranges(self, notes: Counter[str]) -> pl.DataFrame:
        """Return the ranges; those without times or thread are left out, and noted."""
        ranges = with_times(self._ranges, "ranges", notes, open_ends=True)
        if homeless := ranges["thread"].null_count():
            notes["ranges left out because they name no thread"] += homeless
            ranges = ranges.drop_nulls("thread")
        if self._full:
            return pick(ranges.with_columns(pl.col("kind").cast(pl.String)), RANGES)
        return ranges.select(name for name in RANGES if name in ranges.columns)

    def marks(self) -> pl.DataFrame:
        """Return the marks that have a time and a thread."""
        marks = self._marks.drop_nulls(["start", "thread"])
        return pick(marks.with_columns(pl.col("text", "domain").cast(pl.String)), MARKS)

    def said(self) -> list[str]:
        """Return what annot, when it emitted the ranges, had to say of them."""
        texts = self._marks.filter(pl.col("domain").cast(pl.String) == DOMAIN)["text"].cast(pl.String)
        return [text.removeprefix(NOTE) for text in texts.unique(maintain_order=True) if (text or "").startswith(NOTE)]


def read_events(tables: Tables, strings: pl.DataFrame, *, full: bool) -> Events:
    """Return the events of an export, none if it has no table of them.

    Args:
        tables: the export.
        strings: its registered strings, as `annot.read.nsys_layout.read_strings` gives them.
        full: whether to read payload, category and colour; without them texts are `pl.Categorical`, which takes
            a quarter of the memory.
    """
    columns = _COLUMNS | ({name: name for name in _INTEGERS} | _CATEGORIES | _COLORS if full else {})
    parts, names = [], []
    for rows in fetch_blocks(tables, TABLE, columns, {"text": "text"}):
        rows = _spelt_out(rows, strings)
        names.append(rows.filter(pl.col("type").is_in((_CATEGORY, _DOMAIN))))
        rows = rows.filter(pl.col("type").is_in((_MARK, *_PUSH, *_START)))
        parts.append(rows if full else _compact(rows))
    if not parts:
        return Events(pl.DataFrame(schema={**RANGES, "type": pl.Int64}), 0, full=full)
    events, named = pl.concat(parts, how="diagonal"), pl.concat(names)
    parts.clear()
    if full:
        events = _with_names(events, named, _CATEGORY, ("process", "domain_id", "category_id"), "category")
        events = events.with_columns(_payload(events, tables))
    events = _with_names(events, named, _DOMAIN, ("process", "domain_id"), "domain")
    return Events(events, named.filter(pl.col("type") == _DOMAIN).height, full=full)


def _spelt_out(rows: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    text = spelt(rows["string"], strings).alias("text")
    if text.null_count():
        text = rows.select(pl.coalesce(text, "text")).to_series()
    numbers = [name for name in ("domain_id", "category_id") if name in rows.columns]
    foreign = pl.when(pl.col("end_thread") != pl.col("thread")).then(pl.col("end_thread")).alias("end_thread")
    kind = pl.when(pl.col("type").is_in(_PUSH)).then(pl.lit("push")).otherwise(pl.lit("start")).alias("kind")
    return rows.drop("string").with_columns(
        process_of("thread"), text, foreign, kind.cast(_KIND), pl.col(numbers).fill_null(0)
    )


_KIND: Final = pl.Enum(["push", "start"])


def _compact(rows: pl.DataFrame) -> pl.DataFrame:
    if rows["end_thread"].null_count() == rows.height:
        rows = rows.drop("end_thread")
    return rows.with_columns(
        pl.col("text").cast(pl.Categorical),
        pl.col("type").cast(pl.UInt8),
        pl.col("domain_id").cast(pl.Int32, strict=False),
    )


def _payload(rows: pl.DataFrame, tables: Tables) -> pl.Series:
    """The numbers that the events carry, as text."""
    spellings = [
        rows[name].reinterpret(signed=False).cast(pl.String)  # SQLite has no unsigned numbers of 64 bits
        if name == "uint64Value"
        else rows[name].cast(pl.String)
        for name in _INTEGERS
        if rows[name].null_count() < rows.height
    ]
    reals = tables.reals(TABLE, [name for name in _REALS if name in tables.columns[TABLE]])
    if not reals.is_empty():
        joined = rows.select("id").join(reals, on="id", how="left", maintain_order="left")
        spellings.append(joined["real"].cast(pl.String))
    if not spellings:
        return pl.Series("payload", [None], pl.String).new_from_index(0, rows.height)
    return rows.select(pl.coalesce(spellings).alias("payload")).to_series()


def _with_names(events: pl.DataFrame, named: pl.DataFrame, kind: int, keys: tuple[str, ...], name: str) -> pl.DataFrame:
    """Add the domain or the category; their numbers mean something in their process only."""
    number = pl.col(f"{name}_id")
    spelt_out = events.select(keys).unique()
    if name == "domain" and "category_id" not in named.columns:
        named = named.with_columns(number.cast(spelt_out.schema[f"{name}_id"], strict=False))
    known = named.filter(pl.col("type") == kind).select(*keys, pl.col("text").alias(name))
    known = known.unique(keys, keep="last", maintain_order=True)
    numbered = pl.format("{} {}", pl.lit(name), number)
    text = pl.coalesce(name, pl.when(number == 0).then(pl.lit("")).otherwise(numbered)).alias(name)
    spelt_out = spelt_out.join(known, on=keys, how="left").with_columns(text)
    if events.schema["text"] == pl.Categorical:
        spelt_out = spelt_out.with_columns(pl.col(name).cast(pl.Categorical))
    numbers = events.select(keys)
    names = numbers.join(spelt_out, on=keys, how="left", maintain_order="left", nulls_equal=True)[name]
    return events.with_columns(names).drop(f"{name}_id")
