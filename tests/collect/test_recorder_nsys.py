"""Nsight Systems' own reports on what the recorder wrote."""

from __future__ import annotations

import csv
import io
import sqlite3
import statistics
import subprocess
from pathlib import Path

import pytest
from commands import needs_nsys
from recorded import record_client, rows

from annot.util.installed_tools import find_nsys


def _summary(profile: Path) -> list[dict[str, str]]:
    """Run the summary of ranges, which older versions call by another name."""
    nsys = find_nsys()
    assert nsys is not None
    for report in ("nvtx_sum", "nvtxsum"):
        command = [str(nsys.path), "stats", "-r", report, "--format", "csv", "--output", "-", str(profile)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        lines = result.stdout.splitlines()
        heads = [number for number, line in enumerate(lines) if line.startswith("Time")]
        if heads:
            return list(csv.DictReader(io.StringIO("\n".join(lines[heads[0] :]).strip())))
    pytest.fail(result.stdout + result.stderr)


@needs_nsys
def test_summary_of_nsight(tmp_path: Path) -> None:
    """`nsys stats` reads the file, and its counts and times are those of the rows."""
    words = ["domain", "d", "ranges", 50, "threads", 3, "start", "long", "push-registered", "réseau", "pop", "end", 0]
    words += ["domain", "", "push", "open"]
    record_client(tmp_path, *words, "fork", "domain", "e", "push", "child", "pop", "joined")
    profile = tmp_path / "out.sqlite"
    expected = {}
    for row in rows(profile, "push", "start"):
        name = row.text if row.domain == "0" else f"{row.domain}:{row.text}"
        expected.setdefault((name, {"push": "PushPop", "start": "StartEnd"}[row.kind]), []).append(row.end - row.start)
    found = {(line["Range"], line["Style"]): line for line in _summary(profile)}
    assert found.keys() == expected.keys()
    assert {"d:réseau", "d:thread 2", "inner 0", "e:child", "open"} <= {name for name, _ in found}
    for key, durations in expected.items():
        line = found[key]
        assert (int(line["Instances"]), int(line["Total Time (ns)"])) == (len(durations), sum(durations))
        assert (int(line["Min (ns)"]), int(line["Max (ns)"])) == (min(durations), max(durations))
        assert float(line["Med (ns)"]) == pytest.approx(statistics.median(durations), abs=0.11)


def test_who_wrote_it(tmp_path: Path) -> None:
    """The file says that annot wrote it, which processes and threads there were, and when it began."""
    record_client(tmp_path, "name-thread", "loader", "push-a", "x", "pop-default")
    (row,) = rows(tmp_path / "out.sqlite", "push")
    with sqlite3.connect(tmp_path / "out.sqlite") as connection:
        meta = dict(connection.execute("SELECT name, value FROM META_DATA_EXPORT"))
        capture = dict(connection.execute("SELECT name, value FROM META_DATA_CAPTURE"))
        processes = connection.execute("SELECT globalPid, pid, name FROM PROCESSES").fetchall()
        threads = connection.execute(
            "SELECT globalTid, value FROM ThreadNames JOIN StringIds ON id = nameId"
        ).fetchall()
        (started,) = connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    connection.close()
    assert meta["EXPORT_PRODUCT_NAME"] == "annot"
    assert capture["CAPTURE_EVENT_TYPE"] == "NvtxEvents"
    assert (capture["ANNOT_LOST_EVENTS"], capture["ANNOT_OPEN_RANGES"]) == ("0", "0")
    ((process, pid, name),) = processes
    assert (process, pid) == (row.thread & ~0xFFFFFF, row.pid)
    assert Path(name).name.startswith("recorder_client-")  # as `compiled_once` names it
    assert threads == [(row.thread, "loader")]
    assert 0 <= (tmp_path / "out.sqlite").stat().st_mtime_ns - started < 60 * 10**9
