"""Systems that refuse the recorder what it needs: mappings, disk space, files, paths, thread keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from recorded import client, environment, python, record_client, recorder, rows, run

from annot import native
from annot.read.recording.export import assemble
from annot.read.recording.files import read_part, retire

SKIPPED = 77
"""Status of the client if it lacks the right to restrict itself."""


def run_restricted(folder: Path, *words: object) -> None:
    """Run the client under the recorder. Skip the test if the client cannot restrict itself."""
    done = run(folder / "parts", *words)
    if done.returncode == SKIPPED:
        pytest.skip(f"needs the right to {words[-1]}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("what", ["mmap", "fallocate"])
def test_writes_where_the_kernel_refuses(tmp_path: Path, what: str) -> None:
    """Without shared mappings, or without fallocate, the recorder writes the same events of four threads."""
    words = ("domain", "d", "name-category", 1, "c", "ranges", 3000, "here", "threads", 3, "payload", 1, 5)
    run_restricted(tmp_path, "refuse", what, *words, "push", "open")
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    texts = Counter(row.text for row in rows(tmp_path / "out.sqlite", "push"))
    others = {"thread 1": 3000, "inner 1": 1500, "thread 2": 3000, "inner 2": 1500, "open": 1}
    assert texts == {"thread 0": 6000, "inner 0": 3000, **others}
    assert [row.text for row in rows(tmp_path / "out.sqlite", "category")] == ["c"]
    assert (recording.open_ranges, recording.unmatched_pops, recording.lost, recording.notes) == (1, 0, 0, [])
    (part,) = (tmp_path / "parts").iterdir()
    assert read_part(part).stopped > 0


def test_killed_without_mappings(tmp_path: Path) -> None:
    """Events are in the file before the process is killed, also without shared mappings."""
    words = ["refuse", "mmap", "domain", "d", "ranges", "500", "here", "push-registered", "open", "wait"]
    with subprocess.Popen(
        [client(), *words], env=environment(tmp_path / "parts"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        line = b" "
        while line and b"ready" not in line:
            line = process.stdout.readline()
        process.kill()
    if process.returncode == SKIPPED:
        pytest.skip("needs the right to use seccomp")
    assert process.returncode == -signal.SIGKILL
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    texts = Counter(row.text for row in rows(tmp_path / "out.sqlite", "push"))
    assert texts == {"thread 0": 500, "inner 0": 250, "open": 1}
    assert (recording.open_ranges, recording.lost) == (1, 0)


def test_forks_and_sessions_without_mappings(tmp_path: Path) -> None:
    """Children write their own files; a second recording has only its own events."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    done = run(
        None, "refuse", "mmap", "record", tmp_path / "one", "domain", "d", "push", "first",
        "fork", "push", "child", "pop", "leave", "joined", "pop", "stop", "push", "between", "pop",
        "record", tmp_path / "two", "push", "second", "pop",
    )  # fmt: skip
    if done.returncode == SKIPPED:
        pytest.skip("needs the right to use seccomp")
    found = {}
    for name in ("one", "two"):
        recording = assemble(tmp_path / name, tmp_path / f"{name}.sqlite")
        found[name] = [row.text for row in rows(tmp_path / f"{name}.sqlite", "push")]
        assert (recording.open_ranges, recording.unmatched_pops) == (0, 0)
    assert found == {"one": ["first", "child"], "two": ["second"]}


def test_retired_part_without_mappings(tmp_path: Path) -> None:
    """A process that writes without mappings stops too when the reader retires its file."""
    words = ["refuse", "mmap", "push-a", "early", "wait", "ranges", "2000", "here"]
    parts = tmp_path / "parts"
    with subprocess.Popen(
        [client(), *words], env=environment(parts), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        line = b" "
        while line and b"ready" not in line:
            line = process.stdout.readline()
        for path in parts.iterdir():
            retire(path)
        process.communicate(b"\n", timeout=60)
    if process.returncode == SKIPPED:
        pytest.skip("needs the right to use seccomp")
    assert assemble(parts, tmp_path / "out.sqlite").ranges < 2000


@pytest.mark.parametrize("how", ["chroot", "setuid", "refuse", "close-files"])
def test_files_that_can_no_longer_be_opened(tmp_path: Path, how: str) -> None:
    """After chroot, setuid or a sandbox, the recorder goes on with the file that it has open."""
    if how in ("chroot", "setuid") and os.geteuid():
        pytest.skip(f"needs the right to {how}")
    tmp_path.chmod(0o700)
    (tmp_path / "jail").mkdir()
    words = {"chroot": [tmp_path / "jail"], "setuid": [65534], "refuse": ["open"], "close-files": []}[how]
    run_restricted(tmp_path, "domain", "d", "push", "early", "pop", how, *words, "ranges", 2000, "here")
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    assert (recording.ranges, recording.lost, recording.open_ranges) == (3001, 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to chroot")
def test_processes_forked_after_chroot(tmp_path: Path) -> None:
    """A worker whose root is another folder has a file of its own in the folder of the recording."""
    (tmp_path / "jail").mkdir()
    words = ("domain", "d", "push", "early", "pop", "chroot", tmp_path / "jail", "fork", "ranges", 2000)
    run_restricted(tmp_path, *words, "here")
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    assert (len(list((tmp_path / "parts").glob("*.part"))), recording.ranges, recording.lost) == (2, 3001, 0)


def test_files_of_the_program_keep_their_numbers(tmp_path: Path) -> None:
    """The descriptor of the recorder is none of the lowest, which programs expect for their own files."""
    code = "import os\nfrom annot import record, trace\nfirst = os.open('/', 0)\nos.close(first)\n"
    code += "with record('run.sqlite'), trace('x'):\n    lock, second = os.open('/', 0), os.open('/', 0)\n"
    done = python(tmp_path, code + "print(lock - first, second - lock)")
    assert (done.stdout, done.stderr) == ("1 1\n", "")  # `first` is the lock of the folder


def test_process_without_free_keys(tmp_path: Path) -> None:
    """The recorder changes no value of another library where no thread key is free, and records all threads."""
    words = ("use-keys", "push-a", "x", "pop-default", "domain", "d", "ranges", 20, "short-threads", 20, "check-keys")
    done = run(tmp_path / "parts", *words)
    assert (done.returncode, done.stdout.split()[-1]) == (0, "0")
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    assert (recording.ranges, recording.threads, recording.lost) == (1 + 20 * 30, 21, 0)


def test_annot_without_free_keys(tmp_path: Path) -> None:
    """annot uses its Python client where no thread key is free."""
    done = python(tmp_path, """
import ctypes
libc, key = ctypes.CDLL(None), ctypes.c_uint()
while libc.pthread_key_create(ctypes.byref(key), None) == 0:
    pass
from annot import trace
from annot.emit import client
with trace("x"):
    print(client.IS_NATIVE)
""", {**environment(tmp_path / "parts"), "NVTX_INJECTION64_PATH": str(native.recorder_library())})  # fmt: skip
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert assemble(tmp_path / "parts", tmp_path / "out.sqlite").ranges == 1


def annot_run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command under `annot run` with the recorder."""
    recorder()
    words = [sys.executable, "-m", "annot", "run", "--collector", "recorder", "-o", "run.sqlite", "--", *command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_annot_run_says_why_nothing_was_recorded(tmp_path: Path) -> None:
    """A limit on the size of files leaves room for the header only; the message has the folder and the error."""
    shell = f"ulimit -f 8; exec {client()} push-a x pop-default"
    done = annot_run(tmp_path, "bash", "-c", shell)
    assert done.returncode == 0
    said = f"no ranges were recorded: 2 events could not be written to {tmp_path / 'run.sqlite.parts'}: File too large."
    assert done.stderr.splitlines()[-1] == f"annot: error: {said}"
    assert not list(tmp_path.iterdir())


def test_process_that_cannot_make_its_file_warns(tmp_path: Path) -> None:
    """A Python process that may write no file says that it is not recorded, and runs as ever."""
    script = "import annot, resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    script += "with annot.trace('x'):\n    print('ran')"
    done = annot_run(tmp_path, sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    parts = tmp_path / "run.sqlite.parts"
    assert f"annot's recorder cannot write to {parts}: File too large. This process is not recorded" in done.stderr


def test_full_disk_without_mappings(tmp_path: Path) -> None:
    """Events that cannot be written are counted exactly, with the reason, and the program goes on."""
    words = ["refuse", "mmap", "domain", "d", "ranges", 20_000, "here", "push", "late", "pop"]
    shell = ["bash", "-c", f'ulimit -f 256; exec {client()} "$@"', "bash", *map(str, words)]
    done = subprocess.run(shell, env=environment(tmp_path / "parts"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    written = 2 * (recording.ranges - recording.open_ranges) + recording.open_ranges
    assert 0 < recording.ranges < 30_000
    assert (recording.lost, recording.reason) == (2 * 30_001 - written, "File too large")


def test_events_are_recorded_on_their_threads(tmp_path: Path) -> None:
    """Without mappings, threads that end pass the rest of their chunks on."""
    events, recording = record_client(tmp_path, "refuse", "mmap", "domain", "d", "ranges", 2, "short-threads", 100)
    assert Counter(row.text for row in events if row.kind == "push") == {
        **{f"thread {i}": 2 for i in range(100)}, **{f"inner {i}": 1 for i in range(100)},
    }  # fmt: skip
    assert (recording.threads, recording.lost) == (100, 0)
