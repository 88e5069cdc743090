"""What reading a table of an SQLite file costs per row, and what the sweeps over it cost per event, in CPU time.

Run by hand: ``make bench``; ``python tests/bench/bench_scan.py FILE`` measures an export of Nsight Systems instead of
a file made for it.
"""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl
from harness import MODES, child_environment, mode, report

from annot.attribution import column_ops
from annot.read.sqlite import open_database

RANGES: Final = 400_000
ROUNDS: Final = 3
WANTED: Final = {
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "endGlobalTid", "category", "domainId", "textId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName",
    ),
}  # fmt: skip

# Sixteen ranges in each outer one, two launches in each range; columns that nobody wants in between, as in an export.
_ROWS: Final = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
SCRIPT: Final = f"""
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text TEXT, globalTid, endGlobalTid, textId,
 domainId);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, greenContextId, streamId, correlationId,
 globalPid, demangledName, shortName, mangledName, gridX, gridY, gridZ, blockX, blockY, blockZ);
{_ROWS.format(count=RANGES)} INSERT INTO NVTX_EVENTS SELECT 1000000000 + i * 1000, 1000000000 + i * 1000 +
 iif(i % 16, 900, 15950), 59, NULL, NULL, NULL, iif(i % 2, 'model.layers.' || i % 16, NULL), 281474976710656 + i % 2,
 NULL, iif(i % 2, NULL, i % 16), 1 FROM n;
{_ROWS.format(count=2 * RANGES)} INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 1000000100 + i * 500,
 1000000300 + i * 500, 0, 281474976710656 + i / 2 % 2, i, 7, 0 FROM n;
{_ROWS.format(count=2 * RANGES)} INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 1000000400 + i * 500,
 1000000800 + i * 500, 0, 1, NULL, 7, i, 281474976710656, i % 200, i % 200, NULL, 128, 1, 1, 256, 1, 1 FROM n;
"""


def best(call: Callable[[], int]) -> tuple[float, int]:
    """Return the CPU seconds of the fastest of some calls, and how many events each handled."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        events = call()
        taken.append(time.process_time() - begin)
    return min(taken), events


def measure(path: Path) -> None:
    """Print what this process's implementation costs; the budgets are those of the C parts."""
    native = mode() == "native"
    seconds, rows = 0.0, 0
    with open_database(path) as database:
        for table, names in WANTED.items():
            integers = {name: name for name in names}
            texts = {"text": "text"} if table == "NVTX_EVENTS" else {}

            def read() -> int:
                return sum(block.height for block in database.blocks(table, integers, texts))  # noqa: B023

            taken, count = best(read)
            seconds, rows = seconds + taken, rows + count
            report(f"{table}, per row", taken / count * 1e6, "µs", note=f"{count:,} rows")
        report("all of them, per row", seconds / rows * 1e6, "µs", 0.1 if native else None)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        report("memory at its highest, in blocks", peak, "MiB", 200 if native else None)
        frames = [database.scan(table, {name: name for name in names}) for table, names in WANTED.items()]
    taken, events = best(lambda: _correlate(*frames))
    report("order to launches, per event", taken / events * 1e6, "µs", 0.2 if native else None)


def _codes(column: pl.Series, values: pl.Series) -> pl.Series:
    return pl.Series(values.sort().search_sorted(column), dtype=pl.Int32)


def _correlate(ranges: pl.DataFrame, launches: pl.DataFrame, kernels: pl.DataFrame) -> int:
    threads = pl.concat([ranges["globalTid"], launches["globalTid"]]).unique()
    thread, calls = _codes(ranges["globalTid"], threads), _codes(launches["globalTid"], threads)
    end = ranges["end"].fill_null(2**62)
    rows = column_ops.order(thread, ranges["start"], end)
    thread, start, end = (column.gather(rows) for column in (thread, ranges["start"], end))
    parent, _ = column_ops.parents(thread, end)
    column_ops.paths(parent, ranges["textId"].fill_null(0).gather(rows).cast(pl.Int32))
    owners = column_ops.Tree(thread, start, end, parent).owners(calls, launches["start"], launches["end"])
    table = column_ops.LaunchTable()
    table.put(pl.zeros(launches.height, pl.Int32, eager=True), launches["correlationId"], owners, owners)
    table.get(pl.zeros(kernels.height, pl.Int32, eager=True), kernels["correlationId"])
    return ranges.height + launches.height


def main(argv: list[str]) -> None:
    """Measure in this process, or start the processes that do."""
    if argv[:1] == ["measure"]:
        measure(Path(argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(argv[0]) if argv else Path(folder) / "made.sqlite"
        if not argv:
            connection = sqlite3.connect(path)
            connection.executescript(f"BEGIN; {SCRIPT} COMMIT;")
            connection.close()
        for name, switch in MODES.items():
            print(f"bench_scan: {name}", flush=True)
            command = [sys.executable, __file__, "measure", str(path)]
            subprocess.run(command, env=child_environment(**switch), check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
