"""What is no profile ends in one sentence that names the file and what was found."""

from __future__ import annotations

import gzip
import os
import sqlite3
from pathlib import Path

import pytest
from sqlite_profile import SqliteProfile

import annot
from annot import AnnotError


def _refusal(path: Path) -> str:
    with pytest.raises(AnnotError) as caught:
        annot.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
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


def test_nsight_systems_report(tmp_path: Path) -> None:
    """The report that Nsight Systems writes itself comes with the command that makes it readable."""
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"whatever")
    assert "nsys export --type sqlite" in _refusal(path)


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
    assert "no table NVTX_EVENTS, but bookmarks" in _refusal(path)


def test_database_without_tables(tmp_path: Path) -> None:
    """SQLite without any table says so."""
    path = tmp_path / "x"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1")
    assert "no table at all" in _refusal(path)


def test_table_of_the_same_name(tmp_path: Path) -> None:
    """A table that has the name but not the columns is refused by the column that is missing."""
    path = tmp_path / "x"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType)")
    assert "NVTX_EVENTS has no column globalTid" in _refusal(path)


def test_cut_file(tmp_path: Path) -> None:
    """A cut file says how much of it is there."""
    profile = SqliteProfile()
    for start in range(2000):
        profile.range(f"range {start}", start, start + 1)
    path = profile.write(tmp_path / "x")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert f"is cut: it has {len(content) // 2:,} bytes of {len(content):,}" in _refusal(path)


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
