"""Nsight Systems SQLite export with a given number of events."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LAYERS: Final = 500
PER_LAYER: Final = 2  # kernels, each with a launch
STEP: Final = 3_000_000  # ns
THREAD: Final = 1 << 48 | 100 << 24 | 100


def write_profile(path: Path, events: int) -> None:
    """Write a profile with `events` rows: steps that contain layers that contain launches, and kernels."""
    steps = events // (1 + LAYERS * (1 + 2 * PER_LAYER))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,"
        " endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,"
        " correlationId INTEGER, nameId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);"
        "BEGIN;"
    )
    names = [f"model.layers.{layer} Block |fwd" for layer in range(LAYERS)] + ["step", "cudaLaunchKernel", "gemm"]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names, 1))
    for table, rows in (("NVTX_EVENTS", _ranges(steps)), ("CUPTI_ACTIVITY_KIND_RUNTIME", _calls(steps))):
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * (8 if 'NVTX' in table else 6))})", rows)
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _kernels(steps))
    connection.execute("COMMIT")
    connection.close()


def _ranges(steps: int) -> Iterator[tuple[int | str | None, ...]]:
    for step in range(steps):
        begin = step * STEP
        yield begin, begin + STEP - 1000, 59, f"Batch {step} |step", THREAD, None, None, 0
        for layer in range(LAYERS):
            at = begin + 1000 + layer * 5000
            yield at, at + 4500, 59, None, THREAD, None, layer + 1, 0


def _launches(steps: int) -> Iterator[tuple[int, int]]:
    for place in range(steps * LAYERS):
        step, layer = divmod(place, LAYERS)
        for kernel in range(PER_LAYER):
            yield step * STEP + 1500 + layer * 5000 + kernel * 1500, place * PER_LAYER + kernel + 1


def _calls(steps: int) -> Iterator[tuple[int, ...]]:
    return ((at, at + 900, 0, THREAD, number, LAYERS + 2) for at, number in _launches(steps))


def _kernels(steps: int) -> Iterator[tuple[int, ...]]:
    process, name = THREAD & ~0xFFFFFF, LAYERS + 3
    return ((at + 5000, at + 6200, 0, 7, number, process, name, name) for at, number in _launches(steps))
