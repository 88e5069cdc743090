"""What recordings leave in the process: no file, no mapping, no block of the disk, whatever else is running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from matrices import every_third
from recorded import python, recorder, rows

PROBES = """
import os, re, threading
from pathlib import Path
import annot
from annot import record
from annot.emit import client

annot.enable()
TEXTS = [client.event(f"layer {i}") for i in range(100)]

def work(count=1):
    for _ in range(count):
        for event in TEXTS:
            client.push(event)
            client.pop()

def parts(pid="self"):
    "The recorder's files that a process has mapped."
    return re.findall(r"/\\S*\\.part\\b", Path(f"/proc/{pid}/maps").read_text())

def state():
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists())
    return sorted(line.split()[-1] for line in maps if "/" in line), files, dict(os.environ)
"""


def test_recordings_leave_the_process_as_it_was(tmp_path: Path) -> None:
    """After the first recording, twenty more change neither mapped nor open files, nor the environment."""
    result = python(tmp_path, PROBES + """
def cell():
    with record("cell.sqlite", force=True):
        work(50)
cell()
before = state()
for _ in range(20):
    cell()
assert state() == before
assert os.listdir() == ["cell.sqlite"]
assert not parts()
""")  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


def test_idle_threads_hold_no_file(tmp_path: Path) -> None:
    """Threads that recorded and wait, and those that record later, leave nothing mapped."""
    result = python(tmp_path, PROBES + """
barrier = threading.Barrier(5)
def turn():
    barrier.wait()
    barrier.wait()
def recorded():
    for _ in range(3):
        barrier.wait()
        work(20)
        barrier.wait()
threads = [threading.Thread(target=recorded, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for number in (1, 2):
    with record(f"{number}.sqlite") as block:
        turn()
        assert parts()
    assert block.recording.threads == 4, block.recording
    assert not parts()
turn()
for thread in threads:
    thread.join()
assert not parts()
""")  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    for number in (1, 2):
        assert len(rows(tmp_path / f"{number}.sqlite", "push")) == 4 * 20 * 100


def test_children_that_outlive_the_block(tmp_path: Path) -> None:
    """A child that was forked inside a block, and goes on after it, lets go of its file, and can record its own."""
    result = python(tmp_path, PROBES + """
go, ready = os.pipe(), os.pipe()
with record("parent.sqlite"):
    work()
    child = os.fork()
    if not child:
        work(50)
        assert parts()
        os.write(ready[1], b"x")
    else:
        os.read(ready[0], 1)
if child:
    os.write(go[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    assert not parts()
else:
    os.read(go[0], 1)
    work(100)
    assert not parts()
    with record("child.sqlite") as block:
        work()
    assert block.recording.ranges == 100
    os._exit(0)
""")  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child.sqlite", "parent.sqlite"]
    assert len(rows(tmp_path / "parent.sqlite", "push")) == 100 + 50 * 100


def test_each_recording_is_as_small_as_the_first(tmp_path: Path) -> None:
    """What a recording writes does not grow with the number of recordings before it."""
    result = python(tmp_path, PROBES + """
def size():
    with record("cell.sqlite", force=True):
        work()
        return sum(path.stat().st_size for path in Path("cell.sqlite.parts").glob("*.part"))
assert len({size() for _ in range(10)}) == 1
""")  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


def test_program_that_closes_every_file(tmp_path: Path) -> None:
    """A program that closes all its files inside a block, and opens others, keeps those that it opened."""
    result = python(tmp_path, PROBES + """
with record("run.sqlite") as block:
    work()
    os.closerange(3, 100)
    mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    work()
for file in mine:
    os.fstat(file)
assert block.recording.ranges == 200
""")  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("call", every_third(["fork", "_Fork", "syscall"]))
def test_children_that_python_does_not_know_of(tmp_path: Path, call: str) -> None:
    """Children of the system call itself, of libc's _Fork and of libc's fork have files of their own."""
    recorder()
    (tmp_path / "script.py").write_text(f"""
import ctypes, os, platform
from annot import trace
libc = ctypes.CDLL(None)
CLONE = {{"x86_64": 56, "aarch64": 220}}[platform.machine()]
for _ in range(3):
    with trace("parent"):
        pass
child = libc.syscall(CLONE, 17, 0, 0, 0, 0) if {call!r} == "syscall" else getattr(libc, {call!r})()
for _ in range(5000):
    with trace("parent" if child else "child"):
        pass
if not child:
    os._exit(0)
os.waitpid(child, 0)
""")
    command = [sys.executable, "-m", "annot", "run", "--collector", "recorder", "--no-report", "-o", "run.sqlite"]
    done = subprocess.run([*command, "--", sys.executable, "script.py"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [(row.text, row.pid) for row in rows(tmp_path / "run.sqlite", "push")]
    assert sorted(text for text, _ in found) == ["child"] * 5000 + ["parent"] * 5003
    assert len(set(found)) == 2
    assert len({pid for _, pid in found}) == 2
