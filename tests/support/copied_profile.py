"""Nsight Systems SQLite export that contains a smaller one many times, one copy after the other."""

from __future__ import annotations

import re
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Final

_EVENTS: Final = re.compile(r"NVTX_EVENTS|CUPTI_ACTIVITY_KIND_\w+")
_NUMBERS: Final = re.compile(r"(?<=seq = )\d+|(?<=op_id = )\d+")
_GAP: Final = 1_000_000  # ns between two copies


def write_copies(source: Path, path: Path, copies: int) -> None:
    """Write `source` with its events `copies` times. Times, correlation ids and the numbers of operations differ."""
    shutil.copyfile(source, path)
    path.chmod(0o644)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.create_function("moved", 2, _moved, deterministic=True)
    connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN;")
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = {name: _columns(connection, name) for name in names if _EVENTS.fullmatch(name)}
    tables = {name: columns for name, columns in tables.items() if {"start", "end"} <= {*columns}}
    for name in tables:
        connection.execute(f"CREATE TEMP TABLE copied_{name} AS SELECT * FROM {name}")
    first, last = _bounds(connection, tables, "start")[0], _bounds(connection, tables, "end")[1]
    low, high = _bounds(connection, tables, "correlationId")
    step = {"start": last - first + _GAP, "end": last - first + _GAP, "correlationId": high - low + 1}
    for copy in range(1, copies):
        for name, columns in tables.items():
            moved = ", ".join(
                f"{column} + {copy * step[column]}" if column in step
                else f"moved({column}, {copy})" if column == "text" else column
                for column in columns
            )  # fmt: skip
            connection.execute(f"INSERT INTO {name} SELECT {moved} FROM copied_{name}")
    connection.execute("COMMIT")
    connection.close()


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _bounds(connection: sqlite3.Connection, tables: dict[str, list[str]], column: str) -> tuple[int, int]:
    """Return the least and the greatest value of a column in the tables that have it."""
    names = [name for name, columns in tables.items() if column in columns]
    bounds = [connection.execute(f"SELECT min({column}), max({column}) FROM {name}").fetchone() for name in names]
    values = [value for pair in bounds for value in pair if value is not None]
    return min(values), max(values)


def _moved(text: str | None, copy: int) -> str | None:
    """Return the text of an operation with the numbers that it has in a copy: more than any operation has before."""
    return text and _NUMBERS.sub(partial(_added, copy), text)


def _added(copy: int, number: re.Match[str]) -> str:
    return str(int(number[0]) + copy * 1_000_000)
