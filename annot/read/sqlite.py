"""Columns of an SQLite file that nobody vouches for, as polars tables.

The file is opened read-only and immutable, so that nothing beside it is read or made. What a program has left there,
because it still writes the file or died as it did, is told of (`Database.notes`). There are two ways to the rows, with
the same result:

    pages    Plain columns are read straight from the pages of the table by `annot.native`.
    query    Everything else, and what the first way declines, goes through SQLite. What SQLite would let through
             and Arrow would not is settled in the query: an integer column gives integers whatever is stored in
             it, and text travels as bytes, because it need not be UTF-8.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl

from annot.errors import AnnotError
from annot.native import tables
from annot.progress import tell, told
from annot.read.ahead import ahead

__all__ = ["MAGIC", "Database", "open_database"]

MAGIC: Final = b"SQLite format 3\x00"

_MISSING: Final = -(2**63) + 1
_BATCH_ROWS: Final = "65536"
_BLOCK_ROWS: Final = 1 << 18
_MOST_ROWS: Final = 1 << 26
_NUMBER: Final = "number of the row"
_ROWID: Final = ("rowid", "_rowid_", "oid")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a scan was asked for; see `Database.scan`."""

    table: str
    integers: Mapping[str, str]
    texts: Mapping[str, str]
    where: str
    where_in: tuple[str, Sequence[int]] | None

    @property
    def nothing(self) -> pl.DataFrame:
        """The columns without rows."""
        return pl.DataFrame(schema=dict.fromkeys(self.integers, pl.Int64) | dict.fromkeys(self.texts, pl.String))

    @property
    def condition(self) -> str:
        """The SQL that the rows must meet."""
        if self.where_in is None:
            return f"({self.where})"
        column, values = self.where_in
        return f"({self.where}) AND {column} IN ({', '.join(map(str, values))})"


_Place = tuple[int, str]
"""Number of a column in a record, -1 for the rowid; kind: integer, text, or alias, which is one of the rowid."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to get what is wanted from the pages of the table."""

    root: int
    columns: Sequence[tuple[str, int, str]]
    absent: Sequence[pl.Expr]
    where_in: tuple[int, str, Sequence[int]] | None


class _OnlyByQuery(Exception):  # noqa: N818
    """The pages do not give what is wanted; SQLite does."""


class Database:
    """A file opened by `open_database`."""

    def __init__(self, path: Path, plain: sqlite3.Connection, bulk: adbc.AdbcConnection) -> None:
        self._path = path
        self._plain = plain
        self._bulk = bulk
        self.columns: dict[str, frozenset[str]] = {
            table: frozenset(row[1] for row in self.rows(f"PRAGMA table_info({_quoted(table)})"))
            for (table,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND typeof(name) = 'text'")
        }
        """The columns of each table."""

    @property
    def notes(self) -> list[str]:
        """What lies beside the file, and is not read; a sentence each."""
        return _beside(self._path)

    def has(self, table: str) -> bool:
        """Return whether the table exists and has rows."""
        return table in self.columns and bool(self.rows(f"SELECT 1 FROM {_quoted(table)} LIMIT 1"))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query whose result is small; text that is not UTF-8 has marks in its place."""
        return self._plain.execute(query).fetchall()

    def column(self, table: str, *names: str) -> str:
        """Return the SQL for the first of the columns that the table has; NULL if it has none."""
        return next((_quoted(name) for name in names if name in self.columns[table]), "NULL")

    def row_number(self, table: str) -> str:
        """Return the SQL for a number of each row, which grows in the order of the rows."""
        return self._rowid(table) or "row_number() OVER ()"

    def scan(
        self,
        table: str,
        integers: Mapping[str, str],
        texts: Mapping[str, str],
        where: str = "1",
        *,
        where_in: tuple[str, Sequence[int]] | None = None,
    ) -> pl.DataFrame:
        """Return columns of a table, in the order of its rows.

        It takes a tenth of the time if every piece of SQL is the name of a column, as `column` returns it, and
        `where` is left alone.

        Args:
            table: its name.
            integers: name of each 64-bit column of the result, and its SQL.
            texts: name of each text column of the result, and its SQL; NULL becomes empty.
            where: SQL condition that the rows must meet.
            where_in: SQL of an integer, and the values of which it must have one.
        """
        wanted = _Wanted(table, integers, texts, where, where_in)
        try:
            frames = list(self._from_pages(wanted, _BLOCK_ROWS))
        except _OnlyByQuery:
            frames = [self._fetch(wanted, wanted.condition)]
        return pl.concat([wanted.nothing, *frames])

    def blocks(
        self,
        table: str,
        integers: Mapping[str, str],
        texts: Mapping[str, str],
        where: str = "1",
        *,
        where_in: tuple[str, Sequence[int]] | None = None,
        rows: int = _BLOCK_ROWS,
    ) -> Iterator[pl.DataFrame]:
        """Return the rows of `scan` in pieces, so that a table larger than memory can be read.

        Args:
            table, integers, texts, where, where_in: as for `scan`.
            rows: the most that a piece may have; none is empty.
        """
        if not 1 <= rows <= _MOST_ROWS:
            raise ValueError(f"rows must be from 1 to {_MOST_ROWS:,}, got {rows}")
        wanted = _Wanted(table, integers, texts, where, where_in)
        total = self._last_row(table) if told() else None
        done = 0
        try:
            for frame in self._from_pages(wanted, rows):
                done += frame.height
                yield frame
                tell(f"reading {table}", done, total, "rows")
        except _OnlyByQuery:
            yield from self._from_queries(wanted, rows, done)

    def _last_row(self, table: str) -> int | None:
        """About how many rows there are, found without reading them; None: the table has no numbers of rows."""
        rowid = self._rowid(table)
        found = None if rowid is None else self.rows(f"SELECT max({rowid}) FROM {_quoted(table)}")[0][0]
        return found if isinstance(found, int) else None

    def _from_pages(self, wanted: _Wanted, rows: int) -> Iterator[pl.DataFrame]:
        native = tables()
        plan = None if native is None else self._plan(wanted)
        if plan is None:
            raise _OnlyByQuery
        try:
            for batch in ahead(native.Scan(self._path, plan.root, plan.columns, rows, plan.where_in)):
                frame = pl.DataFrame({name: pl.Series(array) for name, array in batch.items()})
                yield frame.with_columns(plan.absent).select(wanted.nothing.columns) if plan.absent else frame
        except native.Unsupported:
            raise _OnlyByQuery from None
        except ValueError as error:
            raise AnnotError(f"{self._path} is a damaged SQLite file: {error}") from None
        except OSError as error:
            raise AnnotError(f"{self._path} cannot be read: {error.strerror}") from None

    def _plan(self, wanted: _Wanted) -> _Plan | None:
        """What to read from the pages; None if something is more than the name of a column."""
        roots = self.rows(
            f"SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = {_literal(wanted.table)}"
        )
        if wanted.where != "1" or not roots or not isinstance(roots[0][0], int):
            return None
        if self._rowid(wanted.table) is None:  # the rows lie in the pages of an index
            return None
        places = self._places(wanted.table)
        sought = [(name, sql, places.get(sql)) for name, sql in wanted.integers.items()]
        sought += [(name, sql, _as_text(places.get(sql))) for name, sql in wanted.texts.items()]
        columns = [(name, *place) for name, _, place in sought if place]
        types = wanted.nothing.schema
        absent = [
            pl.lit("" if name in wanted.texts else None, types[name]).alias(name)
            for name, sql, _ in sought
            if sql == "NULL"
        ]
        if not columns or len(columns) + len(absent) < len(sought):
            return None
        if wanted.where_in is None:
            return _Plan(roots[0][0], columns, absent, None)
        column, values = wanted.where_in
        return _Plan(roots[0][0], columns, absent, (*places[column], values)) if column in places else None

    def _places(self, table: str) -> dict[str, _Place]:
        """The place of each column by all the SQL that names it."""
        info = self.rows(f"PRAGMA table_xinfo({_quoted(table)})")
        if any(hidden for *_, hidden in info):  # computed columns have no place
            return {}
        # Rows older than a column have nothing in its place, which stands for the default.
        defaulted = {name for _, name, _, _, default, *_ in info if default not in (None, "NULL")}
        keys = [(number, type_.upper()) for number, _, type_, _, _, in_key, _ in info if in_key]
        indexed = any(row[3] == "pk" for row in self.rows(f"PRAGMA index_list({_quoted(table)})"))
        # A key that is one INTEGER is the rowid by another name, and stored as NULL; with DESC it has an index instead.
        alias = keys[0][0] if len(keys) == 1 and keys[0][1] == "INTEGER" and not indexed else None
        named = {
            name: (number, "alias" if number == alias else "integer")
            for number, name, *_ in info
            if name not in defaulted
        }
        taken = {row[1].lower() for row in info}
        named |= {name: (-1, "alias") for name in _ROWID if name not in taken}
        return named | {_quoted(name): place for name, place in named.items()}

    def _from_queries(self, wanted: _Wanted, rows: int, done: int) -> Iterator[pl.DataFrame]:
        rowid = self._rowid(wanted.table)
        if rowid is None:
            yield from self._fetch(wanted, wanted.condition)[done:].iter_slices(rows)
            return
        numbered = replace(wanted, integers={_NUMBER: rowid, **wanted.integers})
        more, skip = "", done
        while True:
            frame = self._fetch(numbered, f"{wanted.condition}{more} ORDER BY {rowid} LIMIT {rows} OFFSET {skip}")
            if frame.height:
                yield frame.drop(_NUMBER)
            if frame.height < rows:
                return
            more, skip = f" AND {rowid} > {frame[_NUMBER][-1]}", 0

    def _rowid(self, table: str) -> str | None:
        """A name of the number of each row, which a table need not have."""
        taken = {name.lower() for name in self.columns[table]}
        name = next((name for name in _ROWID if name not in taken), None)
        try:
            self.rows(f"SELECT {name} FROM {_quoted(table)} LIMIT 0")
        except sqlite3.OperationalError:
            return None
        return name

    def _fetch(self, wanted: _Wanted, condition: str) -> pl.DataFrame:
        columns = [
            *(
                f"CAST(ifnull({sql}, {_MISSING}) AS INTEGER) AS {_quoted(name)}"
                for name, sql in wanted.integers.items()
            ),
            *(f"CAST(ifnull({sql}, '') AS BLOB) AS {_quoted(name)}" for name, sql in wanted.texts.items()),
        ]
        # Without an index, which may hold all the columns too, the rows come in their own order.
        frame = self._run(f"SELECT {', '.join(columns)} FROM {_quoted(wanted.table)} NOT INDEXED WHERE {condition}")
        if frame.is_empty():  # ADBC knows no types without a row
            return wanted.nothing
        return frame.with_columns(
            *(pl.when(pl.col(name) != _MISSING).then(pl.col(name)).alias(name) for name in wanted.integers),
            *(_decoded(frame[name]) for name in wanted.texts),
        )

    def _run(self, query: str) -> pl.DataFrame:
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
    _check_header(path)
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        plain = sqlite3.connect(uri, uri=True)
        plain.text_factory = _lossy
        try:
            with adbc_driver_sqlite.connect(uri) as driver, adbc.AdbcConnection(driver) as bulk:
                yield Database(path, plain, bulk)
        finally:
            plain.close()
    except (sqlite3.Error, adbc.Error, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        found = "; ".join([str(error).splitlines()[0], *_beside(path)])
        raise AnnotError(f"{path} is a damaged SQLite file: {found}") from None


_LEFT: Final = {
    "-wal": (b"\x37\x7f\x06", "what was written last, if it is not in the file yet, and is not read"),
    "-journal": (b"\xd9\xd5\x05\xf9", "what the file was before a write that has not ended"),
}
"""Endings of the files that SQLite keeps beside its own while it writes, how they begin, and what they hold."""


def _beside(path: Path) -> list[str]:
    return [
        f"{path.name}{ending} holds {what}: end the program that writes, or open {path.name} with sqlite3 once"
        for ending, (magic, what) in _LEFT.items()
        if _begins(Path(f"{path}{ending}"), magic)
    ]


def _begins(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _check_header(path: Path) -> None:
    """Refuse a cut file at once, since SQLite notices only when a query needs a page that is gone, and UTF-16."""
    with path.open("rb") as file:
        header = file.read(100)
    if header[56:60] in (b"\0\0\0\2", b"\0\0\0\3"):
        raise AnnotError(f"{path} has its texts in UTF-16, which no profiler writes: convert it to UTF-8")
    if len(header) < 100 or header[24:28] != header[92:96]:  # then the number of pages is not up to date
        return
    page = int.from_bytes(header[16:18], "big")
    announced = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    size = path.stat().st_size
    if size < announced:
        raise AnnotError(f"{path} is cut: it has {size:,} bytes of {announced:,}")


def _as_text(place: _Place | None) -> _Place | None:
    return (place[0], "text") if place and place[1] == "integer" else None


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


def _literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
