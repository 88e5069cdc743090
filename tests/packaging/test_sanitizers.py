"""The C parts under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: their tests and fuzzers, again.

They run in processes of their own: Python with a copy of annot whose C parts are compiled with the sanitizers, and the
C program of `recorded` with a recorder that is compiled as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from random_inputs import TIMES
from recorded import nvtx_headers
from sanitized import ADDRESS, SANITIZED, THREAD, run_tests, runtime, sanitized_package

RECORDER = tuple(f"collect/test_recorder_{name}" for name in ("calls", "processes", "damage", "refusals"))
IN_PYTHON = {
    "tables": ("read/test_native_scan", "attribution/test_column_ops"),
    "fuzzers": ("read/test_fuzz", "collect/test_recorder_damage"),
    "recorder": ("collect/test_recorder_python", "collect/test_recorder_leaks"),
    "ranges": ("emit/test_emit", "emit/test_trace", "emit/test_trace_async", "emit/test_loop"),
    "PyTorch": ("pytorch/test_forward", "pytorch/test_backward", "pytorch/test_ops", "pytorch/test_blocks"),
}

READ_IN_PYTHON = ("csv", "proton", "bomb", "xplane", "pftrace", "parquet", "nsys_rep")
"""Damaged files that no C code reads. C code gets numbers of such files in tables, here those of Kineto."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("gcc") or not nvtx_headers(), reason="needs gcc and nvidia-nvtx"),
]


@pytest.mark.parametrize("sanitizer", [ADDRESS, THREAD])
def test_recorder_of_a_c_program(sanitizer: str) -> None:
    """The recorder under threads, forks, sessions that begin and end, full disks and kills: no bad access, no race."""
    runtime("libtsan.so" if sanitizer == THREAD else "libasan.so")
    run_tests(RECORDER, ANNOT_TEST_SANITIZER=sanitizer)


@pytest.fixture(scope="module")
def sanitized() -> dict[str, str]:
    """A copy of annot with sanitized C parts; returns the environment in which Python runs it."""
    package = sanitized_package(ADDRESS, (*SANITIZED, "_tf_ops"))
    return {**package, "PYTHONMALLOC": "malloc"}  # pymalloc would hide use after free


@pytest.mark.parametrize("part", IN_PYTHON)
def test_part_in_python(sanitized: dict[str, str], part: str) -> None:
    """The quick tests and fuzzers of a part pass with sanitized C parts."""
    if part == "fuzzers":
        run_tests(IN_PYTHON[part], READ_IN_PYTHON, ANNOT_FUZZ="0.1", **sanitized)
    else:
        run_tests(IN_PYTHON[part], ANNOT_FUZZ=str(min(TIMES, 0.5)), **sanitized)


def test_sanitizers_find_what_is_wrong(sanitized: dict[str, str]) -> None:
    """Memory that is used after it was freed ends the process: the sanitizer is at work, in the C parts of annot."""
    code = (
        "import ctypes, annot.native as native\n"
        "assert native.emitter().__file__.startswith(PLACE)\n"
        "library = ctypes.CDLL(str(native.recorder_library()))\n"
        "library.annot_recorder_start(ctypes.c_void_p(1))\n"
    ).replace("PLACE", repr(sanitized["PYTHONPATH"]))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={**os.environ, **sanitized}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
