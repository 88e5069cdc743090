"""Which files are ranks, and which rank each is: patterns, names, URLs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot.errors import AnnotError
from annot.runs import profile_files
from annot.runs.profile_files import expand, local, rank_numbers


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """The storage of fsspec in this process, with two ranks in a bucket."""
    storage = fsspec.filesystem("memory")
    for rank in (2, 10):
        storage.pipe(f"/bucket/run_rank{rank}.sqlite", b"rank %d" % rank)
    yield storage
    storage.rm("/bucket", recursive=True)


def test_patterns_of_local_files(tmp_path: Path) -> None:
    """A pattern is expanded, a name is itself even if it is missing, nothing comes twice, and 2 is before 10."""
    for rank in (10, 2, 0):
        (tmp_path / f"run_rank{rank}.sqlite").touch()
    paths = [str(tmp_path / f"run_rank{rank}.sqlite") for rank in (0, 2, 10)]
    assert expand([str(tmp_path / "run_rank*.sqlite"), paths[1]]) == paths
    assert expand([str(tmp_path / "missing.sqlite")]) == [str(tmp_path / "missing.sqlite")]


def test_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    """A file whose name has brackets is that file."""
    (tmp_path / "run[1].sqlite").touch()
    assert expand([str(tmp_path / "run[1].sqlite")]) == [str(tmp_path / "run[1].sqlite")]


def test_pattern_without_a_match(tmp_path: Path) -> None:
    """A pattern that matches nothing is named."""
    with pytest.raises(AnnotError, match=re.escape(f"{tmp_path}/*.sqlite matches no file")):
        expand([f"{tmp_path}/*.sqlite"])


def test_urls(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    """URLs are expanded as well, and their files are copied for as long as they are read."""
    paths = expand(["memory://bucket/run_rank*.sqlite"])
    assert paths == ["memory:///bucket/run_rank2.sqlite", "memory:///bucket/run_rank10.sqlite"]
    assert rank_numbers(paths) == [2, 10]
    with local(paths[1]) as copy:
        assert copy.read_bytes() == b"rank 10"
    assert not copy.parent.exists()
    (tmp_path / "x").write_bytes(b"here")
    with local(f"file://{tmp_path}/x") as file:
        assert file == tmp_path / "x"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://bucket/none.sqlite", "memory://bucket/none.sqlite cannot be read: "),
        ("nonsense://x/y", "nonsense://x/y cannot be read: Protocol not known: nonsense"),
    ],
)
def test_urls_that_cannot_be_read(memory: fsspec.AbstractFileSystem, url: str, said: str) -> None:
    """Whatever is wrong with a storage is one sentence with the URL."""
    with pytest.raises(AnnotError, match=re.escape(said)) as caught, local(url):
        pass
    assert "\n" not in str(caught.value)


def test_a_folder_has_at_most_a_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below folders count; folders that cannot be listed, broken links and hidden files do not."""
    monkeypatch.setattr(profile_files, "_MOST_FILES", 2)
    (tmp_path / "rank1").mkdir()
    for name in ("a.txt", "rank1/b.txt", "rank1/.c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "nowhere").symlink_to("missing")
    assert expand([str(tmp_path)]) == [str(tmp_path)]
    (tmp_path / "rank1/d.txt").touch()
    with pytest.raises(AnnotError, match="has more than 2 files"):
        expand([str(tmp_path)])


def test_copies_leave_room_on_the_disk(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that would fill the disk is refused, and what was copied is removed."""
    monkeypatch.setattr(profile_files, "_KEPT_FREE", 2**62)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with (
        pytest.raises(AnnotError, match=f"is too large for a copy in {tmp_path}"),
        local("memory://bucket/run_rank2.sqlite"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["r_rank0_of_4.x", "r_rank3_of_4.x"], [0, 3]),
        (["node-a/Rank-1.x", "node-b/Rank-12.x"], [1, 12]),
        (["rank0/prof1.x", "rank1/prof1.x"], [0, 1]),
        (["job77_3.x", "job77_12.x"], [3, 12]),
        (["job77_3.x", "job78_3.x"], [77, 78]),
        (["n0_g1.x", "n1_g0.x"], [0, 1]),  # two numbers differ: neither is more than a place
        (["n0_rank1.x", "n1_rank1.x"], [0, 1]),  # the number after rank is not enough; only one other differs
        (["before.x", "after.x"], [0, 1]),
        (["run.x"], [0]),
        (["run_rank4.x"], [4]),
    ],
)
def test_ranks_in_names(names: list[str], numbers: list[int]) -> None:
    """The number after "rank" counts, else the only one that differs, else the place."""
    assert rank_numbers(names) == numbers


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, unique=True))
def test_every_file_has_a_rank_of_its_own(names: list[str]) -> None:
    """Whatever the names are, no two files are the same rank."""
    numbers = rank_numbers(names)
    assert len(set(numbers)) == len(names) == len(numbers)
