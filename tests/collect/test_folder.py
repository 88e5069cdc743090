"""What `--force` and `force=True` remove: recordings of annot that nobody writes to, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ANNOT, annot, needs_recorder, write_script

from annot import AnnotError
from annot.collect.parts_folder import LOCK, PartsFolder

WAITS = "print('ready', flush=True)\nsys.stdin.read()\n"


def taken(out: Path) -> str:
    """Return why the folder of a profile cannot be taken over."""
    with pytest.raises(AnnotError) as caught:
        PartsFolder(out, force=True)
    return str(caught.value)


def leave(out: Path, *names: str) -> Path:
    """Make the folder of a recording that was killed."""
    folder = PartsFolder(out, force=False)
    for name in names:
        (folder.path / name).write_text("old")
    os.close(folder._lock)
    return folder.path


@needs_recorder
@pytest.mark.parametrize("content", [["thesis.txt"], ["1-0.part"], []])
def test_folder_of_the_user_stays(tmp_path: Path, content: list[str]) -> None:
    """A folder that annot did not make stays, whatever is in it, and the command does not run."""
    parts = tmp_path / "data.parts"
    parts.mkdir()
    for name in content:
        (parts / name).write_text("precious")
    done = annot("run", "--collector", "recorder", "--force", "-o", "data", "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"annot: error: {parts} exists, but annot did not create it: move it, or use another profile name\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["data.parts"]
    assert [path.read_text() for path in parts.iterdir()] == ["precious"] * len(content)


def test_file_of_the_user_in_a_recording_stays(tmp_path: Path) -> None:
    """A killed recording to which the user added a file is refused, and keeps all of its files."""
    parts = leave(tmp_path / "run", "1-0.part", "notes.txt")
    assert taken(tmp_path / "run").endswith(
        "contains notes.txt, which annot did not write: move it, or use another profile name"
    )
    assert {path.name for path in parts.iterdir()} == {"1-0.part", "notes.txt", LOCK}


def test_killed_recording_is_taken_over(tmp_path: Path) -> None:
    """Everything that collectors write goes; the folder is the new recording's, and goes with it."""
    names = (
        "1-0.part",
        "report.nsys-rep",
        "report.qdstrm",
        "report.sqlite",
        "nsys.log",
        "trace.json.gz",
        "program.json",
    )
    parts = leave(tmp_path / "run", *names)
    folder = PartsFolder(tmp_path / "run", force=True)
    assert [path.name for path in parts.iterdir()] == [LOCK]
    assert "is in use by process" in taken(tmp_path / "run")
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_file_that_the_command_wrote_beside_the_recording_stays(tmp_path: Path) -> None:
    """At the end of a recording its folder goes, unless the command put something there."""
    folder = PartsFolder(tmp_path / "run", force=False)
    (folder.path / "checkpoint.pt").write_text("precious")
    (folder.path / "1-0.part").touch()
    folder.remove()
    assert [path.name for path in folder.path.iterdir()] == ["checkpoint.pt"]


def test_link_is_not_followed(tmp_path: Path) -> None:
    """A link in the place of the lock file, or of the folder, removes nothing where it leads."""
    parts = leave(tmp_path / "other", "1-0.part")
    (tmp_path / "run.parts").mkdir()
    (tmp_path / "run.parts" / LOCK).symlink_to(parts / LOCK)
    assert "annot did not create it" in taken(tmp_path / "run")
    (tmp_path / "linked.parts").symlink_to(tmp_path / "missing")
    assert "annot did not create it" in taken(tmp_path / "linked")
    assert (parts / "1-0.part").exists()


@needs_recorder
@pytest.mark.parametrize("killed", [False, True], ids=["annot run lives", "annot run was killed"])
def test_live_recording_is_not_taken_over(tmp_path: Path, killed: bool) -> None:
    """While annot run is at work, and while a command that outlives it records, --force stops with a sentence."""
    script = write_script(tmp_path, WAITS)
    words = ["run", "--collector", "recorder", "-o", "out.sqlite", "--", sys.executable, str(script)]
    again = ["run", "--collector", "recorder", "--no-report", "--force", "-o", "out.sqlite", "--", "true"]
    with subprocess.Popen(
        [*ANNOT, *words], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as first:
        assert first.stdout.readline() == b"ready\n"
        if killed:
            os.kill(first.pid, signal.SIGKILL)
            os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        done = annot(*again, cwd=tmp_path)
        assert done.returncode == 1
        said = "is in use by a recorded process that still runs" if killed else f"is in use by process {first.pid}"
        assert said in done.stderr.decode()
        assert list((tmp_path / "out.sqlite.parts").glob("*.part"))
        first.stdin.close()
        assert first.stdout.read() == b""  # the script has ended, which annot may not have
        if not killed:
            assert first.wait(60) == 0
    if not killed:
        assert (tmp_path / "out.sqlite").exists()
    assert annot(*again, cwd=tmp_path).returncode == 0
    assert not (tmp_path / "out.sqlite.parts").exists()


@needs_recorder
@pytest.mark.parametrize("verb", ["run", "record"])
def test_device_is_not_replaced(tmp_path: Path, verb: str) -> None:
    """A pipe or device in the place of the profile stays what it is."""
    os.mkfifo(tmp_path / "pipe")
    if verb == "run":
        done = annot("run", "--collector", "recorder", "--force", "-o", "pipe", "--", "true", cwd=tmp_path)
    else:
        code = "from annot import record\nwith record('pipe', force=True): pass"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
    assert "pipe is not a regular file" in done.stderr.decode()
    assert (tmp_path / "pipe").is_fifo()
