"""Read columns of an untrusted SQLite file as polars tables.

The file is opened with ``mode=ro&immutable=1``: SQLite then neither reads nor creates a journal or write-ahead log.
`Database.notes` reports such files if another program left them. Rows are read in two ways, with the same result:

    pages    `annot.native` reads plain columns directly from the pages of the table.
    query    SQLite reads everything else, and tables that `annot.native` does not support. SQLite stores a value of any
             type in any column, but an Arrow column has one type. The query therefore casts integer columns to
             INTEGER, and reads text as BLOB because it may not be valid UTF-8.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl

from annot.errors import AnnotError
from annot.native import tables
from annot.util.progress import has_listener, tell

__all__ = ["MAGIC", "Among", "Columns", "Database", "open_database"]

MAGIC: Final = b"SQLite format 3\x00"

Columns: TypeAlias = Mapping[str, str]
"""The source of each column, by its name in the result."""
Among: TypeAlias = tuple[str, Sequence[int]]
"""The source of an integer, and its allowed values."""

_MISSING: Final = -(2**63) + 1
_BATCH_ROWS: Final = "65536"
_BLOCK_ROWS: Final = 1 << 18
_NUMBER: Final = "row number"
_ROWID: Final = ("rowid", "_rowid_", "oid")


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `Database.scan`."""

    table: str
    integers: Columns
    texts: Columns
    where_in: Among | None

    @property
    def empty(self) -> pl.DataFrame:
        """An empty table with the requested columns."""
        return pl.DataFrame(schema=dict.fromkeys(self.integers, pl.Int64) | dict.fromkeys(self.texts, pl.String))

    @property
    def condition(self) -> str:
        """SQL condition on the rows."""
        return f"{self.where_in[0]} IN ({', '.join(map(str, self.where_in[1]))})" if self.where_in else "1"


_Field = tuple[int, str]
"""Index of a column in the record, -1 for the rowid, and kind: integer, text, or alias (an alias of the rowid)."""


class _NeedsQueryError(Exception):
    """The request cannot be read from the pages and needs SQLite."""


class Database:
    """An SQLite file opened by `open_database`."""

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
        """Sentences about the journal and the write-ahead log of the file, which are not read."""
        return _journal_notes(self._path)

    def has(self, table: str) -> bool:
        """Return whether the table exists and has rows."""
        return table in self.columns and bool(self.rows(f"SELECT 1 FROM {_quoted(table)} LIMIT 1"))

    def rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query with a small result. Invalid UTF-8 becomes U+FFFD."""
        return self._plain.execute(query, values).fetchall()

    def column(self, table: str, *names: str) -> str:
        """Return the SQL of the first of these columns that exists in the table, or NULL."""
        return next((_quoted(name) for name in names if name in self.columns[table]), "NULL")

    def row_number(self, table: str) -> str:
        """Return the SQL of an integer that increases from row to row."""
        return self._rowid(table) or "row_number() OVER ()"

    def scan(self, table: str, integers: Columns, texts: Columns, *, where_in: Among | None = None) -> pl.DataFrame:
        """Return columns of a table, in the order of its rows.

        A scan is about ten times faster if all SQL expressions are column names, as `column` returns them.

        `integers` and `texts` have the SQL expression of each Int64 and String column, by its name in the result. NULL
        texts become "". `where_in` is the SQL expression of an integer, and its allowed values.
        """
        request = _Request(table, integers, texts, where_in)
        try:
            frames = list(self._scan_pages(request, _BLOCK_ROWS))
        except _NeedsQueryError:
            frames = [self._fetch(request, request.condition)]
        return pl.concat([request.empty, *frames])

    def blocks(
        self, table: str, integers: Columns, texts: Columns, *, where_in: Among | None = None, rows: int = _BLOCK_ROWS
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows of `scan` in blocks of 1 to `rows` rows. The table can be larger than the memory."""
        request = _Request(table, integers, texts, where_in)
        total = self._last_row(table) if has_listener() else None
        done = 0
        try:
            for frame in self._scan_pages(request, rows):
                done += frame.height
                yield frame
                tell(f"reading {table}", done, total, "rows")
        except _NeedsQueryError:
            yield from self._query_blocks(request, rows, done)

    def _last_row(self, table: str) -> int | None:
        """Return the approximate number of rows without reading them, or None for a table without rowids."""
        rowid = self._rowid(table)
        last = None if rowid is None else self.rows(f"SELECT max({rowid}) FROM {_quoted(table)}")[0][0]
        return last if isinstance(last, int) else None

    def _scan_pages(self, request: _Request, rows: int) -> Iterator[pl.DataFrame]:
        native = tables()
        if native is None:
            raise _NeedsQueryError
        root, columns, absent, where_in = self._plan(request)
        try:
            for batch in prefetch(native.Scan(self._path, root, columns, rows, where_in)):
                frame = pl.DataFrame({name: pl.Series(array) for name, array in batch.items()})
                yield frame.with_columns(absent).select(request.empty.columns) if absent else frame
        except native.Unsupported:
            raise _NeedsQueryError from None
        except ValueError as error:
            raise AnnotError(f"{self._path} is a damaged SQLite file: {error}") from None
        except OSError as error:
            raise AnnotError(f"{self._path} cannot be read: {error.strerror}") from None

    def _plan(
        self, request: _Request
    ) -> tuple[int, list[tuple[str, int, str]], list[pl.Expr], tuple[int, str, Sequence[int]] | None]:
        """Return root page, record fields, absent columns and condition of a request that has only column names."""
        roots = self.rows("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", request.table)
        if not roots or not isinstance(roots[0][0], int):
            raise _NeedsQueryError
        if self._rowid(request.table) is None:  # SQLite stores a WITHOUT ROWID table as an index
            raise _NeedsQueryError
        fields = self._fields(request.table)
        texts = {name: (number, "text") for name, (number, kind) in fields.items() if kind == "integer"}
        requested = [(name, sql, fields.get(sql)) for name, sql in request.integers.items()]
        requested += [(name, sql, texts.get(sql)) for name, sql in request.texts.items()]
        columns = [(name, *field) for name, _, field in requested if field]
        types = request.empty.schema
        absent = [
            pl.lit("" if name in request.texts else None, types[name]).alias(name)
            for name, sql, _ in requested
            if sql == "NULL"
        ]
        column, values = request.where_in or (None, ())
        if not columns or len(columns) + len(absent) < len(requested) or (column and column not in fields):
            raise _NeedsQueryError
        return roots[0][0], columns, absent, (*fields[column], values) if column else None

    def _fields(self, table: str) -> dict[str, _Field]:
        """Return the record field of each column, by each SQL spelling of its name."""
        info = self.rows(f"PRAGMA table_xinfo({_quoted(table)})")
        if any(hidden for *_, hidden in info):  # generated columns are not part of the record
            return {}
        # ALTER TABLE ADD COLUMN leaves old rows without the field; SQLite returns the default for them.
        defaulted = {name for _, name, _, _, default, *_ in info if default not in (None, "NULL")}
        keys = [(number, type_.upper()) for number, _, type_, _, _, in_key, _ in info if in_key]
        indexed = any(row[3] == "pk" for row in self.rows(f"PRAGMA index_list({_quoted(table)})"))
        # An INTEGER PRIMARY KEY is an alias of the rowid and is stored as NULL. With DESC it is a normal column with an
        # index.
        alias = keys[0][0] if len(keys) == 1 and keys[0][1] == "INTEGER" and not indexed else None
        named = {
            name: (number, "alias" if number == alias else "integer")
            for number, name, *_ in info
            if name not in defaulted
        }
        taken = {row[1].lower() for row in info}
        named |= {name: (-1, "alias") for name in _ROWID if name not in taken}
        return named | {_quoted(name): field for name, field in named.items()}

    def _query_blocks(self, request: _Request, rows: int, done: int) -> Iterator[pl.DataFrame]:
        rowid = self._rowid(request.table)
        if rowid is None:
            yield from self._fetch(request, request.condition)[done:].iter_slices(rows)
            return
        numbered = replace(request, integers={_NUMBER: rowid, **request.integers})
        more, skip = "", done
        while True:
            frame = self._fetch(numbered, f"{request.condition}{more} ORDER BY {rowid} LIMIT {rows} OFFSET {skip}")
            if frame.height:
                yield frame.drop(_NUMBER)
            if frame.height < rows:
                return
            more, skip = f" AND {rowid} > {frame[_NUMBER][-1]}", 0

    def _rowid(self, table: str) -> str | None:
        """Return the name of the rowid, or None for a WITHOUT ROWID table."""
        taken = {name.lower() for name in self.columns[table]}
        name = next((name for name in _ROWID if name not in taken), None)
        try:
            self.rows(f"SELECT {name} FROM {_quoted(table)} LIMIT 0")
        except sqlite3.OperationalError:
            return None
        return name

    def _fetch(self, request: _Request, condition: str) -> pl.DataFrame:
        columns = [
            *(
                f"CAST(ifnull({sql}, {_MISSING}) AS INTEGER) AS {_quoted(name)}"
                for name, sql in request.integers.items()
            ),
            *(f"CAST(ifnull({sql}, '') AS BLOB) AS {_quoted(name)}" for name, sql in request.texts.items()),
        ]
        # NOT INDEXED keeps the order of the rowids. SQLite can otherwise scan a covering index.
        query = f"SELECT {', '.join(columns)} FROM {_quoted(request.table)} NOT INDEXED WHERE {condition}"
        with adbc.AdbcStatement(self._bulk) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH_ROWS})
            statement.set_sql_query(query)
            frame = pl.DataFrame(statement.execute_query()[0])
        if frame.is_empty():  # adbc_driver_sqlite infers column types from the rows
            return request.empty
        return frame.with_columns(
            *(pl.when(pl.col(name) != _MISSING).then(pl.col(name)).alias(name) for name in request.integers),
            *(_decoded(frame[name]) for name in request.texts),
        )


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open an SQLite file for reading. Errors of SQLite inside the block become `AnnotError`."""
    _check_header(path)
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as plain:
            plain.text_factory = _lossy
            with adbc_driver_sqlite.connect(uri) as driver, adbc.AdbcConnection(driver) as bulk:
                yield Database(path, plain, bulk)
    except (sqlite3.Error, adbc.Error, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        problem = "; ".join([str(error).splitlines()[0], *_journal_notes(path)])
        raise AnnotError(f"{path} is a damaged SQLite file: {problem}") from None


_JOURNALS: Final = {
    "-wal": (b"\x37\x7f\x06", "can contain rows that {name} does not contain yet. annot does not read them."),
    "-journal": (b"\xd9\xd5\x05\xf9", "belongs to an unfinished write. The content of {name} can be incomplete."),
}
"""SQLite's write-ahead log and rollback journal: suffix, first bytes, and what the file means."""


def _journal_notes(path: Path) -> list[str]:
    return [
        f"{path.name}{suffix} {meaning.format(name=path.name)} "
        f"End the program that writes {path.name}, or open {path.name} once with sqlite3."
        for suffix, (magic, meaning) in _JOURNALS.items()
        if _head(Path(f"{path}{suffix}")).startswith(magic)
    ]


def _head(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(16)
    return b""


def _check_header(path: Path) -> None:
    """Raise for UTF-16 and for a truncated file, which SQLite detects only when a query needs a missing page."""
    with path.open("rb") as file:
        header = file.read(100)
    if header[56:60] in (b"\0\0\0\2", b"\0\0\0\3"):
        raise AnnotError(f"{path} stores text as UTF-16, which profilers do not write. Convert it to UTF-8.")
    if len(header) < 100 or header[24:28] != header[92:96]:  # SQLite before 3.7.0 does not update the page count
        return
    page = int.from_bytes(header[16:18], "big")
    announced = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    size = path.stat().st_size
    if size < announced:
        raise AnnotError(f"{path} is truncated: it has {size:,} of {announced:,} bytes")


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


T = TypeVar("T")

_END: Final = object()


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """Yield the items and compute the next one, mostly without the GIL, on a second thread meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]  # not _END
