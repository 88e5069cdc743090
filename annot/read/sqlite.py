"""Read columns of an untrusted SQLite file as polars tables.

The file is opened with ``mode=ro&immutable=1``: SQLite then neither reads nor creates a journal or write-ahead log.
`journal_notes` reports such files if another program left them. Rows are read in two ways, with the same result:

    pages    `annot.native` reads columns directly from the pages of the table.
    query    SQLite reads tables that `annot.native` does not support. It stores a value of any type in any column, so
             that the query casts each value. A text may not be valid UTF-8.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import polars as pl

from annot.errors import AnnotError
from annot.native import tables
from annot.profile import LATEST, pinned_memory
from annot.util.progress import has_listener, tell

MAGIC: Final = b"SQLite format 3\x00"

ACTIVITY: Final = "CUPTI_ACTIVITY_KIND_"
"""Prefix of the tables with CUDA activity in files of Nsight Systems and nvprof."""

COPY_COLUMNS: Final = {"bytes": "bytes", "copy": "copyKind", "source": "srcKind", "target": "dstKind"}
"""Columns of copies, for `with_copy_kinds`."""

_COPIED: Final = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_COPY_KINDS: Final = dict(enumerate(("unknown", *_COPIED, "UVM HtoD", "UVM DtoH", "UVM DtoD")))
"""CUpti_ActivityMemcpyKind, and the kinds that Nsight Systems adds."""

ROW: Final = "rowid"
"""Name of the row number among the columns of a table."""

Columns: TypeAlias = Mapping[str, str]
"""The source column, or `ROW`, of each column, by its name in the result."""
_Among: TypeAlias = tuple[str, Sequence[int]]
"""An integer column, and its allowed values."""

_NO_COLUMNS: Final[Columns] = MappingProxyType({})
_BLOCK_ROWS: Final = 1 << 18
_RECORDS: Final = 100_000
_ROWID: Final = ("rowid", "_rowid_", "oid")


_Field = tuple[int, str]
"""Index of a column in the record, -1 for the rowid, and kind: integer, text, or alias (an alias of the rowid)."""


class _NeedsQueryError(Exception):
    """The columns cannot be read from the pages and need SQLite."""


class Database:
    """An SQLite file opened by `open_database`, whose rows are read by the names of their columns.

    A missing table has no rows. Missing integers are null, missing texts and null texts are "".
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self.columns: dict[str, frozenset[str]] = {
            table: frozenset(row[1] for row in self.rows(f"PRAGMA table_info({_quoted(table)})"))
            for (table,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND typeof(name) = 'text'")
        }

    def has(self, table: str) -> bool:
        """Return whether the table exists and has rows."""
        return table in self.columns and bool(self.rows(f"SELECT 1 FROM {_quoted(table)} LIMIT 1"))

    def rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query with a small result. Invalid UTF-8 becomes U+FFFD."""
        return self._connection.execute(query, values).fetchall()

    def query(self, query: str, schema: Mapping[str, type[pl.DataType]], rows: int = _BLOCK_ROWS) -> _Frames:
        """Yield the rows of a query, whose values have the types of the schema, in blocks."""
        cursor = self._connection.execute(query)
        while block := cursor.fetchmany(rows):
            yield pl.DataFrame(block, dict(schema), orient="row")

    def scan(
        self, table: str, integers: Columns, texts: Columns = _NO_COLUMNS, where_in: _Among | None = None
    ) -> pl.DataFrame:
        """Return Int64 and String columns of a table, in the order of its rows."""
        return pl.concat(
            [pl.DataFrame(schema=_schema(integers, texts)), *self.blocks(table, integers, texts, where_in)]
        )

    def blocks(
        self,
        table: str,
        integers: Columns,
        texts: Columns = _NO_COLUMNS,
        where_in: _Among | None = None,
        *,
        rows: int = _BLOCK_ROWS,
    ) -> _Frames:
        """Yield the rows of `scan` in blocks of 1 to `rows` rows. The table can be larger than the memory."""
        if table in self.columns:
            total = self._last_row(table) if has_listener() else None
            done = 0
            for frame in self._frames(table, integers, texts, where_in, rows):
                done += frame.height
                yield frame
                tell(f"reading {table}", done, total, "rows")

    def reals(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return the rows where a column is a number: "id" (`ROW`) and "real" (Float64, the first of the columns)."""
        schema = {"id": pl.Int64, "real": pl.Float64}
        # This fast scan avoids the query for most files.
        values = self.scan(table, {name: name for name in columns}) if columns else pl.DataFrame()
        if all(column.null_count() == values.height for column in values):
            return pl.DataFrame(schema=schema)
        real = f"coalesce({', '.join(map(_quoted, columns))}, NULL)"
        rows = f"SELECT {self._number(table)} AS id, {real} AS real FROM {table}"
        number = "CASE WHEN typeof(real) IN ('integer', 'real') THEN CAST(real AS REAL) END"
        frames = self.query(f"SELECT id, {number} FROM ({rows}) WHERE real IS NOT NULL", schema)
        return pl.concat([pl.DataFrame(schema=schema), *frames])

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table with the columns that it has, or an empty list if it does not exist."""
        names = sorted(self.columns.get(table, ()))
        rows = self.rows(f"SELECT {', '.join(map(_quoted, names))} FROM {table} LIMIT {_RECORDS}") if names else ()
        return [
            {name: value for name, value in zip(names, row, strict=True) if isinstance(value, str | int | float)}
            for row in rows
        ]

    def _frames(self, table: str, integers: Columns, texts: Columns, where_in: _Among | None, rows: int) -> _Frames:
        """Yield the rows of an existing table from its pages, and from a query where these are not supported."""
        done = 0
        try:
            for frame in self._pages(table, integers, texts, where_in, rows):
                done += frame.height
                yield frame
        except _NeedsQueryError:
            columns = [f"CAST({self._sql(table, source)} AS INTEGER)" for source in integers.values()]
            columns += [f"CAST(ifnull({self._sql(table, source)}, '') AS TEXT)" for source in texts.values()]
            column, values = where_in or ("", ())
            condition = f"{self._sql(table, column)} IN ({', '.join(map(str, values))})" if column else "1"
            # NOT INDEXED keeps the order of the rowids. SQLite can otherwise scan a covering index.
            source = f"FROM {_quoted(table)} NOT INDEXED WHERE {condition} LIMIT -1 OFFSET {done}"
            yield from self.query(f"SELECT {', '.join(columns)} {source}", _schema(integers, texts), rows)

    def _pages(self, table: str, integers: Columns, texts: Columns, where_in: _Among | None, rows: int) -> _Frames:
        native = tables()
        roots = self.rows("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", table)
        # SQLite stores a WITHOUT ROWID table as an index.
        if native is None or not roots or not isinstance(roots[0][0], int) or self._rowid(table) is None:
            raise _NeedsQueryError
        fields, schema = self._fields(table), _schema(integers, texts)
        of_texts = {name: (number, "text") for name, (number, kind) in fields.items() if kind == "integer"}
        sources = [(name, source, fields.get(source)) for name, source in integers.items()]
        sources += [(name, source, of_texts.get(source)) for name, source in texts.items()]
        columns = [(name, *field) for name, _, field in sources if field]
        missing = [name for name, source, _ in sources if source not in (ROW, *self.columns[table])]
        column, values = where_in or (None, ())
        if not columns or len(columns) + len(missing) < len(sources) or (column and column not in fields):
            raise _NeedsQueryError
        absent = [pl.lit("" if name in texts else None, schema[name]).alias(name) for name in missing]
        where = (*fields[column], values) if column else None
        try:
            for batch in prefetch(native.Scan(self._path, roots[0][0], columns, rows, where)):
                frame = pl.DataFrame({name: pl.Series(array) for name, array in batch.items()})
                yield frame.with_columns(absent).select(list(schema)) if absent else frame
        except native.Unsupported:
            raise _NeedsQueryError from None
        except ValueError as error:
            raise AnnotError(f"{self._path} is a damaged SQLite file: {error}") from None
        except OSError as error:
            raise AnnotError(f"{self._path} cannot be read: {error.strerror}") from None

    def _fields(self, table: str) -> dict[str, _Field]:
        """Return the record field of each column and of `ROW`."""
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
        kinds = ((name, number, "alias" if number == alias else "integer") for number, name, *_ in info)
        return {name: (number, kind) for name, number, kind in kinds if name not in defaulted} | {ROW: (-1, "alias")}

    def _sql(self, table: str, column: str) -> str:
        """Return the SQL of a column, NULL if the table lacks it."""
        if column == ROW:
            return self._number(table)
        return _quoted(column) if column in self.columns[table] else "NULL"

    def _number(self, table: str) -> str:
        """Return the SQL of an integer that increases from row to row."""
        return self._rowid(table) or "row_number() OVER ()"

    def _last_row(self, table: str) -> int | None:
        """Return the approximate number of rows without reading them, or None for a table without rowids."""
        rowid = self._rowid(table)
        last = None if rowid is None else self.rows(f"SELECT max({rowid}) FROM {_quoted(table)}")[0][0]
        return last if isinstance(last, int) else None

    def _rowid(self, table: str) -> str | None:
        """Return the name of the rowid, or None for a WITHOUT ROWID table."""
        taken = {name.lower() for name in self.columns[table]}
        name = next((name for name in _ROWID if name not in taken), None)
        try:
            self.rows(f"SELECT {name} FROM {_quoted(table)} LIMIT 0")
        except sqlite3.OperationalError:
            return None
        return name


_Frames: TypeAlias = Iterator[pl.DataFrame]


def _schema(integers: Columns, texts: Columns) -> dict[str, type[pl.DataType]]:
    return dict.fromkeys(integers, pl.Int64) | dict.fromkeys(texts, pl.String)


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open an SQLite file for reading. Errors of SQLite inside the block become `AnnotError`."""
    _check_header(path)
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            yield Database(path, connection)
    except (sqlite3.Error, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        problem = "; ".join([str(error).splitlines()[0], *journal_notes(path)])
        raise AnnotError(f"{path} is a damaged SQLite file: {problem}") from None


@contextmanager
def new_database(path: Path) -> Iterator[Callable[[str, pl.DataFrame], None]]:
    """Open a file to write, and return the function that appends rows to a table, which it creates if it is missing.

    After an error, the file is not usable.

    Raises:
        sqlite3.Error: the file cannot be written.
    """
    import adbc_driver_manager as adbc
    import adbc_driver_sqlite

    def append(table: str, rows: pl.DataFrame) -> None:
        with adbc.AdbcStatement(connection) as statement:
            mode = "adbc.ingest.mode.create_append"
            statement.set_options(**{"adbc.ingest.target_table": table, "adbc.ingest.mode": mode})
            statement.bind_stream(rows)
            statement.execute_update()

    try:
        with adbc_driver_sqlite.connect(str(path)) as driver, adbc.AdbcConnection(driver) as connection:
            for pragma in ("journal_mode = OFF", "synchronous = OFF"):
                with adbc.AdbcStatement(connection) as statement:
                    statement.set_sql_query(f"PRAGMA {pragma}")
                    statement.execute_query()
            yield append
    except adbc.Error as error:
        raise sqlite3.OperationalError(str(error).splitlines()[0]) from None


_JOURNALS: Final = {
    "-wal": (b"\x37\x7f\x06", "can contain rows that {name} does not contain yet. annot does not read them."),
    "-journal": (b"\xd9\xd5\x05\xf9", "belongs to an unfinished write. The content of {name} can be incomplete."),
}
"""SQLite's write-ahead log and rollback journal: suffix, first bytes, and what the file means."""


def journal_notes(path: Path) -> list[str]:
    """Return sentences about the journal and the write-ahead log of a file, which are not read."""
    notes: list[str] = []
    for suffix, (magic, meaning) in _JOURNALS.items():
        journal = Path(f"{path}{suffix}")
        if journal.is_symlink() or not journal.is_file():  # SQLite makes no links, and a named pipe would wait for ever
            continue
        with suppress(OSError), journal.open("rb") as file:
            if file.read(len(magic)) == magic:
                end = f"End the program that writes {path.name}, or open {path.name} once with sqlite3."
                notes.append(f"{path.name}{suffix} {meaning.format(name=path.name)} {end}")
    return notes


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


def check_columns(
    path: Path, columns: Mapping[str, Set[str]], needed: Mapping[str, Set[str]], kind: str = "an Nsight Systems export"
) -> None:
    """Raise `AnnotError` if an existing table lacks one of its needed columns."""
    for table, names in needed.items():
        if missing := sorted(names - columns.get(table, names)):
            raise AnnotError(f"{path} is not {kind}: {table} lacks the column {missing[0]}")


def resolve(ids: pl.Series, strings: pl.DataFrame) -> pl.Series:
    """Return the strings of ids in StringIds, from `read_strings`. Null and unknown ids give null."""
    if ids.null_count() == len(ids):
        return pl.Series(ids.name, [None], strings.schema["value"]).new_from_index(0, len(ids))
    joined = ids.to_frame("string").join(strings, on="string", how="left", maintain_order="left")
    return joined["value"].alias(ids.name)


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


def with_copy_kinds(rows: pl.DataFrame, pageable: int, pinned: int) -> pl.DataFrame:
    """Add kind and pinned, as in `annot.profile.COPIES`. The numbers are those of pageable and pinned host memory."""
    kind = pl.col("copy").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String)
    memory = (pl.any_horizontal(pl.col("source", "target") == number) for number in (pageable, pinned))
    return rows.with_columns(kind.alias("kind"), pinned_memory(*memory))
