"""Damaged SQLite files: invalid values, changed schemas, damaged bytes."""

from __future__ import annotations

import functools
import gzip
import random
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_bytes import INTEGERS, TEXTS, damaged
from nsys_layouts import LAYOUTS
from nvprof_file import sample
from shared_data import shared
from sqlite_profile import SqliteProfile, training

__all__ = ["REAL", "nsys", "nsys_real", "nvprof", "with_graphs"]

REAL = tuple(f"nsys/{name}.sqlite.gz" for name in (
    "ginda_tiny_no_nvtx.2026.1", "ihor_nonutf8_meta_no_cuda.2025.6", "pipit_saxpy_mpi.2022.2",
    "zx_lm_compile_graphtrace_no_nvtx.2024.6",
))  # fmt: skip

_MOST_ROWS = 20_000
_FEW = "(SELECT rowid FROM {table} ORDER BY random() LIMIT {count})"
_NESTED = 5_000
_SHIFTS = (
    "{one} = {two}", "{one} = -{one}", "{one} = {one} * 1000003", "{one} = {one} + 9e18", "{one} = NULL",
    "{one} = CAST({one} AS TEXT)", "{one} = {one} + 0.5", "{one} = CAST({one} AS BLOB)", "{one} = rowid", "{one} = 7",
    "{one} = {one} << 40", "{one} = 9e999", "{one} = randomblob(9)", "{one} = 1 - {one} % 2", "{one} = random()",
    "{one} = random() >> 1",
)  # fmt: skip


def with_graphs(layout: str = "") -> SqliteProfile:
    """Return a small profile with a CUDA graph, several processes and threads, and all tables that annot reads."""
    profile = training(device=True) if not layout else SqliteProfile(layout)
    for process in (1, 2):
        for number in (1, 2):
            more: Any = {"number": number, "of_process": process}
            profile.layer("Forward Net |fwd", 10_000_000, 10_000_900, **more)
            profile.layer("fc1 Linear [2,3]f32 |fwd", 10_000_100, 10_000_300, **more)
            profile.range("step 1", 10_000_050, 10_000_950, domain="mine", int64Value=-(2**63), category=3, **more)
            profile.range("open", 10_000_400, None, **more)
            profile.node(number, None, 10_000_150, **more)
            profile.node(10 + number, number, 10_000_450, **more)
            profile.call(10_000_500, 10_000_510, 70 + number, **more)
            for at in range(3):
                profile.kernel(
                    10_001_000 + at * 10, 10_001_005 + at * 10, 70 + number, of_process=process, graphNodeId=10 + at
                )
            profile.copy(10_001_100, 10_001_130, 70 + number, of_process=process, graphNodeId=1)
        profile.event(33, 0, None, "kind", 0x1000001000001, category=3)
        profile.event(34, 5, None, "mark", 0x1000001000001)
    place = {"deviceId": 0, "streamId": 7, "correlationId": 71, "globalPid": 0x1000001000000, "bytes": 64}
    profile.add("CUPTI_ACTIVITY_KIND_MEMSET", start=10_002_000, end=10_002_010, **place)
    graph = {name: value for name, value in place.items() if name != "bytes"}
    profile.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=10_002_100, end=10_002_110, graphId=3, **graph)
    if not layout:
        profile.add("PROCESSES", globalPid=0x1000001000000, pid=1, name="python")
        profile.add("TARGET_INFO_GPU", id=0, name="A100", computeMajor=8, busLocation="0", totalMemory=2**35)
        profile.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
        profile.add("META_DATA_CAPTURE", name="ANNOT_NOTE", value="2 ends without a beginning")
    return profile


@functools.cache
def _nsys_seeds() -> tuple[bytes, ...]:
    return tuple(_content(with_graphs(layout).write) for layout in ("", *LAYOUTS))


@functools.cache
def _nvprof_seed() -> bytes:
    return _content(sample)


def _content(write: Callable[[Path], Path]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder) / "x.sqlite").read_bytes()


def nsys(path: Path, chance: random.Random, seeds: tuple[bytes, ...] = ()) -> None:
    """Write a damaged export of Nsight Systems."""
    _write(path, chance.choice(seeds or _nsys_seeds()), chance)


@functools.cache
def _real() -> tuple[bytes, ...]:
    return tuple(gzip.decompress(shared(name).read_bytes()) for name in REAL)


def nsys_real(path: Path, chance: random.Random) -> None:
    """Write a damaged copy of a real export."""
    nsys(path, chance, _real())


def nvprof(path: Path, chance: random.Random) -> None:
    """Write a damaged database of nvprof."""
    _write(path, _nvprof_seed(), chance)


def _write(path: Path, content: bytes, chance: random.Random) -> None:
    path.write_bytes(damaged(content, chance) if chance.random() < 0.3 else content)
    if chance.random() < 0.8:
        _change(path, chance)
    if chance.random() < 0.05:
        path.write_bytes(damaged(path.read_bytes(), chance))


def _change(path: Path, chance: random.Random) -> None:
    """Change tables and values of the file. A file that SQLite cannot open stays unchanged."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA synchronous = OFF")
        if chance.random() < 0.95:
            database.execute("PRAGMA journal_mode = OFF")
        for _ in range(chance.choice((1, 1, 2, 3, 6))):
            _tried(database, chance)
    except (sqlite3.Error, UnicodeDecodeError):
        pass
    finally:
        database.close()


def _tried(database: sqlite3.Connection, chance: random.Random) -> None:
    tables = {
        name: [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')]
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if isinstance(name, str) and not name.startswith("sqlite_")
    }
    tables = {name: columns for name, columns in tables.items() if columns}
    if not tables:
        return
    table = chance.choice(list(tables))
    try:
        # 60% of the changes are to values, because a file that the reader rejects at once tests little.
        step = chance.choice((_cells, _cells, _cells, _column, _column, _column, _rows, _schema, _special, _special))
        step(database, table, tables[table], chance)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError):
        pass


def _value(chance: random.Random) -> object:
    kind = chance.randrange(8)
    if kind < 3:
        return chance.choice(INTEGERS)
    if kind < 5:
        return chance.choice(TEXTS)
    return chance.choice(
        (None, 0.5, -1e300, 9e18, 1e19, float("inf"), float("nan"), b"", b"\xff\xfe\0", bytes(3000), "12", "-7", " 5 ")
    )


def _cells(database: sqlite3.Connection, table: str, columns: list[str], chance: random.Random) -> None:
    for _ in range(chance.choice((1, 2, 5))):
        column, value = chance.choice(columns), _value(chance)
        place = "CAST(? AS TEXT)" if isinstance(value, bytes) and chance.random() < 0.6 else "?"
        (count,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()
        row = chance.randrange(count + 1)
        where = f'rowid = (SELECT rowid FROM "{table}" LIMIT 1 OFFSET {row})'
        database.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = {place} WHERE {where}', (value,))


def _column(database: sqlite3.Connection, table: str, columns: list[str], chance: random.Random) -> None:
    shift = chance.choice(_SHIFTS).format(one=f'"{chance.choice(columns)}"', two=f'"{chance.choice(columns)}"')
    where = chance.choice(("1", "1", "rowid % 2", "rowid % 5 = 0"))
    database.execute(f'UPDATE OR IGNORE "{table}" SET {shift} WHERE {where}')


def _rows(database: sqlite3.Connection, table: str, columns: list[str], chance: random.Random) -> None:
    (count,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()
    match chance.randrange(4):
        case 0:
            database.execute(f'DELETE FROM "{table}"')
        case 1:
            database.execute(f'DELETE FROM "{table}" WHERE rowid % 3 = 1')
        case _:
            times = chance.choice((1, 1, 8))
            if count << times < _MOST_ROWS:
                for _ in range(times):
                    database.execute(f'INSERT OR IGNORE INTO "{table}" SELECT * FROM "{table}"')


def _schema(database: sqlite3.Connection, table: str, columns: list[str], chance: random.Random) -> None:
    column = chance.choice(columns)
    statements = (
        f'DROP TABLE "{table}"',
        f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
        f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
        f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{chance.choice((column.upper(), "x y", "rowid", ""))}"',
        f'ALTER TABLE "{table}" RENAME TO "{chance.choice((table.lower(), "x", table + "_"))}"',
        f'ALTER TABLE "{table}" ADD COLUMN "graphNodeId" DEFAULT {chance.choice(("5", "x", "NULL", "9e999"))}',
        f'ALTER TABLE "{table}" ADD COLUMN "endGlobalTid" AS (random())',
        f'CREATE TABLE y AS SELECT * FROM "{table}"; DROP TABLE "{table}"; CREATE VIEW "{table}" AS SELECT * FROM y',
        f'CREATE INDEX i ON "{table}" ("{column}")',
        "PRAGMA user_version = -1",
        "PRAGMA journal_mode = WAL",
        "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = "
        f"{chance.choice(('1', '0', '-1', '2', '99999999', 'NULL', chr(39) + 'x' + chr(39)))} WHERE name = '{table}'",
        "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = "
        f"{chance.choice(('NULL', '5', chr(39) + chr(39), 'sql || sql', 'x' + chr(39) + 'ff' + chr(39)))} "
        f"WHERE name = '{table}'",
        f"PRAGMA writable_schema = 1; UPDATE sqlite_master SET name = x'00ff', tbl_name = '' WHERE name = '{table}'",
    )
    database.executescript(chance.choice(statements))


def _special(database: sqlite3.Connection, table: str, columns: list[str], chance: random.Random) -> None:
    """Change columns that refer to other tables. The caller ignores errors for tables that the format lacks."""
    nodes = chance.choice(("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"))
    work = chance.choice(("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME"))
    any_timed = chance.choice((work, "NVTX_EVENTS"))
    number = chance.choice(INTEGERS)
    deep = (
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) WITH RECURSIVE n(i) AS "
        f"(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {_NESTED}) "
        "SELECT 10000000 + {up}, 99000000 - {down}, 59, {text}, 281474993487873 FROM n"
    )
    statements = (
        f"UPDATE {nodes} SET originalGraphNodeId = graphNodeId",
        f"UPDATE {nodes} SET originalGraphNodeId = 11 - graphNodeId % 2",
        f"UPDATE {nodes} SET graphNodeId = {number}",
        "DELETE FROM NVTX_EVENTS WHERE eventType = 75",
        "UPDATE NVTX_EVENTS SET domainId = domainId + 1",
        "UPDATE NVTX_EVENTS SET textId = NULL, text = NULL",
        "UPDATE NVTX_EVENTS SET textId = 99999",
        "UPDATE StringIds SET id = 1",
        f"UPDATE {any_timed} SET start = end, end = start",
        f"UPDATE {any_timed} SET start = {-(2**62)}, end = {2**62 - 1} WHERE rowid % 2",
        f"UPDATE {any_timed} SET start = {2**62 - 5}, end = {2**62 - 1}",
        f"UPDATE {any_timed} SET end = {number} WHERE rowid % 3 = 0",
        f"UPDATE {any_timed} SET start = {number}",
        f"UPDATE {work} SET correlationId = {number}",
        f"UPDATE {work} SET correlationId = correlationId + {2**62}",
        f"UPDATE {work} SET correlationId = correlationId * 2654435761",
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = {number}, streamId = {number}",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = rowid << 24",
        "UPDATE NVTX_EVENTS SET globalTid = globalTid + rowid",
        deep.format(up="i", down="i", text="'l' || i || '.x Linear |fwd'"),
        deep.format(up="i", down="i", text="'same'"),
        deep.format(up="0", down="0", text="'a.b.' || i || ' Linear |bwd'"),
        deep.format(up="i", down="-i", text="'Batch ' || i || ' |step'"),
        "UPDATE CUPTI_ACTIVITY_KIND_MARKER SET id = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_MARKER SET objectId = x'00'",
        f"UPDATE CUPTI_ACTIVITY_KIND_MARKER SET timestamp = {number}, flags = {number}",
        f"UPDATE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL SET start = {number}, name = {number}",
        f"UPDATE StringTable SET value = {number}",
    )
    database.execute(chance.choice(statements))
