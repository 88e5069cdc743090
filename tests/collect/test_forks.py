"""Forks while a thread is inside a critical section of the recorder or the client: no child waits for ever."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from recorded import client, environment, python, rows, while_held

from annot import native
from annot.read.recording.export import assemble

FORKS = pytest.mark.parametrize("times", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.simulation])])


@FORKS
def test_forks_while_threads_record(tmp_path: Path, times: int) -> None:
    """Children of forks during events, names and new chunks of other threads record their own ranges."""
    words = [client(), "domain", "d", "ranges", "30", "here", "forks", str(times)]
    environ = environment(tmp_path / "parts") | while_held("_recorder", tmp_path / "held")
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert int((tmp_path / "held").read_text()) > times / 2
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    assert (recording.processes, recording.lost) == (times + 1, 0)
    assert sum(row.text == "thread 7" for row in rows(tmp_path / "out.sqlite", "push")) == 30 * times


@pytest.mark.skipif(native.emitter() is None, reason="the C parts are not built or switched off")
@FORKS
def test_forks_while_a_thread_prepares_events(tmp_path: Path, times: int) -> None:
    """A thread without the GIL, as TensorFlow's, prepares events during each fork. Children prepare and emit events."""
    done = python(tmp_path, f"""
import ctypes, os, signal, threading
from annot import native, record
emitter = native.emitter()
start, end = emitter.range_functions()
START = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))(start)
END = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)(end)
stop, ready = threading.Event(), threading.Event()

def prepare():
    ident = ctypes.c_uint64()
    while not stop.is_set():
        events = [emitter.Event(f"operation {{i}}", "annot") for i in range(20)]
        for event in events:
            END(id(event), START(id(event), ctypes.byref(ident)), ident)
        ready.set()

stuck = 0
with record("run.sqlite"):
    thread = threading.Thread(target=prepare)
    thread.start()
    ready.wait()
    for number in range({times}):
        event = emitter.Event(f"child {{number}}", "annot")
        child = os.fork()
        if not child:
            signal.alarm(20)
            emitter.push(event)
            emitter.pop()
            os._exit(0)
        stuck += os.waitpid(child, 0)[1] != 0
        if stuck == 2:
            break
    stop.set()
    thread.join()
print(stuck)
""", while_held("_emit", tmp_path / "held"))  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert int((tmp_path / "held").read_text()) > times / 2
    texts = {row.text for row in rows(tmp_path / "run.sqlite", "push")}
    assert texts == {f"child {number}" for number in range(times)}
