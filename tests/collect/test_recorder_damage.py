"""Full disks, and files that are cut or overwritten."""

from __future__ import annotations

import random
import resource
import subprocess
from pathlib import Path

import pytest
from recorded import client, environment, rows, run

from annot import AnnotError
from annot.read.recording.events import Tally, read_events
from annot.read.recording.export import assemble
from annot.read.recording.files import UnreadableError, read_part
from annot.read.text import counted

pytest_plugins = ["small_disks"]


def test_file_size_limit(tmp_path: Path) -> None:
    """Where no more may be written, the program goes on as ever, and what was lost is counted."""
    words = ["ranges", 20_000, "here", "push-a", "late", "pop-default"]
    alone = subprocess.run([client(), *map(str, words)], capture_output=True, text=True, check=True)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    recorded = run(tmp_path / "parts", *words, preexec_fn=limit)
    assert (recorded.returncode, recorded.stderr) == (0, "")
    assert len(recorded.stdout.split()) == len(alone.stdout.split())
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    written = 2 * (recording.ranges - recording.open_ranges) + recording.open_ranges
    assert 0 < recording.ranges < 30_000
    assert recording.lost == 2 * 30_001 - written
    assert all(path.stat().st_size <= 200_000 for path in (tmp_path / "parts").iterdir())


def test_full_disk_that_gets_space_again(small_disk: Path, tmp_path: Path) -> None:
    """After a full disk recording goes on; ranges around the gap keep their ends, and no wrong ends are made."""
    words = ["push-a", "outer", "push-a", "ends in the gap", "ranges", "20000", "here", "pop-default", "wait"]
    words += ["ranges", "2000", "here", "push-a", "after", "pop-default", "pop-default"]
    parts = small_disk / "parts"
    with subprocess.Popen(
        [client(), *words], env=environment(parts), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        while b"ready" not in process.stdout.readline():
            pass
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
    recording = assemble(parts, tmp_path / "out.sqlite")
    ranges = {row.text: row for row in rows(tmp_path / "out.sqlite", "push")}
    outer, lost, after = ranges["outer"], ranges["ends in the gap"], ranges["after"]
    assert outer.start < lost.start < lost.end <= after.start < after.end <= outer.end
    assert recording.lost > 0
    # The gap may have begun, and ended, inside some of the many.
    assert 1 <= recording.open_ranges <= 3
    lost_ends = counted(recording.open_ranges, "range")
    assert f"The recorder lost the end of {lost_ends}. annot uses the time when recording resumed." in recording.notes
    assert recording.unmatched_pops <= 2


def test_disk_full_from_the_start(small_disk: Path, tmp_path: Path) -> None:
    """A process that cannot even begin its file runs as ever."""
    parts = small_disk / "parts"
    parts.mkdir()
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))
    result = run(parts, "push-a", "x", "pop-default")
    assert (result.returncode, result.stdout) == (0, "0\n0\n")
    assert assemble(parts, tmp_path / "out.sqlite").events == 0


def _recorded_file(folder: Path) -> Path:
    result = run(
        folder / "parts", "domain", "d", "name-category", 3, "c", "push", "outer", "push-registered", "inner", "pop",
        "payload", 3, 2.5, "start", "s", "mark", "m" * 40, "end", 0, "pop", "push-a", "open", "ranges", 3, "threads", 2,
    )  # fmt: skip
    assert result.returncode == 0
    (path,) = (folder / "parts").iterdir()
    return path


def _count(path: Path) -> int:
    tally = Tally()
    return sum(frame.height for frame in read_events(read_part(path), tally))


@pytest.mark.parametrize("stride", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_cut_anywhere(tmp_path: Path, stride: int) -> None:
    """A file that ends at any byte gives what is before that, and nothing is raised but that it is unreadable."""
    path = _recorded_file(tmp_path)
    whole = path.read_bytes()
    cut = tmp_path / "cut.part"
    sizes = [size for size in range(len(whole), -1, -1) if size < 64 or any(whole[max(size - 32, 0) : size])]
    previous = _count(path)
    assert previous == 13
    for size in [*sizes[:-1:stride], 0]:
        if 64 <= size < 4096 and size % 64:
            continue  # the program's name, which is only shown
        cut.write_bytes(whole[:size])
        try:
            count = _count(cut)
        except UnreadableError:
            count = 0
            assert size < 64
        assert count <= previous
        previous = count
    assert previous == 0


def test_overwritten_anywhere(tmp_path: Path) -> None:
    """Random damage gives a profile or one sentence, never anything else."""
    path = _recorded_file(tmp_path)
    whole = path.read_bytes()
    used = [position for position, byte in enumerate(whole) if byte]
    random_ = random.Random(7)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(random_.randint(1, 30)):
            damaged[random_.choice(used) + random_.randint(-3, 3)] = random_.randrange(256)
        path.write_bytes(damaged)
        said = path.name
        try:
            assemble(path.parent, tmp_path / "out.sqlite")
        except AnnotError as error:
            said = str(error)
        assert path.name in said


def test_nothing_readable(tmp_path: Path) -> None:
    """If no file can be read, one sentence names the folder and says why; a missing folder likewise."""
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "1-0.part").write_bytes(b"something else" * 1000)
    with pytest.raises(AnnotError, match=r"parts has no readable part of a recording: 1-0\.part .*did not write it"):
        assemble(parts, tmp_path / "out.sqlite")
    with pytest.raises(AnnotError, match="none cannot be read: No such file"):
        assemble(tmp_path / "none", tmp_path / "out.sqlite")
    assert not list(tmp_path.glob("*out*"))


def test_one_unreadable_among_others(tmp_path: Path) -> None:
    """A file that cannot be read is noted, and the others make the profile."""
    path = _recorded_file(tmp_path)
    (path.parent / "0-0.part").write_bytes(b"")
    recording = assemble(path.parent, tmp_path / "out.sqlite")
    assert recording.notes[0] == "0-0.part cannot be read: it is empty or truncated"
    assert recording.events == 13


def test_profile_cannot_be_written(tmp_path: Path) -> None:
    """Where the profile cannot be written, one sentence says so and nothing is left behind."""
    path = _recorded_file(tmp_path)
    with pytest.raises(AnnotError, match=r"out\.sqlite cannot be written"):
        assemble(path.parent, tmp_path / "no folder" / "out.sqlite")
    (tmp_path / "out.sqlite").mkdir()
    with pytest.raises(AnnotError, match=r"out\.sqlite cannot be written"):
        assemble(path.parent, tmp_path / "out.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.sqlite", "parts"]
