"""Reader for SQLite exports of Nsight Systems and for recordings of annot, which have the same tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.nsys.schema import ROW, Tables
from annot.read.nsys.tables import Export, check, read_profile
from annot.read.sqlite import MAGIC, Among, Columns, Database, open_database

__all__ = ["NAME", "read", "sniff", "stream", "tables_of"]

NAME: Final = "nsys_sqlite"

_RECORDS: Final = 100_000


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is SQLite; see `annot.read.formats.Reader`."""
    return head.startswith(MAGIC)


def read(path: Path) -> Profile:
    """Read an export; see `annot.read.formats.Reader`."""
    with open_database(path) as database:
        _check(path, database)
        tables = tables_of(database)
        return read_profile(lambda: nullcontext(tables), {"source": str(path), "format": NAME}, database.notes)


def stream(path: Path, *, calls: bool = False) -> Export:
    """Open an export that is read in blocks when its rows are needed; see `annot.read.formats.source`."""
    with open_database(path) as database:
        _check(path, database)
        notes = database.notes
    return Export(partial(_opened, path), {"source": str(path), "format": NAME}, notes, calls=calls)


def _check(path: Path, database: Database) -> None:
    """Call `annot.read.nsys.tables.check` and add the journal notes to its error: the rows may be in the journal."""
    try:
        check(path, tables_of(database), "SQLite")
    except AnnotError as error:
        raise AnnotError(". ".join([str(error).removesuffix("."), *database.notes])) from None


@contextmanager
def _opened(path: Path) -> Iterator[Tables]:
    with open_database(path) as database:
        yield tables_of(database)


def tables_of(database: Database) -> Tables:
    """Return the tables of an SQLite file."""
    return _SqliteTables(database)


class _SqliteTables:
    """The tables of an SQLite file; see `annot.read.nsys.schema.Tables`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def columns(self) -> Mapping[str, Set[str]]:
        return self._database.columns

    def scan(self, table: str, integers: Columns, texts: Columns, where_in: Among | None = None) -> pl.DataFrame:
        if where_in is not None:
            where_in = self._database.column(table, where_in[0]), where_in[1]
        return self._database.scan(table, self._sql(table, integers), self._sql(table, texts), where_in=where_in)

    def blocks(self, table: str, integers: Columns, texts: Columns) -> Iterator[pl.DataFrame]:
        return self._database.blocks(table, self._sql(table, integers), self._sql(table, texts))

    def reals(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        numbered: list[tuple[Any, ...]] = []
        # This fast scan avoids the query for most files.
        values = self.scan(table, {name: name for name in columns}, {}) if columns else pl.DataFrame()
        if any(column.null_count() < values.height for column in values):
            sql = self._sql(table, {ROW: ROW, **{name: name for name in columns}})
            number = sql.pop(ROW)
            first = f"coalesce({', '.join(sql.values())}, NULL)"
            rows = f"SELECT {number} AS number, {first} AS first FROM {table}"
            numbered = self._database.rows(f"SELECT number, first FROM ({rows}) WHERE first IS NOT NULL")
        real = [value if isinstance(value, int | float) else None for _, value in numbered]
        return pl.DataFrame({"id": [row for row, _ in numbered], "real": real}, {"id": pl.Int64, "real": pl.Float64})

    def records(self, table: str) -> list[dict[str, Any]]:
        names = sorted(self._database.columns.get(table, ()))
        if not names:
            return []
        columns = ", ".join(self._sql(table, {name: name for name in names}).values())
        rows = self._database.rows(f"SELECT {columns} FROM {table} LIMIT {_RECORDS}")
        return [
            {name: value for name, value in zip(names, row, strict=True) if isinstance(value, str | int | float)}
            for row in rows
        ]

    def _sql(self, table: str, columns: Columns) -> dict[str, str]:
        sql, number = self._database.column, self._database.row_number
        return {name: number(table) if column == ROW else sql(table, column) for name, column in columns.items()}
