"""The C parts under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: their tests and fuzzers, again.

They run in processes of their own: Python with a copy of annot whose C parts are compiled with the sanitizers, and the
C program of `recorded` with a recorder that is compiled as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import nvtx_headers

ROOT = Path(__file__).parents[2]
ADDRESS = "address,undefined"
RECORDER = ("collect/test_recorder_calls", "collect/test_recorder_processes", "collect/test_recorder_damage")
IN_PYTHON = {
    "tables": ("read/test_native_scan", "attribution/test_column_ops"),
    "fuzzers": ("read/test_fuzz", "collect/test_recorder_damage"),
    "recorder": ("collect/test_recorder_python", "collect/test_recorder_leaks"),
    "ranges": ("emit/test_emit", "emit/test_trace", "emit/test_trace_async", "emit/test_loop"),
    "PyTorch": ("pytorch/test_forward", "pytorch/test_backward", "pytorch/test_ops", "pytorch/test_blocks"),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("gcc") or not nvtx_headers(), reason="needs gcc and nvidia-nvtx"),
]


def library(name: str) -> str:
    """Return the path of a library of gcc; skip the test where it is not installed."""
    path = subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
    if not os.path.isabs(path):
        pytest.skip(f"gcc has no {name}")
    return path


def run_tests(names: tuple[str, ...], **environ: str) -> None:
    """Run test files in a process of their own; what a sanitizer finds ends the process that it finds it in."""
    files = [str(ROOT / f"tests/{name}.py") for name in names]
    if "ANNOT_TEST_PACKAGE" in environ:
        files.append(f"{ROOT}/tests/packaging/test_smoke.py::test_package_is_the_one_under_test")
    options = {
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1",  # Python leaks on purpose
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"suppressions={ROOT / 'tests/support/tsan.supp'}",
    }
    choice = ["-m", "not nsys and not slow or fuzz", "-k", "not ncu_rep"]  # NVIDIA's library does not load
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", *files, *choice],
        cwd=ROOT / "tests", env={**os.environ, **options, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("sanitizer", [ADDRESS, "thread"])
def test_recorder_of_a_c_program(sanitizer: str) -> None:
    """The recorder under threads, forks, sessions that begin and end, full disks and kills: no bad access, no race."""
    library("libtsan.so" if sanitizer == "thread" else "libasan.so")
    run_tests(RECORDER, ANNOT_TEST_SANITIZER=sanitizer)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A copy of annot with sanitized C parts; returns the environment in which Python runs it."""
    preloaded = " ".join(map(library, ("libasan.so", "libubsan.so", "libstdc++.so")))
    folder = tmp_path_factory.mktemp("sanitized")
    shutil.copytree(ROOT / "annot", folder / "annot", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    flags = f"-fsanitize={ADDRESS} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
    environ = {**os.environ, "CFLAGS": flags, "LDFLAGS": f"-fsanitize={ADDRESS}"}
    words = ["-c", "from setuptools import setup; setup()", "build_ext", "--inplace"]
    subprocess.run([sys.executable, *words], cwd=folder, env=environ, capture_output=True, check=True)
    assert len(list((folder / "annot").rglob("*.so"))) == 4
    # The interpreter itself is not sanitized, so the library has to be there first.
    place = str(folder)
    return {"LD_PRELOAD": preloaded, "PYTHONPATH": place, "ANNOT_TEST_PACKAGE": place, "PYTHONMALLOC": "malloc"}


@pytest.mark.parametrize("part", IN_PYTHON)
def test_part_in_python(sanitized: dict[str, str], part: str) -> None:
    """The quick tests and fuzzers of a part pass with sanitized C parts."""
    run_tests(IN_PYTHON[part], ANNOT_FUZZ="0.1" if part == "fuzzers" else "0.5", **sanitized)


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
