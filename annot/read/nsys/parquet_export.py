"""Reader for Parquet exports of Nsight Systems 2024 and later (``nsys export --type=parquetdir``).

The export is a folder with a file per table. Tables and columns are those of the SQLite export; column types can be
narrower and unsigned. The reader therefore writes the tables to an SQLite file, and reads that.

On a damaged Parquet file, polars can panic or allocate so much memory that the process is killed. A child process
therefore writes the file.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.nsys.sqlite_export import read_exported
from annot.read.sqlite import ACTIVITY, new_database

NAME: Final = "nsys_parquet"

_SUFFIX: Final = ".parquet"
_TYPICAL_TABLES: Final = ("NVTX_EVENTS", "StringIds", "META_DATA_EXPORT", f"{ACTIVITY}*")
_EVENTS: Final = re.compile(rf"NVTX_EVENTS|StringIds|CUDA_GRAPH_\w+|{ACTIVITY}(?:RUNTIME|KERNEL|GRAPH_TRACE|MEM\w+)")
_FACTS: Final = re.compile(r"PROCESSES|TARGET_INFO_\w+|\w*META_DATA\w*|ANALYSIS_DETAILS")
"""Names of tables whose rows are read. The columns of facts are optional: unreadable ones are left out."""
_ERRORS: Final = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
_CHILD: Final = """
import json, pathlib, sys
sys.path[:] = json.loads(sys.argv[1])
from annot.errors import AnnotError
from annot.read.nsys.parquet_export import convert
try:
    convert(*map(pathlib.Path, sys.argv[2:]))
except AnnotError as error:
    sys.stdout.buffer.write(str(error).encode())
"""
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
        out = Path(scratch) / "export.sqlite"
        command = [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path), str(path), str(out)]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if result.stdout:
            raise AnnotError(result.stdout.decode("utf-8", "replace"))
        if result.returncode:
            raise AnnotError(f"{path} contains a damaged Parquet file: {_failure(result)}")
        return read_exported(path, NAME, out)


def _failure(child: subprocess.CompletedProcess[bytes]) -> str:
    if child.returncode < 0:
        return f"the process that read it ended with signal {-child.returncode}"
    lines = child.stderr.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {child.returncode}")


def convert(folder: Path, out: Path) -> None:
    """Write the tables to a new SQLite file in this process, which a damaged file can end.

    Raises:
        AnnotError: a file is damaged, or `out` cannot be written.
    """
    try:
        with new_database(out) as append:
            for file in sorted(folder.glob(f"*{_SUFFIX}")):
                if not file.stem.startswith("ENUM_"):
                    append(file.stem, _table(file))
    except sqlite3.Error as error:
        raise AnnotError(f"{folder} cannot be converted to SQLite: {error}") from None


def _table(file: Path) -> pl.DataFrame:
    """Return the rows of a file with the types of SQLite, of a table that is not read the columns only."""
    try:
        lazy = pl.scan_parquet(file, glob=False)
        rows = lazy.select(pl.len()).collect().item()
        if rows > _ROWS + _ROWS_PER_BYTE * file.stat().st_size:
            raise AnnotError(f"{file} is damaged: it claims {rows:,} rows")
        schema = lazy.collect_schema()
        lazy = lazy if _EVENTS.fullmatch(file.stem) or _FACTS.fullmatch(file.stem) else lazy.head(0)
    except _ERRORS as error:
        raise _damaged(file, error) from None
    columns = []
    for name in schema:
        try:
            columns.append(_plain(lazy.select(pl.col(name)).collect().to_series()))
        except _ERRORS as error:
            if not _FACTS.fullmatch(file.stem):
                raise _damaged(file, error) from None
    return pl.DataFrame(columns)


def _plain(column: pl.Series) -> pl.Series:
    """Return integers as signed 64-bit integers, and texts. The integers of SQLite are signed; the bits stay."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or column.dtype == pl.Boolean:
        return column.cast(pl.Int64)
    if column.dtype == pl.Binary:
        texts = [None if text is None else text.decode("utf-8", "replace") for text in column]
        return pl.Series(column.name, texts, pl.String)
    return column.cast(pl.Float64 if column.dtype.is_float() else pl.String, strict=False)


def _damaged(file: Path, error: Exception) -> AnnotError:
    reason = str(error).splitlines()[0]
    if "UTF-8" in reason:  # polars rejects the whole column for one invalid text
        return AnnotError(f"{file} contains text that is not UTF-8. Export the report with --type=sqlite instead.")
    return AnnotError(f"{file} is a damaged Parquet file: {reason}")
