"""What all tables of an Nsight Systems export have in common, whether they lie in SQLite or in Parquet.

Any table and any column can be absent, and their order changes, so everything is asked for by name. Ids of
correlations, domains, categories and graph nodes are unique per process only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final, Protocol

import polars as pl

from annot.profile import LATEST

__all__ = [
    "ROW",
    "WORK",
    "Tables",
    "fetch",
    "fetch_blocks",
    "process_of",
    "read_strings",
    "sentences",
    "spelt",
    "with_times",
]

WORK: Final = "CUPTI_ACTIVITY_KIND_"
"""How the names of the tables of CUDA activity begin."""

ROW: Final = "rowid"
"""Stands for the number of a row among the columns of a table."""


class Tables(Protocol):
    """Where the tables of an export come from."""

    @property
    def columns(self) -> Mapping[str, Set[str]]:
        """The columns of each table."""

    def scan(
        self,
        table: str,
        integers: Mapping[str, str],
        texts: Mapping[str, str],
        where_in: tuple[str, Sequence[int]] | None = None,
    ) -> pl.DataFrame:
        """Return columns of a table that has them; `fetch` also does without.

        Args:
            table: its name.
            integers: name of each Int64 column of the result, and that of its column, which may be `ROW`.
            texts: name of each String column of the result, and that of its column; null becomes empty.
            where_in: a column of integers, and the values of which it must have one.
        """

    def blocks(self, table: str, integers: Mapping[str, str], texts: Mapping[str, str]) -> Iterator[pl.DataFrame]:
        """Return what `scan` does in pieces, none of them empty, so that the table may be larger than memory."""

    def reals(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return where one of the columns holds a number: "id", which is `ROW`, and "real", the first, Float64."""

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table, no column of which need exist; none if there is no such table."""


def fetch(
    tables: Tables,
    table: str,
    integers: Mapping[str, str],
    texts: Mapping[str, str] | None = None,
    where_in: tuple[str, Sequence[int]] | None = None,
) -> pl.DataFrame:
    """Return columns of a table as `Tables.scan` does; those that it lacks are null, texts empty.

    Args:
        tables: the export.
        table: the name of a table that it has.
        integers: name of each Int64 column of the result, and that of its column.
        texts: name of each String column of the result, and that of its column.
        where_in: a column that the table has, and the values of which it must have one.
    """
    texts = texts or {}
    there = _there(tables, table, integers), _there(tables, table, texts)
    return _completed(tables.scan(table, *there, where_in), integers, texts)


def fetch_blocks(
    tables: Tables, table: str, integers: Mapping[str, str], texts: Mapping[str, str] | None = None
) -> Iterator[pl.DataFrame]:
    """Return what `fetch` does in pieces, none of them empty; no piece if the export lacks the table."""
    texts = texts or {}
    if table in tables.columns:
        for rows in tables.blocks(table, _there(tables, table, integers), _there(tables, table, texts)):
            yield _completed(rows, integers, texts)


def _there(tables: Tables, table: str, columns: Mapping[str, str]) -> dict[str, str]:
    there = tables.columns[table] | {ROW}
    return {name: column for name, column in columns.items() if column in there}


def _completed(rows: pl.DataFrame, integers: Mapping[str, str], texts: Mapping[str, str]) -> pl.DataFrame:
    absent = [pl.lit(None, pl.Int64).alias(name) for name in integers if name not in rows.columns]
    absent += [pl.lit("").alias(name) for name in texts if name not in rows.columns]
    return rows.with_columns(absent) if absent else rows


def read_strings(tables: Tables) -> pl.DataFrame:
    """Return the registered strings of an export: Int64 "string", each once, and String "value"."""
    if not {"id", "value"} <= tables.columns.get("StringIds", frozenset()):
        return pl.DataFrame(schema={"string": pl.Int64, "value": pl.String})
    return tables.scan("StringIds", {"string": "id"}, {"value": "value"}).unique("string", keep="first")


def spelt(ids: pl.Series, strings: pl.DataFrame) -> pl.Series:
    """Return the strings that ids stand for, null where an id is null or unknown."""
    if ids.null_count() == len(ids):
        return pl.Series(ids.name, [None], strings.schema["value"]).new_from_index(0, len(ids))
    joined = ids.to_frame("string").join(strings, on="string", how="left", maintain_order="left")
    return joined["value"].alias(ids.name)


def process_of(column: str) -> pl.Expr:
    """Return the process that a globalTid or globalPid belongs to, named "process".

    The number of the process alone would not do: it has 24 bits of it, and two machines share them.
    """
    return (pl.col(column) & pl.lit(~0xFFFFFF, pl.Int64)).alias("process")


def sentences(notes: Counter[str]) -> list[str]:
    """Return what was counted, as notes of a profile."""
    return [f"{what}: {number:,}" for what, number in notes.items()]


def with_times(rows: pl.DataFrame, what: str, notes: Counter[str], *, open_ends: bool = False) -> pl.DataFrame:
    """Return the rows that have a start and, at it or after it, an end, and note how many have not.

    Args:
        rows: a table with "start" and "end".
        what: what a row is, in the plural.
        notes: counts the rows that are left out.
        open_ends: whether a row without an end is kept.
    """
    ends = pl.col("end").is_between("start", LATEST).fill_null(open_ends)
    usable = rows.select((pl.col("start").is_between(-LATEST, LATEST) & ends).fill_null(False)).to_series()
    if usable.all():
        return rows
    kept = rows.filter(usable)
    notes[f"{what} left out because they have no usable times"] += rows.height - kept.height
    return kept
