"""The NVTX client and the loops over tables in threads, under ThreadSanitizer.

The interpreter and the frameworks are not instrumented: only accesses of annot's C code are checked. Locks, the global
interpreter lock among them, are seen. polars does not load under ThreadSanitizer.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from recorded import nvtx_headers
from sanitized import SANITIZED, THREAD, run_sanitized, sanitized_package

from annot import native
from annot.read.recording.export import assemble

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("gcc") or not nvtx_headers(), reason="needs gcc and nvidia-nvtx"),
    pytest.mark.skipif(native.emitter() is None, reason="the C parts are not built or switched off"),
]

LOOP = """
#include <sched.h>
#include <stdint.h>
void emit_all(uint32_t (*start)(void *, uint64_t *), void (*end)(void *, uint32_t, uint64_t), void **events, int count,
              uint64_t *ident) {
    static int calls; /* two threads begin together */
    int call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&calls, __ATOMIC_RELAXED) < call + call % 2)
        sched_yield();
    for (int i = 0; i < count; i++) {
        uint32_t started = start(events[i], ident);
        end(events[i], started, *ident);
    }
}
"""
CLIENT = """
import ctypes, threading
from annot import native
from annot.emit import client
emitter = native.emitter()
start, end = emitter.range_functions()
emit_all = ctypes.CDLL("./loop.so").emit_all
emit_all.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
events = [emitter.Event(f"event {i}", f"domain {i % 7}", payload=i % 2 or None) for i in range(300)]
theirs = [emitter.Event(f"theirs {i}", f"domain {i % 7}") for i in range(300)]
addresses = (ctypes.c_void_p * 600)(*map(id, theirs + events))
go = threading.Barrier(4)

def without_lock():
    ident = ctypes.c_uint64()
    go.wait()
    for _ in range(5):
        emit_all(start, end, addresses, 600, ctypes.byref(ident))

def with_lock():
    go.wait()
    for _ in range(5):
        for event in events:
            emitter.push(event)
            emitter.mark(event)
            emitter.pop()
            emitter.end(emitter.start(event))

for _ in range(3):
    client.reattach()
    threads = [threading.Thread(target=work) for work in 2 * (without_lock, with_lock)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    client.release()
print("done")
"""

MODULES = """
import threading, torch
from annot import emit_ranges, trace
models = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)) for _ in range(3)]

@trace
def step(model):
    model(torch.ones(2, 4)).sum().backward()

def train(model):
    for _ in range(10):
        step(model)
        model(torch.ones(3, 4))

for _ in range(3):
    with emit_ranges(torch.nn.ModuleList(models)):
        threads = [threading.Thread(target=train, args=(model,)) for model in 2 * models]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
print("done")
"""

TABLES = """
import random, sqlite3, threading
import pyarrow as pa
from annot import native
tables = native.tables()
N = 20_000
random.seed(1)
int32, int64 = pa.int32(), pa.int64()
def column(values, kind=None):
    return pa.chunked_array([pa.array(values, kind)])

thread = column([i % 8 for i in range(N)], int32)
start = column([i // 8 * 10 for i in range(N)], int64)
end = column([i // 8 * 10 + random.randint(0, 9) for i in range(N)], int64)
chain = column([i - 1 if i % 5 else -1 for i in range(N)], int32)
key = column([i % 7 for i in range(N)], int32)
above = column([-1, 0, 0, 1, 1, 2, 2], int32)
no = column([False] * N)
with sqlite3.connect("t.sqlite") as file:
    file.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT, value INTEGER)")
    file.executemany("INSERT INTO t VALUES (?, ?, ?)", [(i, f"text {i % 50}", i * i) for i in range(N)])
root = file.execute("SELECT rootpage FROM sqlite_master").fetchone()[0]
file.close()
tree_order = sorted(range(N), key=lambda i: (i % 8, i))
sorted_thread, sorted_start, sorted_end = (
    column(values.combine_chunks().take(pa.array(tree_order))) for values in (thread, start, end)
)
parent, depth = (column(pa.array(values)) for values in tables.parents(sorted_thread, sorted_end))
tree = tables.Tree(sorted_thread, sorted_start, sorted_end, parent)
shared = tables.LaunchTable()
shared.put(thread, start, key, key)

def scan():
    columns = [("id", -1, "alias"), ("text", 1, "text"), ("value", 2, "integer")]
    return [pa.array(batch[name]) for batch in tables.Scan("t.sqlite", root, columns, 1000) for name in ("id", "value")]

def work():
    busy = tables.Busy(above, column(range(7), int32), 7)
    busy.add(key, thread, start, end)
    results = [
        *tables.parents(sorted_thread, sorted_end), *tables.paths(chain, key),
        tables.crossing(thread, start, end, key, no), tree.owners(thread, start, end), *shared.get(thread, start),
        *busy.result(),
    ]
    return [pa.array(values) for values in results] + scan()

expected = work()
wrong = []
go = threading.Barrier(4)
def compare():
    go.wait()
    for _ in range(3):
        if work() != expected:
            wrong.append(1)
threads = [threading.Thread(target=compare) for _ in range(4)]
for thread_ in threads: thread_.start()
for thread_ in threads: thread_.join()
print("done" if not wrong else "different")
"""


def recorded_into(parts: Path) -> dict[str, str]:
    """Return the environment of a process with the sanitized recorder. Compile the loop of threads without the GIL."""
    parts.mkdir()
    source, loop = parts.with_name("loop.c"), parts.with_name("loop.so")
    source.write_text(LOOP)
    subprocess.run(["gcc", "-fsanitize=thread", "-g", "-shared", "-fPIC", source, "-o", loop], check=True)
    package = sanitized_package(THREAD, SANITIZED)
    (recorder,) = Path(package["PYTHONPATH"]).rglob("_recorder*.so")
    return {"NVTX_INJECTION64_PATH": str(recorder), "ANNOT_RECORD_DIR": str(parts)}


@pytest.mark.parametrize(("program", "ranges"), [(CLIENT, 36_000), (MODULES, None)], ids=["client", "PyTorch"])
def test_threads_that_emit(tmp_path: Path, program: str, ranges: int | None) -> None:
    """Threads with and without the GIL prepare and emit the same events; threads call and train modules."""
    if program is MODULES:
        pytest.importorskip("torch")
    assert run_sanitized(program, tmp_path, THREAD, **recorded_into(tmp_path / "parts")) == "done\n"
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    assert (recording.lost, recording.open_ranges, recording.unmatched_pops) == (0, 0, 0)
    assert recording.ranges == ranges if ranges else recording.ranges > 1000


def test_threads_that_read_tables(tmp_path: Path) -> None:
    """Threads that share columns, trees and files get the results of a single thread."""
    pytest.importorskip("pyarrow")
    assert run_sanitized(TABLES, tmp_path, THREAD) == "done\n"


def test_races_are_found(tmp_path: Path) -> None:
    """Threads that have the client write the numbers of their ranges to one place: the sanitizer is at work."""
    assert CLIENT.count("    ident = ctypes.c_uint64()\n") == 1
    program = CLIENT.replace("    ident = ctypes.c_uint64()\n", "").replace("go =", "ident = ctypes.c_uint64()\ngo =")
    with pytest.raises(AssertionError, match=r"data race .*client\.c.* in start_range"):
        run_sanitized(program, tmp_path, THREAD, **recorded_into(tmp_path / "parts"))
