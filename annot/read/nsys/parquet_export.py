"""Reader for Parquet exports of Nsight Systems 2024 and later (``nsys export --type=parquetdir``).

The export is a folder with a file per table. Tables and columns are those of the SQLite export; column types can be
narrower and unsigned.

On a damaged Parquet file, polars can panic or allocate so much memory that the process is killed. A child process
therefore reads the export and returns Arrow files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.nsys.sqlite_export import check, read_profile
from annot.read.sqlite import ACTIVITY, NO_COLUMNS, ROW, Among, Columns

__all__ = ["NAME", "read", "read_here", "read_into", "sniff"]

NAME: Final = "nsys_parquet"

_SUFFIX: Final = ".parquet"
_TYPICAL_TABLES: Final = ("NVTX_EVENTS", "StringIds", "META_DATA_EXPORT", f"{ACTIVITY}*")
_ERRORS: Final = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
_TABLES: Final = ("ranges", "marks", "launches", "kernels", "copies")
_META: Final = "meta.json"
_CHILD: Final = """
import json, pathlib, sys
sys.path[:] = json.loads(sys.argv[1])
from annot.read.nsys.parquet_export import read_into
read_into(*map(pathlib.Path, sys.argv[2:]))
"""
_TEXTS: Final = (pl.Binary, pl.Categorical, pl.Enum)
_RECORDS: Final = 100_000
_ROWS_PER_BYTE: Final = 16
"""Maximum rows per byte of a file. Times differ from row to row, so that a real file has fewer."""
_ROWS: Final = 1 << 20
"""Rows that any file may have. The two limits bound the memory for a damaged file."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether this is a folder with tables of Nsight Systems; see `annot.read.formats.Reader`."""
    return path.is_dir() and any(True for table in _TYPICAL_TABLES for _ in path.glob(table + _SUFFIX))


def read(path: Path) -> Profile:
    """Read an export; see `annot.read.formats.Reader`."""
    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        out = Path(scratch)
        command = [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path), str(path), scratch]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if not (out / _META).exists():
            raise AnnotError(f"{path} contains a damaged Parquet file: {_failure(result)}")
        meta = json.loads((out / _META).read_text(encoding="utf-8"))
        if isinstance(meta, str):
            raise AnnotError(meta)
        tables = {table: pl.read_ipc(out / table) for table in _TABLES}
        return Profile.build(meta, **tables)


def read_here(path: Path) -> Profile:
    """Read an export in this process. A damaged file can end the process; `read` uses a child process instead."""
    tables = _ParquetTables(path)
    check(path, tables, "a folder of Parquet files")
    return read_profile(lambda: nullcontext(tables), {"source": str(path), "format": NAME})


def read_into(path: Path, out: Path) -> None:
    """Write the profile or the error message to an empty folder in this process. `read` reads it there."""
    meta: dict[str, Any] | str
    try:
        profile = read_here(path)
        meta = profile.meta
        for table in _TABLES:
            getattr(profile, table).write_ipc(out / table)
    except AnnotError as error:
        meta = str(error)
    (out / _META).write_text(json.dumps(meta), encoding="utf-8")


def _failure(child: subprocess.CompletedProcess[bytes]) -> str:
    if child.returncode < 0:
        return f"the process that read it ended with signal {-child.returncode}"
    lines = child.stderr.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {child.returncode}")


class _ParquetTables:
    """The tables of a folder; see `annot.read.sqlite.Tables`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def columns(self) -> Mapping[str, Set[str]]:
        return {table: frozenset(schema) for table, schema in self._schemas.items()}

    @cached_property
    def _schemas(self) -> dict[str, pl.Schema]:
        files = sorted(self._folder.glob(f"*{_SUFFIX}"))
        return {file.stem: self._schema(file) for file in files if not file.stem.startswith("ENUM_")}

    def _schema(self, file: Path) -> pl.Schema:
        try:
            lazy = pl.scan_parquet(file, glob=False)
            rows = lazy.select(pl.len()).collect().item()
            if rows > _ROWS + _ROWS_PER_BYTE * file.stat().st_size:
                raise AnnotError(f"{file} is damaged: it claims {rows:,} rows")
            return lazy.collect_schema()
        except _ERRORS as error:
            raise _damaged(file, error) from None

    def scan(
        self, table: str, integers: Columns, texts: Columns = NO_COLUMNS, where_in: Among | None = None
    ) -> pl.DataFrame:
        column, values = where_in or ("", ())
        rows = self._collect(table, {*integers.values(), *texts.values()} | ({column} if column else set()))
        if column:
            rows = rows.filter(_integers(rows[column]).is_in(values))
        return rows.select(
            *(_integers(rows[source]).alias(name) for name, source in integers.items()),
            *(_texts(rows[source]).alias(name) for name, source in texts.items()),
        )

    def blocks(self, table: str, integers: Columns, texts: Columns = NO_COLUMNS) -> Iterator[pl.DataFrame]:
        rows = self.scan(table, integers, texts)
        if rows.height:
            yield rows

    def reals(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        rows = self._collect(table, {ROW, *columns})
        nothing = pl.lit(None, pl.Float64)
        first = pl.coalesce(*(pl.col(column).cast(pl.Float64, strict=False) for column in columns), nothing)
        return rows.select(_integers(rows[ROW]).alias("id"), first.alias("real")).drop_nulls("real")

    def records(self, table: str) -> list[dict[str, Any]]:
        if table not in self.columns:
            return []
        rows = pl.concat([self._readable(table, column) for column in sorted(self.columns[table])], how="horizontal")
        return [
            {name: value for name, value in row.items() if isinstance(value, str | int | float)}
            for row in rows.iter_rows(named=True)
        ]

    def _readable(self, table: str, column: str) -> pl.DataFrame:
        """Return a column of a small table, or null if it cannot be read: these columns are optional."""
        try:
            rows = self._collect(table, {column}, _RECORDS)
        except AnnotError:
            return pl.DataFrame({column: [None]})
        return rows.select(_texts(rows[column])) if rows[column].dtype in _TEXTS else rows

    def _collect(self, table: str, columns: Set[str], limit: int | None = None) -> pl.DataFrame:
        if table not in self.columns:
            return pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
        file = self._folder / f"{table}{_SUFFIX}"
        lazy = pl.scan_parquet(file, glob=False)
        if ROW not in self.columns[table]:
            lazy = lazy.with_row_index(ROW, 1)
        absent = columns - self.columns[table] - {ROW}
        lazy = lazy.with_columns(pl.lit(None).alias(name) for name in absent).select(sorted(columns))
        try:
            return (lazy if limit is None else lazy.head(limit)).collect()
        except _ERRORS as error:
            raise _damaged(file, error) from None


def _integers(column: pl.Series) -> pl.Series:
    """Return signed 64-bit integers, as in SQLite. Other values become null."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    return column.cast(pl.Int64, strict=False)


def _texts(column: pl.Series) -> pl.Series:
    if column.dtype == pl.Binary:
        decoded = [None if text is None else text.decode("utf-8", "replace") for text in column]
        column = pl.Series(column.name, decoded, pl.String)
    return column.cast(pl.String).fill_null("")


def _damaged(file: Path, error: Exception) -> AnnotError:
    reason = str(error).splitlines()[0]
    if "UTF-8" in reason:  # polars rejects the whole column for one invalid text
        return AnnotError(f"{file} contains text that is not UTF-8. Export the report with --type=sqlite instead.")
    return AnnotError(f"{file} is a damaged Parquet file: {reason}")
