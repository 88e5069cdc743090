"""Columns of an SQLite file that nobody vouches for, as polars tables.

The file is opened read-only and immutable, so that nothing beside it is read or made. What SQLite would let
through and Arrow would not is settled in the query: an integer column gives integers whatever is stored in
it, and text travels as bytes, because it need not be UTF-8.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl

from annot.errors import AnnotError

__all__ = ["MAGIC", "Database", "open_database"]

MAGIC: Final = b"SQLite format 3\x00"

_MISSING: Final = -(2**63) + 1
_BATCH_ROWS: Final = "65536"


class Database:
    """A file opened by `open_database`."""

    def __init__(self, plain: sqlite3.Connection, bulk: adbc.AdbcConnection) -> None:
        self._plain = plain
        self._bulk = bulk
        self.columns: dict[str, frozenset[str]] = {
            table: frozenset(row[1] for row in self.rows(f"PRAGMA table_info({_quoted(table)})"))
            for (table,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        """The columns of each table."""

    def has(self, table: str) -> bool:
        """Return whether the table exists and has rows."""
        return table in self.columns and bool(self.rows(f"SELECT 1 FROM {_quoted(table)} LIMIT 1"))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query whose result is small; text that is not UTF-8 has marks in its place."""
        return self._plain.execute(query).fetchall()

    def column(self, table: str, *names: str) -> str:
        """Return the SQL for the first of the columns that the table has; NULL if it has none."""
        return next((_quoted(name) for name in names if name in self.columns[table]), "NULL")

    def scan(self, table: str, integers: Mapping[str, str], texts: Mapping[str, str], where: str = "1") -> pl.DataFrame:
        """Return columns of a table.

        Args:
            table: its name.
            integers: name of each 64-bit column of the result, and its SQL.
            texts: name of each text column of the result, and its SQL; NULL becomes empty.
            where: SQL condition that the rows must meet.
        """
        columns = [f"CAST(ifnull({sql}, {_MISSING}) AS INTEGER) AS {name}" for name, sql in integers.items()]
        columns += [f"CAST(ifnull({sql}, '') AS BLOB) AS {name}" for name, sql in texts.items()]
        frame = self._fetch(f"SELECT {', '.join(columns)} FROM {_quoted(table)} WHERE {where}")
        if frame.is_empty():  # ADBC knows no types without a row
            schema = dict.fromkeys(integers, pl.Int64) | dict.fromkeys(texts, pl.String)
            return pl.DataFrame(schema=schema)
        return frame.with_columns(
            *(pl.when(pl.col(name) != _MISSING).then(pl.col(name)).alias(name) for name in integers),
            *(_decoded(frame[name]) for name in texts),
        )

    def _fetch(self, query: str) -> pl.DataFrame:
        with adbc.AdbcStatement(self._bulk) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH_ROWS})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            return pl.DataFrame(stream)


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open an SQLite file for reading; errors of SQLite inside the block become `AnnotError`.

    Raises:
        AnnotError: the file is not SQLite, cut or damaged.
    """
    _check_size(path)
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        plain = sqlite3.connect(uri, uri=True)
        plain.text_factory = _lossy
        try:
            with adbc_driver_sqlite.connect(uri) as driver, adbc.AdbcConnection(driver) as bulk:
                yield Database(plain, bulk)
        finally:
            plain.close()
    except (sqlite3.Error, adbc.Error, pl.exceptions.PolarsError) as error:
        raise AnnotError(f"{path} is a damaged SQLite file: {str(error).splitlines()[0]}") from None


def _check_size(path: Path) -> None:
    """Refuse a cut file at once: SQLite notices only when a query needs a page that is gone."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or header[24:28] != header[92:96]:  # then the number of pages is not up to date
        return
    page = int.from_bytes(header[16:18], "big")
    announced = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    size = path.stat().st_size
    if size < announced:
        raise AnnotError(f"{path} is cut: it has {size:,} bytes of {announced:,}")


def _decoded(column: pl.Series) -> pl.Series:
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:  # not UTF-8
        return pl.Series(column.name, [_lossy(text) for text in column], pl.String)


def _lossy(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
