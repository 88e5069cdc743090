"""The NVTX events of an Nsight Systems export: ranges and marks with their names spelt out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import polars as pl

from annot.profile import MARKS, RANGES
from annot.read.nsys_layout import ROW, Tables, fetch, fetch_blocks, process_of, spelt, with_times
from annot.tag import FINDINGS

__all__ = ["FINDINGS_PROCESS", "TABLE", "Names", "as_marks", "as_ranges", "event_blocks"]

FINDINGS_PROCESS: Final = 10 * 2**20
"""The process number from which on those count that annot makes up; Linux gives none from 4 * 2**20 on."""

TABLE: Final = "NVTX_EVENTS"

_CATEGORY, _MARK, _DOMAIN = 33, 34, 75
_PUSH: Final = (59, 70)  # the second of each pair is an import of NVTXT
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
    """The names of domains, and of categories in them; their numbers mean something in their process only.

    Args:
        tables: the export.
        strings: its registered strings, as `annot.read.nsys_layout.read_strings` gives them.
    """

    def __init__(self, tables: Tables, strings: pl.DataFrame) -> None:
        columns = {name: _COLUMNS[name] for name in ("type", "thread", "domain_id", "string")} | _CATEGORIES
        self._said = pl.DataFrame(schema={"type": pl.Int64})
        if TABLE in tables.columns:
            rows = fetch(tables, TABLE, columns, _TEXTS, (_COLUMNS["type"], (_CATEGORY, _DOMAIN)))
            self._said = _spelt_out(rows, strings).with_columns(pl.col("text").cast(pl.String))

    @cached_property
    def has_findings(self) -> bool:
        """Whether annot wrote into the report what it found."""
        return FINDINGS in self._said.filter(pl.col("type") == _DOMAIN)["text"] if self._said.height else False

    @property
    def domains(self) -> int:
        """How many domains the export names."""
        return int((self._said["type"] == _DOMAIN).sum())

    def spell_domains(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows with their domain in the place of its number."""
        return self._spell(rows, _DOMAIN, "domain", "process", "domain_id").drop("domain_id")

    def spell_categories(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows, which have the number of their domain, with their category in the place of its number."""
        return self._spell(rows, _CATEGORY, "category", "process", "domain_id", "category_id").drop("category_id")

    def _spell(self, rows: pl.DataFrame, kind: int, name: str, *keys: str) -> pl.DataFrame:
        number = pl.col(f"{name}_id")
        known = self._said.filter(pl.col("type") == kind).select(*keys, pl.col("text").alias(name))
        known = known.unique(keys, keep="last", maintain_order=True)
        numbered = pl.format("{} {}", pl.lit(name), number)
        text = pl.coalesce(name, pl.when(number == 0).then(pl.lit("")).otherwise(numbered)).alias(name)
        spelt_out = rows.select(keys).unique().join(known, on=keys, how="left").with_columns(text)
        if rows.schema["text"] == pl.Categorical:
            spelt_out = spelt_out.with_columns(pl.col(name).cast(pl.Categorical))
        return rows.join(spelt_out, on=keys, how="left", maintain_order="left", nulls_equal=True)


def event_blocks(tables: Tables, strings: pl.DataFrame, names: Names, *, full: bool) -> Iterator[pl.DataFrame]:
    """Yield ranges and marks, for `as_ranges` and `as_marks`.

    Args:
        tables: the export.
        strings: its registered strings, as `annot.read.nsys_layout.read_strings` gives them, or as
            `pl.Categorical`, which takes a quarter of the memory.
        names: those of its domains and categories.
        full: whether to read payload, category and colour.
    """
    columns = _COLUMNS | ({name: name for name in _INTEGERS} | _CATEGORIES | _COLORS if full else {})
    if TABLE not in tables.columns:
        return
    reals = tables.reals(TABLE, [name for name in _REALS if name in tables.columns[TABLE]]) if full else None
    for rows in fetch_blocks(tables, TABLE, columns, _TEXTS):
        rows = _spelt_out(rows.filter(pl.col("type").is_in((_MARK, *_PUSH, *_START))), strings)
        if reals is not None:
            rows = names.spell_categories(rows.with_columns(_payload(rows, reals)))
        rows = names.spell_domains(_without_imported_findings(rows))
        yield rows.filter(pl.col("domain").cast(pl.String) != FINDINGS) if names.has_findings else rows


def _without_imported_findings(rows: pl.DataFrame) -> pl.DataFrame:
    """What annot itself wrote into a report is no event of the run; NVTXT has no domains, so its process tells."""
    latest = rows["type"].max()
    if isinstance(latest, int) and latest >= _IMPORTED:
        number = pl.col("thread") // 2**24 % 2**24
        rows = rows.filter(~((pl.col("type") >= _IMPORTED) & (number >= FINDINGS_PROCESS)).fill_null(False))
    return rows


def as_ranges(events: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    """Return the ranges among events, as `annot.profile.RANGES`; those without times or thread are noted."""
    marks = events["type"] == _MARK
    ranges = with_times(events.filter(~marks) if marks.any() else events, "ranges", notes, open_ends=True)
    if homeless := ranges["thread"].null_count():
        notes["ranges left out because they name no thread"] += homeless
        ranges = ranges.drop_nulls("thread")
    return ranges.select(name for name in RANGES if name in ranges.columns)


def as_marks(events: pl.DataFrame) -> pl.DataFrame:
    """Return the marks among events, as `annot.profile.MARKS`, that have a time and a thread."""
    marks = events.filter(pl.col("type") == _MARK).drop_nulls(["start", "thread"])
    return marks.select(name for name in MARKS if name in marks.columns)


def _spelt_out(rows: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    text = spelt(rows["string"], strings).alias("text")
    if text.null_count():
        text = rows.select(pl.coalesce(text, pl.col("text").cast(text.dtype))).to_series()
    numbers = [name for name in ("domain_id", "category_id") if name in rows.columns]
    rows = rows.drop("string").with_columns(process_of("thread"), text, pl.col(numbers).fill_null(0))
    if "end_thread" not in rows.columns:
        return rows
    foreign = pl.when(pl.col("end_thread") != pl.col("thread")).then(pl.col("end_thread")).alias("end_thread")
    kind = pl.when(pl.col("type").is_in(_PUSH)).then(pl.lit("push")).otherwise(pl.lit("start")).alias("kind")
    return rows.with_columns(foreign, kind.cast(_KIND))


_KIND: Final = pl.Enum(["push", "start"])


def _payload(rows: pl.DataFrame, reals: pl.DataFrame) -> pl.Series:
    """The numbers that the events carry, as text."""
    spellings = [
        rows[name].reinterpret(signed=False).cast(pl.String)  # SQLite has no unsigned numbers of 64 bits
        if name == "uint64Value"
        else rows[name].cast(pl.String)
        for name in _INTEGERS
        if rows[name].null_count() < rows.height
    ]
    if not reals.is_empty():
        joined = rows.select("id").join(reals, on="id", how="left", maintain_order="left")
        spellings.append(joined["real"].cast(pl.String))
    if not spellings:
        return pl.Series("payload", [None], pl.String).new_from_index(0, rows.height)
    return rows.select(pl.coalesce(spellings).alias("payload")).to_series()
