"""Access to the tables of an Nsight Systems export, in SQLite or Parquet.

Nsight Systems creates a table only if it has rows, and releases add, rename and reorder columns. Tables and columns are
therefore optional and are accessed by name. The ids of correlations, domains, categories and graph nodes are unique
per process only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl

from annot.errors import AnnotError
from annot.profile import LATEST
from annot.read.sqlite import Among, Columns

__all__ = [
    "ACTIVITY", "ROW", "Tables", "check_columns", "fetch", "fetch_blocks", "process_of", "read_strings", "resolve",
    "with_times",
]  # fmt: skip

ACTIVITY: Final = "CUPTI_ACTIVITY_KIND_"
"""Prefix of the tables with CUDA activity."""

ROW: Final = "rowid"
"""Name of the row number among the columns of a table."""


class Tables(Protocol):
    """The tables of an export."""

    @property
    def columns(self) -> Mapping[str, Set[str]]:
        """The columns of each table."""

    def scan(self, table: str, integers: Columns, texts: Columns, where_in: Among | None = None) -> pl.DataFrame:
        """Return existing columns of a table; see `fetch`. Null texts become ""."""

    def blocks(self, table: str, integers: Columns, texts: Columns) -> Iterator[pl.DataFrame]:
        """Yield the rows of `scan` in blocks that are not empty. The table can be larger than the memory."""

    def reals(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return the rows where a column is a number: "id" (`ROW`) and "real" (Float64, the first of the columns)."""

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table with the columns that it has, or an empty list if it does not exist."""


def fetch(
    tables: Tables, table: str, integers: Columns, texts: Columns | None = None, where_in: Among | None = None
) -> pl.DataFrame:
    """Return columns of an existing table. Missing integer columns are null, missing text columns are "".

    `integers` and `texts` have the source column, or `ROW`, of each Int64 and String column, by its name in the result.
    `where_in` is an existing integer column and its allowed values.
    """
    texts = texts or {}
    existing = _existing(tables, table, integers), _existing(tables, table, texts)
    return _completed(tables.scan(table, *existing, where_in), integers, texts)


def fetch_blocks(tables: Tables, table: str, integers: Columns, texts: Columns | None = None) -> Iterator[pl.DataFrame]:
    """Yield the rows of `fetch` in blocks that are not empty. A missing table yields no blocks."""
    texts = texts or {}
    if table in tables.columns:
        for rows in tables.blocks(table, _existing(tables, table, integers), _existing(tables, table, texts)):
            yield _completed(rows, integers, texts)


def check_columns(
    path: Path, columns: Mapping[str, Set[str]], needed: Mapping[str, Set[str]], kind: str = "an Nsight Systems export"
) -> None:
    """Raise `AnnotError` if an existing table lacks one of its needed columns."""
    for table, names in needed.items():
        if missing := sorted(names - columns.get(table, names)):
            raise AnnotError(f"{path} is not {kind}: {table} lacks the column {missing[0]}")


def _existing(tables: Tables, table: str, columns: Columns) -> dict[str, str]:
    existing = tables.columns[table] | {ROW}
    return {name: column for name, column in columns.items() if column in existing}


def _completed(rows: pl.DataFrame, integers: Columns, texts: Columns) -> pl.DataFrame:
    absent = [pl.lit(None, pl.Int64).alias(name) for name in integers if name not in rows.columns]
    absent += [pl.lit("").alias(name) for name in texts if name not in rows.columns]
    return rows.with_columns(absent) if absent else rows


def read_strings(tables: Tables) -> pl.DataFrame:
    """Return the table StringIds: "string" (Int64, unique) and "value" (String)."""
    if not {"id", "value"} <= tables.columns.get("StringIds", frozenset()):
        return pl.DataFrame(schema={"string": pl.Int64, "value": pl.String})
    return tables.scan("StringIds", {"string": "id"}, {"value": "value"}).unique("string", keep="first")


def resolve(ids: pl.Series, strings: pl.DataFrame) -> pl.Series:
    """Return the strings of ids in StringIds, from `read_strings`. Null and unknown ids give null."""
    if ids.null_count() == len(ids):
        return pl.Series(ids.name, [None], strings.schema["value"]).new_from_index(0, len(ids))
    joined = ids.to_frame("string").join(strings, on="string", how="left", maintain_order="left")
    return joined["value"].alias(ids.name)


def process_of(column: str) -> pl.Expr:
    """Return the process of a globalTid or globalPid, as the column "process".

    The ids are <hardware:8><vm:8><pid:24><tid:24>. The result keeps everything except the tid, because processes on
    two machines can have the same pid.
    """
    return (pl.col(column) & pl.lit(~0xFFFFFF, pl.Int64)).alias("process")


def with_times(rows: pl.DataFrame, noun: str, notes: Counter[str], *, open_ends: bool = False) -> pl.DataFrame:
    """Return the rows with valid times in ns: a start, and an end that is not before it.

    `notes` counts the skipped rows as `noun`. Rows without an end are kept if `open_ends`.
    """
    ends = pl.col("end").is_between("start", LATEST).fill_null(open_ends)
    usable = rows.select((pl.col("start").is_between(-LATEST, LATEST) & ends).fill_null(False)).to_series()
    if usable.all():
        return rows
    kept = rows.filter(usable)
    notes[f"annot skipped {{{noun}}} without valid start and end times."] += rows.height - kept.height
    return kept
