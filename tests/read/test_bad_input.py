"""What is no profile ends in one sentence that names the file and what was found."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from pathlib import Path

import polars as pl
import pytest
from matrices import matrix
from range_tables import ranges_of
from sqlite_profile import SqliteProfile, training

import annot
from annot import AnnotError
from annot.attribution.attribute import attribute
from annot.attribution.summary import summarize
from annot.cli.main import main
from annot.profile import COPIES, KERNELS, RANGES, Profile
from annot.read.formats import source

NOUNS = {"kernels": "kernel", "copies": "copy", "ranges": "range", "API calls": "API call"}


def _refusal(path: Path) -> str:
    with pytest.raises(AnnotError) as caught:
        annot.load(path)
    message = str(caught.value)
    assert message.startswith(str(path).replace("\0", "\\x00"))
    assert "\n" not in message
    return message


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is called that."""
    assert _refusal(tmp_path / "nothing").endswith("does not exist")


def test_folder(tmp_path: Path) -> None:
    """A folder that holds no parts of a recording is called a folder."""
    assert "folder" in _refusal(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    """An empty file is called empty."""
    (tmp_path / "x").touch()
    assert _refusal(tmp_path / "x").endswith("is empty")


def test_unreadable_file(tmp_path: Path) -> None:
    """A file without permission says so."""
    path = tmp_path / "x"
    path.write_bytes(b"x")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    assert _refusal(path).endswith("Permission denied")


def test_path_through_a_file(tmp_path: Path) -> None:
    """A path that goes through a file says why it leads nowhere."""
    (tmp_path / "x").touch()
    assert _refusal(tmp_path / "x" / "y").endswith("cannot be read: Not a directory")


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A named pipe is refused instead of waiting for somebody to write into it."""
    os.mkfifo(tmp_path / "pipe")
    assert _refusal(tmp_path / "pipe").endswith("is not a regular file")


def test_name_that_no_file_can_have() -> None:
    """A name with a NUL is an error about the name."""
    assert "cannot be read" in _refusal(Path("a\0b"))


def test_other_content(tmp_path: Path) -> None:
    """Content that nobody knows is shown, so that one sees what the file is."""
    path = tmp_path / "x"
    path.write_text("#!/bin/sh\necho")
    assert "begins with b'#!/bin/sh" in _refusal(path)


def test_nsight_compute_report(tmp_path: Path) -> None:
    """A report of Nsight Compute is recognised, and told apart from Nsight Systems."""
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"NVR\x00\x02\x00\x00\x00")
    assert "Nsight Compute" in _refusal(path)


def test_nsight_systems_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Nsight Systems, its own report is refused with the command that makes it readable elsewhere."""
    monkeypatch.setenv("ANNOT_NSYS", "/nonexistent")
    path = tmp_path / "run"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 1.\n")
    assert "nsys export --type=sqlite" in _refusal(path)


def test_gzip_without_a_trace(tmp_path: Path) -> None:
    """Compressed content that is no trace is called compressed, also if the compression is broken."""
    path = tmp_path / "x"
    for content in (gzip.compress(b"hello"), b"\x1f\x8bbroken"):
        path.write_bytes(content)
        assert "compressed with gzip" in _refusal(path)


def test_json_that_is_no_trace(tmp_path: Path) -> None:
    """JSON without trace events is refused like any other text."""
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, 2, 3]}')
    assert "not a profile" in _refusal(path)


def test_other_database(tmp_path: Path) -> None:
    """SQLite without NVTX and CUDA tables says which tables it has."""
    path = tmp_path / "x"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE bookmarks (url)")
    assert "no table NVTX_EVENTS. It contains bookmarks" in _refusal(path)


def test_database_without_tables(tmp_path: Path) -> None:
    """SQLite without any table says so."""
    path = tmp_path / "x"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1")
    assert "contains no tables" in _refusal(path)


def test_table_of_the_same_name(tmp_path: Path) -> None:
    """A table that has the name but not the columns is refused by the column that is missing."""
    path = tmp_path / "x"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType)")
    assert "NVTX_EVENTS lacks the column globalTid" in _refusal(path)


def test_cut_file(tmp_path: Path) -> None:
    """A cut file says how much of it is there."""
    profile = SqliteProfile()
    for start in range(2000):
        profile.range(f"range {start}", start, start + 1)
    path = profile.write(tmp_path / "x")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert f"is truncated: it has {len(content) // 2:,} of {len(content):,} bytes" in _refusal(path)


def test_sqlite_in_utf_16(tmp_path: Path) -> None:
    """Its texts would come out with a NUL after each letter, and no rule would know a kernel."""
    path = tmp_path / "wide.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA encoding = 'UTF-16le'")
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    assert "stores text as UTF-16" in _refusal(path)


def test_damaged_file(tmp_path: Path) -> None:
    """A file whose pages were overwritten is called damaged."""
    profile = SqliteProfile()
    for start in range(2000):
        profile.range(f"range {start}", start, start + 1)
    path = profile.write(tmp_path / "x")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    assert "damaged SQLite" in _refusal(path)


def test_values_of_the_wrong_type(tmp_path: Path) -> None:
    """SQLite lets any value into any column; numbers that are none become 0, and nothing fails."""
    profile = SqliteProfile()
    profile.range("first", 0, 10)
    profile.event(59, 2, 3, "second", 1)
    path = profile.write(tmp_path / "x")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE NVTX_EVENTS SET start = 'soon', end = 12.75, color = x'00ff' WHERE rowid = 2")
        database.execute("UPDATE NVTX_EVENTS SET text = 1e300, textId = NULL WHERE rowid = 2")
    loaded = annot.load(path).ranges
    assert loaded.select("text", "start", "end").rows() == [("first", 0, 10), ("1.0e+300", 0, 12)]


def test_times_too_long_to_add_up(tmp_path: Path) -> None:
    """Ranges or kernels whose times add up to more than 64 bits hold are refused, not shown as a negative time."""
    day = 86_400 * 10**9
    for what in ("kernels and copies", "ranges"):
        profile = SqliteProfile()
        for row in range(10):
            profile.layer(f"l{row} Linear |fwd", 0, 10 if what != "ranges" else 10_000 * day)
            profile.kernel(0, 10 if what == "ranges" else 10_000 * day, row)
        path = profile.write(tmp_path / what)
        with pytest.raises(AnnotError, match=f"{what} has {what} that take more than 146 years in all$"):
            annot.correlate(annot.load(path))


def test_what_sqlite_left_beside_the_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that are in the log of a program that still writes are not read, and not passed over in silence."""
    whole = SqliteProfile()
    whole.layer("l Linear |fwd", 0, 100)
    whole.kernel(10, 30, 1)
    whole.write(tmp_path / "whole")
    late = tmp_path / "late"
    with sqlite3.connect(tmp_path / "whole") as rows, sqlite3.connect(late) as writer:
        writer.execute("PRAGMA journal_mode = wal")
        writer.executescript("\n".join(rows.iterdump()))
        note = "late-wal can contain rows that late does not contain yet. annot does not read them."
        assert note in _refusal(late)
        writer.execute("PRAGMA wal_checkpoint(passive)")
        writer.execute("INSERT INTO StringIds VALUES (77, 'late')")
        writer.commit()
        for loaded in (annot.load(late), source(late)):
            assert [one for one in summarize(attribute(loaded))["notes"] if one.startswith(note)]
        assert main(["report", str(late), "--all"]) == 0
        assert "Note: late-wal can contain rows" in capsys.readouterr().out
    writer.close()  # which moves all to the file, and removes the log
    assert not [one for one in annot.load(late).meta["notes"] if "wal" in one]
    (tmp_path / "whole-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))
    assert [
        one
        for one in annot.load(tmp_path / "whole").meta["notes"]
        if one.startswith("whole-journal belongs to an unfinished write")
    ]
    (tmp_path / "whole-journal").write_bytes(bytes(512))  # what a finished write may leave
    os.mkfifo(tmp_path / "whole-wal")  # nobody writes to it
    assert not [one for one in annot.load(tmp_path / "whole").meta["notes"] if "journal" in one]


@pytest.mark.parametrize("native", [True, False])
def test_tables_whose_rows_have_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    """A table of its primary key alone, as some tools make when they copy one, is no damage, and gives the same."""
    if not native:
        monkeypatch.setenv("ANNOT_DISABLE_NATIVE", "1")
    path, keyed = training(device=True).write(tmp_path / "path"), tmp_path / "keyed"
    with sqlite3.connect(path) as old, sqlite3.connect(keyed) as new:
        for table, names in [
            (table, [row[1] for row in old.execute(f"PRAGMA table_info({table})")])
            for (table,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        ]:
            columns = ", ".join(f'"{name}"' for name in names)
            new.execute(f"CREATE TABLE {table} (number INTEGER PRIMARY KEY, {columns}) WITHOUT ROWID")
            rows = [(number, *row) for number, row in enumerate(old.execute(f"SELECT * FROM {table}"), 1)]
            new.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * (len(names) + 1))})", rows)
    for name in ("ranges", "marks", "launches", "kernels", "copies"):
        assert getattr(annot.load(keyed), name).equals(getattr(annot.load(path), name)), name
    assert ranges_of(attribute(source(keyed))).equals(ranges_of(attribute(source(path))))


@pytest.mark.parametrize(
    ("what", "far", "native"),
    matrix(
        ["kernels", "copies", "ranges", "API calls"],
        [(-(2**62), 2**62), (-(2**62), 20), (10, 2**62), (-(2**61) - 1, 0), (0, 2**63 - 1)],
        [True, False],
    ),
)
def test_no_time_is_lost_to_an_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, far: tuple[int, int], native: bool
) -> None:
    """What reaches over more years than add up in 64 bits is left out with a note, in C as in Python."""
    if not native:
        monkeypatch.setenv("ANNOT_DISABLE_NATIVE", "1")
    profile = SqliteProfile()
    profile.layer("l Linear |fwd", 0, 100)
    profile.kernel(10, 30, 1)
    profile.call(10, 12, 1)
    add = {"kernels": profile.kernel, "copies": profile.copy, "API calls": profile.call}
    if what == "ranges":
        profile.layer("m Linear |fwd", *far)
    else:
        add[what](*far, 2)
    path = profile.write(tmp_path / "far")
    for loaded in (annot.load(path), source(path)):
        meta = summarize(attribute(loaded))
        assert (meta["gpu_ns"], meta["devices"][0]["busy_ns"], meta["devices"][0]["span_ns"]) == (20, 20, 20)
        assert f"annot skipped 1 {NOUNS[what]} without valid start and end times." in meta["notes"]


@pytest.mark.parametrize("table", ["kernels", "copies", "ranges"])
def test_times_of_other_readers_that_reach_too_far(table: str) -> None:
    """A reader of somebody else's that gives such times is told so; no total is short of them without a word."""
    ends = {"process": 1, "thread": 1, "device": 0, "id": 0, "start": -(2**62), "end": 2**62}
    row = {
        name: value for name, value in ends.items() if name in {"kernels": KERNELS, "copies": COPIES}.get(table, RANGES)
    }
    near = {**row, "start": 2**62 - 5, **({"id": 1} if "id" in row else {})}
    for rows in ([row], [{**row, "end": 5 - 2**62}, near]):
        profile = Profile.build({"source": "p"}, **{table: pl.DataFrame(rows)})
        with pytest.raises(AnnotError, match=r"^p has .* that take more than 146 years in all$"):
            attribute(profile)


def test_work_whose_cause_lies_in_a_step_alone(tmp_path: Path) -> None:
    """Work without a launch, caused by an operation in no layer but in a step, counts to the step and is not lost."""
    span = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
    events = [
        {**span, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "args": {"External id": 3}},
        {**span, "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 11},
        {**span, "cat": "kernel", "name": "k", "ts": 30, "args": {"External id": 3}},
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    rows = annot.correlate(annot.load(path))
    assert rows.filter(pl.col("gpu_self_ns") > 0).select("layer", "gpu_self_ns").rows() == [("(batch)", 5000)]


def test_deep_modules_cost_no_square(tmp_path: Path) -> None:
    """Thousands of calls of modules in each other do not become texts of a thousand names each."""
    count = 3000
    events = [
        {"ph": "X", "cat": "python_function", "name": f"nn.Module: Linear_{level}", "pid": 1, "tid": 1, "ts": level,
         "dur": 2 * (count - level), "args": {"Python id": level}}
        for level in range(count)
    ]  # fmt: skip
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    ranges = annot.load(path).ranges
    assert ranges.height == count
    assert ranges["text"].str.len_bytes().max() < 2000


def test_endless_keys_in_a_trace(tmp_path: Path) -> None:
    """A trace whose object has more keys than any program writes is refused, before they fill the memory."""
    path = tmp_path / "x.json"
    path.write_text('{"schemaVersion": 1, ' + '"k": 1, ' * 20_000 + '"traceEvents": []}')
    assert "more than 16,384 keys" in _refusal(path)
