"""Limits of readers: what lies on one side is read, what lies on the other side is refused with its place."""

from __future__ import annotations

import gzip
import io
import json
import math
import sqlite3
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from annot.errors import AnnotError
from annot.read import proton
from annot.read.formats import load
from annot.read.kineto import columns, reader, trace_events
from annot.read.kineto.columns import InexactTimesError, microseconds
from annot.read.kineto.trace_events import TraceFile
from annot.read.ncu import ncu_rep
from annot.read.nsys import parquet_export
from annot.read.recording import export, files
from annot.read.recording.files import UnreadableError
from annot.read.sqlite import check_columns, open_database
from annot.read.xplane.host import Kind, Ranges

COARSE = 2.0**43


def events_of(path: Path, content: bytes, **options: Any) -> tuple[list[str], dict[str, Any]]:
    """The names of the events of a file, and the values beside them."""
    path.write_bytes(content)
    with TraceFile(path, **options) as trace:
        return [event.name for block in trace.blocks() for event in block], trace.top


EVENT = b'{"ph":"X","name":"a","ts":1,"dur":2}'


def test_ids_of_processes_and_threads_fill_24_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of 23 bits stay; other ids share the upper half."""
    monkeypatch.setattr(columns, "_HALF", 4)
    ids = columns._Ids(100)
    assert [ids[key] for key in (0, 3, "2", 4, "x", -1, None, 4)] == [100, 103, 102, 104, 105, 106, 107, 104]
    with pytest.raises(OverflowError, match="processes or threads"):
        ids["one more"]


@pytest.mark.parametrize(
    ("values", "exact"),
    [
        ([1.5, COARSE - 1], True),
        ([1.5, COARSE], False),
        ([-COARSE, 1.5], False),
        ([1, int(COARSE), 3 * int(COARSE)], True),
        ([Decimal("1.5"), COARSE - 1, int(COARSE)], True),
        ([Decimal("1.5"), COARSE], False),
        ([Decimal("1.5"), -COARSE], False),
        ([Decimal(2) ** 44, None, math.nan, math.inf], True),
        ([None, 1.5, math.nan, math.inf], True),
    ],
)
def test_floats_that_are_not_exact_to_the_nanosecond_are_read_again(values: list[Any], exact: bool) -> None:
    if exact:
        finite = [value for value in values if value is not None and math.isfinite(value)]
        assert microseconds(values).drop_nulls().len() == len(finite)
    else:
        with pytest.raises(InexactTimesError):
            microseconds(values)


def test_times_beyond_the_limits_are_none() -> None:
    for kind in (int, float, Decimal):
        values = [kind(value) for value in (-6, -5, 0, 7, 8)]
        assert [value is None for value in microseconds(values, -5, 7)] == [True, False, False, False, True]


@pytest.mark.parametrize("base", [3 * 10**18, -3 * 10**18, 0])
def test_base_of_times(base: int) -> None:
    assert reader._base({"baseTimeNanoseconds": base}) == base
    assert reader._base({}) == 0
    assert reader._base({"baseTimeNanoseconds": 10**18}) == 10**18


@pytest.mark.parametrize("base", [3 * 10**18 + 1, -3 * 10**18 - 1, "1", None, 1.5])
def test_base_of_times_that_is_refused(base: Any) -> None:
    with pytest.raises(OverflowError, match="baseTimeNanoseconds is"):
        reader._base({"baseTimeNanoseconds": base})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[%b] x", "unexpected data after the end at byte 39"),
        (b'{1: 2, "traceEvents": [%b]}', "a key that is not a string at byte 2"),
        (b'{"traceEvents": [%b], "traceEvents": []}', "a second list traceEvents at byte"),
        (b'{"traceEvents" [%b]}', "expected : at byte 15"),
        (b'{"traceEvents": [%b] "x": 1}', "expected , at byte"),
        (b'{"traceEvents": [%b', "an incomplete event at byte 17"),
        (b"[%b %b]", "expected , at byte"),
        (b"7 %b", "expected an object or a list at byte 0"),
        (b'{"x": "\xff", "traceEvents": [%b]}', "text that is not UTF-8"),
        (b'{"x": [%b', "an incomplete value at byte 6"),
        (b'[%b, {"ph": ', "an incomplete event at byte"),
    ],
)
def test_damaged_traces_are_refused_at_a_place(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(AnnotError, match=f"is not a complete trace of torch.profiler: {words}"):
        events_of(path, content.replace(b"%b", EVENT))


def test_whole_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert events_of(path, b" [%b] \n" % EVENT) == (["a"], {})
    assert events_of(path, b"\xef\xbb\xbf{}") == ([], {})
    assert events_of(path, b'{"x": 1, "traceEvents": [%b, %b], "y": {"z": []}}' % (EVENT, EVENT)) == (
        ["a", "a"], {"x": 1, "y": {"z": []}},
    )  # fmt: skip
    assert events_of(path, b'{"traceEvents": 5, "traceEvents": [%b]}' % EVENT)[0] == ["a"]


def test_data_beside_the_events_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of all keys together."""
    monkeypatch.setattr(trace_events, "_LONGEST", 8)
    path = tmp_path / "trace.json"
    assert events_of(path, b'{"a":1234,"b":1234}')[1] == {"a": 1234, "b": 1234}
    with pytest.raises(AnnotError, match="too much data outside traceEvents at byte 19"):
        events_of(path, b'{"a":1234,"b":12345}')


@pytest.mark.parametrize(("longest", "fits"), [(1 << 12, False), ((1 << 12) + 1, True)])
def test_values_longer_than_a_window_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int, fits: bool
) -> None:
    """A value that does not end in the window is read again with four times as many bytes, up to the limit."""
    text = "x" * (1 << 12)
    content = json.dumps({"a": text}).encode()
    monkeypatch.setattr(trace_events, "_LONGEST", longest)
    if fits:
        monkeypatch.setattr(trace_events, "_LONGEST", 3 * longest)
        assert events_of(tmp_path / "x", content)[1] == {"a": text}
    else:
        with pytest.raises(AnnotError, match="an incomplete value at byte 6"):
            events_of(tmp_path / "x", content)


def test_a_value_that_ends_with_the_window_is_complete(tmp_path: Path) -> None:
    for length in range((1 << 12) - 4, (1 << 12) + 3):
        content = json.dumps({"a": "x" * length}).encode()
        assert events_of(tmp_path / "x", content)[1] == {"a": "x" * length}


@pytest.mark.parametrize("fits", [True, False])
def test_compressed_traces_decompress_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool) -> None:
    """In total, whatever the size of the windows. A plain file has no limit."""
    content = b"[" + b",".join([EVENT] * 3000) + b"]"
    monkeypatch.setattr(trace_events, "_RATIO", 0)
    monkeypatch.setattr(trace_events, "_FREE", len(content) - (not fits))
    assert len(events_of(tmp_path / "plain", content, block=500)[0]) == 3000
    if fits:
        assert len(events_of(tmp_path / "x.gz", gzip.compress(content), block=500)[0]) == 3000
    else:
        with pytest.raises(AnnotError, match="decompresses to more than 0 MiB, too much for a trace of its size"):
            events_of(tmp_path / "x.gz", gzip.compress(content), block=500)


def messages(*lengths: int, cut: int = 0) -> io.BytesIO:
    content = b"".join(struct.pack("<I", length) + b"\1" * length for length in lengths)
    return io.BytesIO(content[: len(content) - cut])


def test_messages_of_a_report_end_in_the_file() -> None:
    file, size = messages(3, 0, 2), 4 + 3 + 4 + 4 + 2
    assert [ncu_rep._message(file, size) for _ in range(3)] == [b"\1\1\1", b"", b"\1\1"]
    with pytest.raises(ValueError, match="the message at byte 17 ends after byte 17"):
        ncu_rep._message(file, size)
    for end in range(7):
        with pytest.raises(ValueError, match=f"the message at byte 0 ends after byte {end}"):
            ncu_rep._message(messages(3), end)
    with pytest.raises(ValueError, match="the message at byte 0 ends after byte 100"):
        ncu_rep._message(io.BytesIO(b"\1\0\0"), 100)
    file = messages(3, 3)
    file.seek(7)
    assert ncu_rep._message(file, 14) == b"\1\1\1"
    file.seek(7)
    with pytest.raises(ValueError, match="the message at byte 7 ends after byte 13"):
        ncu_rep._message(file, 13)


@pytest.mark.parametrize(("rows", "fits"), [(7, True), (8, False)])
def test_rows_of_a_parquet_file_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, fits: bool
) -> None:
    """Some, and more in a larger file."""
    path = tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    pl.DataFrame({"start": range(rows)}).write_parquet(path)
    for fixed, by_size in ((7, 0.0), (3, 4 / path.stat().st_size)):
        monkeypatch.setattr(parquet_export, "_ROWS", fixed)
        monkeypatch.setattr(parquet_export, "_ROWS_PER_BYTE", by_size)
        if fits:
            assert parquet_export._table(path)["start"].to_list() == list(range(rows))
        else:
            with pytest.raises(AnnotError, match="is damaged: it claims 8 rows"):
                parquet_export._table(path)


def header(version: int = 1, started: int = 5, utc: int = 6, stopped: int = 7, magic: bytes = b"annotrec") -> bytes:
    return struct.pack("<8sIIQQQQQ", magic, version, 42, started, utc, stopped, 2**63, 2**63)


def test_headers_of_recordings() -> None:
    part = files._read_header(Path("x"), header())
    assert (part.pid, part.started, part.started_utc, part.stopped, part.error) == (42, 5, 6, 7, 0)
    latest = files.MAX_TIME
    assert files._read_header(Path("x"), header(started=latest, utc=latest, stopped=latest)).stopped == latest


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (header()[:-1], "it is empty or truncated"),
        (b"", "it is empty or truncated"),
        (header(magic=b"annotreC"), "annot did not write it"),
        (header(version=0), "it has format version 0; this version of annot supports 1"),
        (header(version=2), "it has format version 2; this version of annot supports 1"),
        (header(started=2**62 + 1), "its header is damaged"),
        (header(utc=2**62 + 1), "its header is damaged"),
        (header(stopped=2**62 + 1), "its header is damaged"),
    ],
)
def test_headers_that_are_refused(page: bytes, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        files._read_header(Path("x"), page)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_encodings_of_databases(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA encoding = '{encoding}'")
        database.execute("CREATE TABLE t (a INTEGER)")
    if encoding == "UTF-8":
        with open_database(path) as opened:
            assert opened.columns["t"] == {"a"}
    else:
        with pytest.raises(AnnotError, match="stores text as UTF-16"), open_database(path):
            pass


@pytest.mark.parametrize("cut", [0, 1, 600])
def test_databases_are_as_long_as_they_say(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (a INTEGER)")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut])
    if cut:
        with pytest.raises(AnnotError, match="is truncated: it has"), open_database(path):
            pass
    else:
        path.write_bytes(content + b"\0")
        with open_database(path) as opened:
            assert opened.columns["t"] == {"a"}


def test_columns_that_a_table_needs() -> None:
    """Only of the tables that the file has; the first one that is missing is named."""
    needed = {"A": {"x", "y", "z"}, "B": {"x"}}
    check_columns(Path("f"), {"A": {"x", "y", "z", "more"}}, needed)
    with pytest.raises(AnnotError, match="f is not an Nsight Systems export: A lacks the column y"):
        check_columns(Path("f"), {"A": {"x", "more"}}, needed)


@pytest.mark.parametrize(("limit", "fits"), [(2, True), (1, False)])
def test_ranges_of_an_xplane_file_have_a_limit(limit: int, fits: bool) -> None:
    ranges = Ranges(lambda name: (), limit)
    events = [(at, -at - 1, at, Kind("note", "annotation")) for at in (0, 5)]
    if fits:
        ranges.add(0, events)
        assert ranges.table().height == 2
    else:
        with pytest.raises(OverflowError, match="it has 2 ranges, the limit is 1"):
            ranges.add(0, events)


@pytest.mark.parametrize(("latest", "fits"), [(31, True), (30, False)])
def test_times_of_a_proton_tree_add_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latest: int, fits: bool
) -> None:
    monkeypatch.setattr(proton, "LATEST", latest)
    path = tmp_path / "x.hatchet"
    times = [{"time (ns)": ns, "count": 1, "device_id": "0", "device_type": "CUDA"} for ns in (10, 20)]
    kernels = [{"children": [], "frame": {"name": "k", "type": "function"}, "metrics": metrics} for metrics in times]
    root = {"children": kernels, "frame": {"name": "ROOT", "type": "function"}, "metrics": {}}
    path.write_text(json.dumps([root, {"CUDA": {"0": {"arch": "90"}}}]))
    if fits:
        assert load(path).kernels["end"].to_list() == [10, 30]
    else:
        with pytest.raises(AnnotError, match="its times add up to 30 ns"):
            load(path)


def test_two_captures_in_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plugins" / "profile" / "run").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "plugins" / "profile" / "run" / f"{name}.xplane.pb").write_bytes(b"\x0a\x00")
    with pytest.raises(AnnotError, match=r"contains 2 XPlane files\. Pass one of them, such as .*b\.xplane\.pb"):
        load(tmp_path)
    (tmp_path / "plugins" / "profile" / "run" / "b.xplane.pb").unlink()
    with pytest.raises(AnnotError, match="contains no events of a host or device"):
        load(tmp_path)


def test_folders_and_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AnnotError, match="is a folder without a profile"):
        load(tmp_path)
    with pytest.raises(AnnotError, match="is a folder without parts of an annot recording"):
        export.read(tmp_path)
    (tmp_path / "x").write_bytes(b"\x7fELF and more")
    with pytest.raises(AnnotError, match=r"is not a profile in a supported format: it begins with b'.x7fELF and more'"):
        load(tmp_path / "x")


def test_parts_of_a_recording_are_read_beside_damaged_ones(tmp_path: Path) -> None:
    """A folder without a readable part is an error, an empty one is not."""
    assert export._read_parts(tmp_path) == ([], [])
    (tmp_path / f"b{files.PART_SUFFIX}").write_bytes(b"")
    with pytest.raises(AnnotError, match=r"has no readable part of a recording: b\.part cannot be read: it is empty"):
        export._read_parts(tmp_path)
    (tmp_path / f"a{files.PART_SUFFIX}").write_bytes(header().ljust(1 << 16, b"\0"))
    (tmp_path / "other").write_bytes(b"")
    processes, notes = export._read_parts(tmp_path)
    assert ([part.pid for part in processes], len(notes)) == ([42], 1)


def test_blocks_of_a_report_end_in_the_file() -> None:
    """A file header, and a block whose header says how many bytes follow."""
    block = b"\x28\x04"  # field 5, payload: 4 bytes
    content = ncu_rep._MAGIC + struct.pack("<I", 0) + struct.pack("<I", len(block)) + block + struct.pack("<I", 0)
    assert ncu_rep._walk(io.BytesIO(content), len(content)) == ("", [(0, 0)])
    with pytest.raises(ValueError, match=f"it has {len(content) - 1} of at least {len(content)} bytes"):
        ncu_rep._walk(io.BytesIO(content[:-1]), len(content) - 1)
