"""Nsight Systems' Parquet export gives the profile that its SQLite export of the same report gives."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import every_third
from random_inputs import examples
from shared_data import unpacked
from sqlite_profile import SqliteProfile, process, thread, to_parquet

from annot import AnnotError
from annot.profile import Profile
from annot.read.nsys import parquet_export, sqlite_export

TABLES = ("ranges", "marks", "launches", "kernels", "copies")


def _assert_same(one: Profile, other: Profile) -> None:
    for table in TABLES:
        assert getattr(one, table).equals(getattr(other, table)), table
    where = ("source", "format")
    assert {key: value for key, value in one.meta.items() if key not in where} == {
        key: value for key, value in other.meta.items() if key not in where
    }


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(
    "name",
    every_third(
        [
            "athrun_lm_attn_windows.2026.2",
            "ginda_mfu_2gpu_before.2026.2",
            "ginda_tiny_no_nvtx.2026.1",
            "jsun_lm_fwd_bwd.2025.1",
            "pipit_saxpy_mpi.2022.2",
            "zx_lm_compile_graphtrace_no_nvtx.2024.6",
            "zx_lm_fwd_nvtx.2024.6",
        ]
    ),
)
def test_real_exports(tmp_path: Path, name: str, narrow: bool) -> None:
    """All tables of real files are the same from Parquet, also in smaller types and with dictionaries."""
    path = unpacked(f"nsys/{name}.sqlite.gz", tmp_path)
    folder = to_parquet(path, tmp_path / "pqt", narrow=narrow)
    assert parquet_export.sniff(folder, b"")
    profile = parquet_export.read(folder)
    _assert_same(profile, sqlite_export.read(path))
    assert (profile.meta["source"], profile.meta["format"]) == (str(folder), "nsys_parquet")


_times = st.none() | st.integers(-5, 9) | st.sampled_from([2**62 + 1, -(2**62) - 1])
_small = st.none() | st.integers(0, 3)
_threads = st.none() | st.sampled_from([thread(1), thread(2), thread(1, 2)])
_texts = st.none() | st.sampled_from(["", "a", "层 ✓"])
_tables = st.fixed_dictionaries(
    {
        "StringIds": st.lists(st.fixed_dictionaries({"id": st.integers(0, 3), "value": _texts}), max_size=4),
        "NVTX_EVENTS": st.lists(
            st.fixed_dictionaries(
                {
                    "start": _times, "end": _times, "eventType": st.sampled_from([None, 33, 34, 39, 59, 60, 75]),
                    "category": _small, "text": _texts, "globalTid": _threads, "endGlobalTid": _threads,
                    "textId": _small, "domainId": _small, "uint64Value": st.none() | st.integers(-(2**63) + 2, 3),
                    "int64Value": _small, "doubleValue": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                }
            ),
            max_size=8,
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": st.lists(
            st.fixed_dictionaries(
                {
                    "start": _times, "end": _times, "eventClass": st.sampled_from([None, 0, 1, 67]),
                    "globalTid": _threads, "correlationId": _small, "nameId": _small,
                }
            ),
            max_size=4,
        ),
        "CUPTI_ACTIVITY_KIND_KERNEL": st.lists(
            st.fixed_dictionaries(
                {
                    "start": _times, "end": _times, "correlationId": _small, "graphNodeId": _small,
                    "globalPid": st.none() | st.sampled_from([process(1), process(2)]), "demangledName": _small,
                    "shortName": _small,
                }
            ),
            max_size=4,
        ),
        "CUDA_GRAPH_NODE_EVENTS": st.lists(
            st.fixed_dictionaries(
                {"start": _times, "globalTid": _threads, "graphNodeId": _small, "originalGraphNodeId": _small}
            ),
            max_size=4,
        ),
    }
)  # fmt: skip


@settings(deadline=None, max_examples=examples(60))
@given(tables=_tables, narrow=st.booleans())
def test_any_content(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, Any], narrow: bool) -> None:
    """Whatever is null, repeated or unknown, both exports give the same profile and the same notes."""
    folder = tmp_path_factory.mktemp("x")
    profile = SqliteProfile()
    profile.range("there is a table", 0, 9)
    for table, rows in tables.items():
        for row in rows:
            profile.add(table, **row)
    path = profile.write(folder / "sqlite")
    exported = folder / "exported.sqlite"
    parquet_export.convert(to_parquet(path, folder / "pqt", narrow=narrow), exported)
    _assert_same(sqlite_export.read(exported), sqlite_export.read(path))


def _folder(tmp_path: Path) -> Path:
    profile = SqliteProfile()
    profile.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_NAME", value="NVIDIA Nsight Systems")
    profile.range("registered", 0, 9)
    profile.event(59, 1, 2, "plain text", thread(1))
    return to_parquet(profile.write(tmp_path / "sqlite"), tmp_path / "pqt")


def test_unsigned_payload(tmp_path: Path) -> None:
    """A payload of 64 unsigned bits, which SQLite keeps as a negative number, can have a type of its own here."""
    folder = _folder(tmp_path)
    payload = pl.Series("uint64Value", [2**64 - 1, None], pl.UInt64)
    file = folder / "NVTX_EVENTS.parquet"
    pl.read_parquet(file).with_columns(payload).write_parquet(file)
    assert parquet_export.read(folder).ranges["payload"].to_list() == [str(2**64 - 1), None]


def test_folders_of_something_else(tmp_path: Path) -> None:
    """Other Parquet files, an empty folder and a single file are not taken for an export."""
    other = tmp_path / "other"
    other.mkdir()
    assert not parquet_export.sniff(other, b"")
    pl.DataFrame({"a": [1]}).write_parquet(other / "data.parquet")
    assert not parquet_export.sniff(other, b"")
    assert not parquet_export.sniff(other / "data.parquet", b"PAR1")
    pl.DataFrame({"id": [1], "value": ["a"]}).write_parquet(other / "StringIds.parquet")
    with pytest.raises(AnnotError, match="without NVTX ranges and without CUDA activity"):
        parquet_export.read(other)


def test_table_of_the_same_name(tmp_path: Path) -> None:
    """A table that has the name but not the columns is refused by the column that is missing."""
    pl.DataFrame({"start": [1], "end": [2], "eventType": [59]}).write_parquet(tmp_path / "NVTX_EVENTS.parquet")
    with pytest.raises(AnnotError, match="NVTX_EVENTS lacks the column globalTid"):
        parquet_export.read(tmp_path)


@pytest.mark.parametrize("part", ["head", "tail", "middle", "nothing"])
def test_damaged_file(tmp_path: Path, part: str) -> None:
    """A file that is cut, empty or overwritten is one sentence with its name."""
    folder = _folder(tmp_path)
    file = folder / "NVTX_EVENTS.parquet"
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(
        {
            "head": content[:middle],
            "tail": content[middle:],
            "middle": b"PAR1" + b"\xff" * 99 + b"PAR1",
            "nothing": b"",
        }[part]
    )
    with pytest.raises(AnnotError, match=re.escape(str(file))) as caught:
        parquet_export.read(folder)
    assert "\n" not in str(caught.value)


def test_claim_of_which_polars_dies(tmp_path: Path) -> None:
    """Pages that claim -64 values end the process that reads them, which is not this one."""
    folder = _folder(tmp_path)
    file = folder / "NVTX_EVENTS.parquet"
    two, fewer = b"\x2c\x15\x04\x15", b"\x2c\x15\x7f\x15"  # num_values in a DataPageHeader of Thrift
    assert two in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(two, fewer))
    with pytest.raises(AnnotError, match=re.escape(str(folder))) as caught:
        parquet_export.read(folder)
    assert "\n" not in str(caught.value)


def test_file_that_claims_more_rows_than_it_can_hold(tmp_path: Path) -> None:
    """A few bytes can stand for a billion equal rows: they are refused before they are unpacked."""
    equal = pl.select(pl.repeat(1, 40_000_000, dtype=pl.Int64).alias("start"))
    columns = {name: pl.col("start") for name in ("end", "eventType", "globalTid")}
    equal.with_columns(**columns).write_parquet(tmp_path / "NVTX_EVENTS.parquet")
    with pytest.raises(AnnotError, match=r"claims 40,000,000 rows"):
        parquet_export.read(tmp_path)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    """Such a text among the metadata costs that column; among names it is refused with the way out."""
    folder = _folder(tmp_path)
    for table, found, broken in (
        ("META_DATA_EXPORT", b"NVIDIA Nsight Systems", b"NVIDIA Nsight \xcf\xffstems"),
        ("NVTX_EVENTS", b"plain text", b"plain \xcf\xffxt"),
    ):
        file = folder / f"{table}.parquet"
        pl.read_parquet(file).write_parquet(file, compression="uncompressed", statistics=False)
        content = file.read_bytes()
        assert found in content
        file.write_bytes(content.replace(found, broken))
        if table == "META_DATA_EXPORT":
            assert parquet_export.read(folder).ranges["text"].to_list() == ["registered", "plain text"]
        else:
            with pytest.raises(AnnotError, match=r"not UTF-8\. Export the report with --type=sqlite"):
                parquet_export.read(folder)


def test_name_with_the_characters_of_a_pattern(tmp_path: Path) -> None:
    """A folder whose name looks like a pattern is read as it is named, and not changed."""
    folder = tmp_path / "run [1]*?{a}"
    shutil.move(_folder(tmp_path), folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert parquet_export.read(folder).ranges.height == 2
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
