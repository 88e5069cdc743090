"""Files that are no XPlane, or a damaged one, end in a sentence or in what is left of them."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from shared_data import shared
from xplane_profile import XPlaneProfile

from annot import AnnotError
from annot.profile import Profile
from annot.read.xplane import reader as xplane

_DATA = Path(__file__).parents[1] / "data"
_SMALL = ("jax_cpu.xplane.pb", "tf_cpu.xplane.pb")


@pytest.mark.parametrize("name", ["/host:CPU", "/device:GPU:0", "/device:TPU:3", "/host:metadata", "Task Environment"])
def test_first_plane(name: str, tmp_path: Path) -> None:
    """A file is recognised by the name of its first plane, whatever follows and whatever its number."""
    for number in (0, 1, -1, 2**40):
        file = XPlaneProfile()
        plane = file.plane(name)
        plane.message.id = number
        for length in (0, 3000):
            plane.line("x" * length)
            content = file.write(tmp_path / "x").read_bytes()
            assert xplane.sniff(tmp_path / "x", content[:65536])


def test_other_planes(tmp_path: Path) -> None:
    """A plane of a name that no profiler gives is no mark of the format, nor is a name that is cut."""
    file = XPlaneProfile()
    file.plane("hello /host:CPU")
    assert not xplane.sniff(tmp_path, file.write(tmp_path / "x").read_bytes())
    assert not xplane.sniff(tmp_path, b"\x0a\x40\x12\x30/host:CPU\x00\x01")


@settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"\x0a\x10\x12\x09" + rest))
def test_random_bytes_are_not_recognised(content: bytes) -> None:
    """Other content is not taken for an XPlane."""
    assert not xplane.sniff(Path("x"), content)


@pytest.mark.parametrize("name", _SMALL)
def test_cut_files(name: str, tmp_path: Path) -> None:
    """A cut file is called cut or damaged, or ends with a whole plane."""
    content = (_DATA / name).read_bytes()
    refused = 0
    for length in range(1, len(content), 499):
        (tmp_path / "x").write_bytes(content[:length])
        refused += _refused(tmp_path / "x")
    assert refused > len(content) // 499 - 5


@pytest.mark.slow
@pytest.mark.parametrize("name", _SMALL)
def test_flipped_bits(name: str, tmp_path: Path) -> None:
    """A file with wrong bits is refused, or read as something that keeps to the rules of a profile."""
    content = (_DATA / name).read_bytes()
    chance = random.Random(name)
    read = 0
    for _ in range(200):
        broken = bytearray(content)
        for _ in range(chance.choice((1, 3, 30))):
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        (tmp_path / "x").write_bytes(broken)
        read += not _refused(tmp_path / "x")
    assert 0 < read < 200


@pytest.mark.slow
def test_flipped_bits_of_a_large_file(tmp_path: Path) -> None:
    """The same holds for a file with devices and launches."""
    content = shared("xplane/tf_bert_gpu8_multi_worker.xplane.pb").read_bytes()
    chance = random.Random(1)
    for _ in range(12):
        broken = bytearray(content)
        for _ in range(chance.choice((1, 2))):
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        (tmp_path / "x").write_bytes(broken)
        _refused(tmp_path / "x")


def _refused(path: Path) -> bool:
    try:
        profile = xplane.read(path)
    except AnnotError as error:
        message = str(error)
    else:
        _check(profile)
        return False
    assert message.startswith(f"{path} ")
    assert "\n" not in message
    return True


def _check(profile: Profile) -> None:
    for table in (profile.ranges, profile.launches, profile.kernels, profile.copies):
        assert (table["start"] <= table["end"]).all()
        assert not any(table[name].null_count() for name in ("process", "start", "end"))
    assert profile.ranges["id"].is_unique().all()


def test_nothing_to_read(tmp_path: Path) -> None:
    """A file without any event is refused with what the profiler said about it."""
    file = XPlaneProfile()
    file.plane("/host:CPU")
    with pytest.raises(AnnotError, match=r"x contains no events of a host or device$"):
        xplane.read(file.write(tmp_path / "x"))
    file.space.errors.append(b"CUPTI could not\nbe loaded")
    with pytest.raises(AnnotError, match=r"x contains no events of a host or device: CUPTI could not be loaded$"):
        xplane.read(file.write(tmp_path / "x"))


def test_long_name_costs_no_square(tmp_path: Path) -> None:
    """A name with half a million levels does not become half a million texts."""
    file = XPlaneProfile()
    gpu = file.plane("/device:GPU:0")
    gpu.event(gpu.line("Stream #1", 1), "k", 0, 1000, tf_op="a/" * 500_000 + "b:C")
    path = file.write(tmp_path / "x")
    tracemalloc.start()
    profile = xplane.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert profile.ranges.height < 100
    assert peak < 20 * path.stat().st_size


def test_too_many_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would make more ranges than fit in memory is refused by their number."""
    monkeypatch.setattr(xplane, "_MOST_RANGES", 10)
    file = XPlaneProfile()
    host = file.plane("/host:CPU")
    thread = host.line("python", 1)
    for start in range(11):
        host.event(thread, "x", start * 1000, 1000)
    with pytest.raises(AnnotError, match="cannot be read: it has 11 ranges, the limit is 10"):
        xplane.read(file.write(tmp_path / "x"))


def test_huge_numbers(tmp_path: Path) -> None:
    """Ids beyond 63 bits are no ids."""
    file = XPlaneProfile()
    for name, line in (("/device:GPU:0", "Stream #1"), ("/host:CPU", "python")):
        plane = file.plane(name)
        event = plane.event(plane.line(line, -(2**63)), "k", 0, 1000, correlation_id=1)
        event.stats[0].int64_value, event.stats[0].uint64_value = 0, 2**64 - 1
    profile = xplane.read(file.write(tmp_path / "x"))
    assert profile.kernels["correlation"].to_list() == [None]
    assert profile.launches.is_empty()
