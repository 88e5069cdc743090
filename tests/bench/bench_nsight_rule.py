"""The official numbers of a profile with ranges nested a thousand deep: annot against `nsys stats`.

Run by hand: ``python tests/bench/bench_nsight_rule.py [PROFILE.sqlite]``. Both are whole processes that print
the projected ranges as CSV. Without nsys only annot is timed.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from annot.util.installed_tools import Nsys, find_nsys

RANGES: Final = 22_000
DEPTH: Final = 1_000
KERNELS: Final = 1_000
WANTED: Final = 20
REPORT: Final = """
import sys
from annot.attribution.nsight_rule import nvtx_gpu_proj_trace
from annot.read.nsys.activity import read_activity
sys.stdout.write(nvtx_gpu_proj_trace(read_activity(sys.argv[1])).write_csv())
"""


def write_deep(path: Path) -> None:
    """Write a profile whose ranges lie in 22 towers, with a kernel launched in the midst of each 22nd range."""
    thread = 1 << 48 | 100 << 24 | 100
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,"
        " endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,"
        " correlationId INTEGER, nameId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, correlationId INTEGER,"
        " globalPid INTEGER, demangledName INTEGER, shortName INTEGER);"
        "INSERT INTO StringIds VALUES (1, 'kernel');"
    )
    every = RANGES // KERNELS
    for number in range(RANGES):
        tower, level = divmod(number, DEPTH)
        start = tower * 10 * DEPTH**2 + level * DEPTH
        end = start + 2 * (DEPTH - level) * DEPTH - 500
        row = (start, end, 59, f"level {level}", thread, None, None, 0)
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        if number % every == 0:
            call = (start + 100, start + 200, 0, thread, number + 1, 1)
            connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?)", call)
            kernel = (start + 300, start + 900, number + 1, thread & ~0xFFFFFF, 1, 1)
            connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", kernel)
    connection.commit()
    connection.close()


def seconds(command: list[str]) -> float:
    """Return how long a command takes, the output thrown away."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def stats_command(nsys: Nsys, path: Path) -> list[str]:
    """Return the command that prints the official numbers; the report was renamed."""
    report = "nvtx_gpu_proj_trace" if nsys.version >= (2023, 4) else "nvtxgpuproj"
    return [str(nsys.path), "stats", "--report", report, "--format", "csv", "--output", "-", str(path)]


def measure(path: Path) -> None:
    """Print both times and their ratio."""
    mine = min(seconds([sys.executable, "-c", REPORT, str(path)]) for _ in range(3))
    print(f"{'annot':<12} {mine:8.2f} s")
    if nsys := find_nsys():
        official = seconds(stats_command(nsys, path))
        verdict = "ok" if official / mine >= WANTED else f"BELOW {WANTED}"
        print(f"{'nsys stats':<12} {official:8.2f} s  {official / mine:.0f} times as long  {verdict}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            profile = Path(sys.argv[1])
        else:
            write_deep(profile := Path(folder) / "deep.sqlite")
        measure(profile)
