"""Thousands of damaged files of every format end in a result that adds up or in one sentence that names the file.

`fuzz_worker` runs them in a process of its own, whose time and memory are bounded. `make test` runs a tenth of them,
``ANNOT_FUZZ=100`` a hundred times as many as `make test-all`. The line of a failure names the case, which the worker
can run alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import fuzz_kineto
import fuzz_sqlite
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import TIMES, examples
from shared_data import shared

import annot
from annot import AnnotError, native
from annot.util.installed_tools import find_nsys

SUPPORT = Path(__file__).parents[1] / "support"

CASES = {
    "nsys": 120, "nvprof": 120, "kineto": 500, "ncu_csv": 180, "nvprof_csv": 200, "xplane": 300, "nsys_real": 20,
    "kineto_real": 40, "parts": 12, "parquet": 4, "ncu_rep": 6, "nsys_rep": 2, "bomb": 4,
    "proton": 200, "pftrace": 200,
}  # fmt: skip
EXAMPLES = 250
QUICK = ("nsys", "parts")
NEVER_READ = ("nsys_rep", "bomb")
NEVER_REFUSED = ("parts",)
"""Of a recording that is damaged, what is whole is read."""


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in CASES])
def test_damaged_files(kind: str) -> None:
    """No case ends in a traceback, takes too much time or memory, changes its folder, or reads differently twice."""
    if kind == "parts" and native.recorder_library() is None:
        pytest.skip("the recorder was not built")
    if kind == "nsys_rep" and find_nsys() is None:
        pytest.skip("Nsight Systems is not installed")
    for name in {"nsys_real": fuzz_sqlite.REAL, "kineto_real": fuzz_kineto.REAL}.get(kind, ()):
        shared(name)
    count = max(min(4, CASES[kind]), int(CASES[kind] * TIMES))
    result = _python(str(SUPPORT / "fuzz_worker.py"), kind, "0", str(count))
    said = result.stdout.replace("\r", "\n").splitlines()
    problems = [line for line in said if not line.startswith(("case ", "{"))]
    assert result.returncode == 0, "\n".join([*said[-1:], *problems[:60], result.stderr[-3000:]])
    outcomes = json.loads(said[-1])[kind]
    assert outcomes["read"] + outcomes["refused"] == count
    assert (outcomes["read"] == 0) == (kind in NEVER_READ)
    assert outcomes["refused"] or kind in NEVER_REFUSED


def test_there_are_enough_cases() -> None:
    """`make test-all` runs at least 2,000."""
    assert sum(CASES.values()) + 2 * EXAMPLES >= 2000


WATCHED = """
import random, sys
from pathlib import Path
from fuzz_worker import FORMATS
import annot
from annot.attribution import attribute, by_layer, summarize

FORBIDDEN = ("exec", "compile", "pickle.find_class", "marshal.load", "marshal.loads", "import", "subprocess.Popen",
             "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "socket.connect", "ctypes.dlopen",
             "os.remove", "os.rename", "os.mkdir", "os.truncate", "os.chmod", "shutil.rmtree")
seen, watching = [], False

def watch(event, args):
    if watching and (event in FORBIDDEN or event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")):
        seen.append((event, str(args)[:200]))

def read(path):
    global watching
    watching = True
    try:
        profile = annot.load(path)
        summarize(attribution := attribute(profile)), by_layer(attribution)
    except annot.AnnotError:
        pass
    finally:
        watching = False

sys.addaudithook(watch)
folder, kind, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(30 + count):  # the first ones import what is needed
    path = folder / f"{number}.x"
    FORMATS[kind](path, random.Random(f"watched {number}"))
    read(path)
    if number < 30:
        seen.clear()
assert not seen, seen
watching = True
compile("1", "", "eval")
assert seen
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nsys", "nvprof", "kineto", "ncu_csv", "nvprof_csv", "xplane", "proton"])
def test_reading_runs_nothing(kind: str, tmp_path: Path) -> None:
    """Reading compiles, executes, unpickles, starts and writes nothing."""
    result = _python("-c", WATCHED, str(tmp_path), kind, str(examples(30)))
    assert result.returncode == 0, result.stderr[-3000:]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(min_value=-(2**70), max_value=2**70) | st.text()
    | st.floats() | st.sampled_from(["X", "cpu_op", "kernel", "cuda_runtime", "python_function", "fwdbwd", "s", "f"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args")
EVENT = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, ANYTHING))
SPAN = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "user_annotation"])},
    optional=dict.fromkeys(KEYS[2:], ANYTHING),
)
MAGIC = (
    b"",
    b"SQLite format 3\0",
    b"NVR\0",
    b'{"traceEvents":[',
    b"\x1f\x8b",
    b"\x0a\x10\x12\x09/host:CPU",
    b"==1==",
    b'[{"frame":{',
    b'[{"frame":{"name":"a"},"metrics":{',
    b"\x91\x81\xa5frame",
)


@settings(deadline=None, database=None, derandomize=True, max_examples=examples(EXAMPLES))
@given(st.lists(EVENT | SPAN | ANYTHING, max_size=6), st.dictionaries(st.text(max_size=3), ANYTHING, max_size=2))
def test_any_values_in_a_trace(events: list[object], top: dict[str, object]) -> None:
    """Whatever JSON a trace consists of, it adds up or is refused."""
    _adds_up(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}).encode())


@settings(deadline=None, database=None, derandomize=True, max_examples=examples(EXAMPLES))
@given(st.sampled_from(MAGIC), st.binary(max_size=300))
def test_any_bytes_after_a_magic(magic: bytes, rest: bytes) -> None:
    """What begins as a profile does is refused, unless it is one."""
    _adds_up(magic + rest)


def _adds_up(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.x"
        path.write_bytes(content)
        try:
            profile = annot.load(path)
            layers = annot.correlate(profile)
        except AnnotError as error:
            said = str(error)
        else:
            lengths = [(work["end"] - work["start"]).clip(0).sum() for work in (profile.kernels, profile.copies)]
            assert layers["gpu_self_ns"].sum() == sum(lengths)
            return
    assert "case.x" in said
    assert "\n" not in said


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "POLARS_MAX_THREADS": "1"}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
