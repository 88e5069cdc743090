"""Run Python programs and tests with the C parts of annot built with a sanitizer."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from compiled_once import compiled
from recorded import nvtx_headers

__all__ = ["ADDRESS", "ROOT", "SANITIZED", "THREAD", "run_sanitized", "run_tests", "runtime", "sanitized_package"]

ROOT = Path(__file__).parents[2]
ADDRESS, THREAD = "address,undefined", "thread"
SANITIZED = ("_emit", "_recorder", "_tables")
"""The C parts that do not need TensorFlow."""
_RUNTIMES = {ADDRESS: ("libasan.so", "libubsan.so", "libstdc++.so"), THREAD: ("libtsan.so",)}
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1",  # Python leaks on purpose
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"suppressions={ROOT / 'tests/support/tsan.supp'}",
}


def runtime(name: str) -> str:
    """Return the path of a library of gcc. Skip the test if it is not installed."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    path = subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
    if not os.path.isabs(path):
        pytest.skip(f"gcc has no {name}")
    return path


@cache
def sanitized_package(sanitizer: str, names: tuple[str, ...], *flags: str) -> dict[str, str]:
    """Return the environment for Python with a copy of annot, in which the named C parts have the sanitizer."""
    # The interpreter itself is not sanitized, so the library has to be there first.
    preloaded = " ".join(map(runtime, _RUNTIMES[sanitizer]))  # their folder has the version of gcc
    folder = Path(tempfile.mkdtemp(prefix="annot-sanitized-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(ROOT / "annot", folder / "annot", ignore=shutil.ignore_patterns("__pycache__"))
    for extension in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]:
        if extension["name"].rpartition(".")[2] in names:
            part = _compiled(extension, preloaded, f"-fsanitize={sanitizer}", *flags)
            shutil.copy(part, folder.joinpath(*extension["name"].split(".")).with_suffix(".abi3.so"))
    return {**_OPTIONS, "LD_PRELOAD": preloaded, "PYTHONPATH": str(folder), "ANNOT_TEST_PACKAGE": str(folder)}


def _compiled(extension: dict[str, Any], gcc: str, *flags: str) -> Path:
    macros = [f"-D{macro}={value}" for macro, value in extension.get("define-macros", [])]
    includes = [f"-I{path}" for path in (*nvtx_headers(), sysconfig.get_paths()["include"])]
    options = [*extension["extra-compile-args"], "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    command = ["gcc", "-shared", "-fPIC", *options, *flags, *macros, *includes]
    return compiled(command, [ROOT / name for name in extension["sources"]], "-pthread", "-ldl", version=gcc)


def run_tests(names: tuple[str, ...], without: tuple[str, ...] = (), **environ: str) -> None:
    """Run test files in a separate process, without tests of some names. A report of a sanitizer ends the process."""
    files = [str(ROOT / f"tests/{name}.py") for name in names]
    if "ANNOT_TEST_PACKAGE" in environ:
        files.append(f"{ROOT}/tests/packaging/test_smoke.py::test_package_is_the_one_under_test")
    # NVIDIA's library, which reads ncu-rep files, does not load under a sanitizer.
    names_left_out = " and ".join(f"not {name}" for name in ("ncu_rep", *without))
    choice = ["-m", "not nsys and not slow or fuzz", "-k", names_left_out]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", *files, *choice],
        cwd=ROOT / "tests", env={**os.environ, **_OPTIONS, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert " passed" in done.stdout


def run_sanitized(program: str, folder: Path, sanitizer: str = ADDRESS, *, limit_s: int = 300, **more: str) -> str:
    """Return the output of a program with the sanitized client, tables and recorder. Fail on a report."""
    # ASan leaves variables on the stack alone: greenlets copy stacks including its redzones.
    package = sanitized_package(sanitizer, SANITIZED, *(["--param=asan-stack=0"] if sanitizer == ADDRESS else []))
    environ = {**os.environ, **package, "ANNOT_ENABLE": "1", "OMP_NUM_THREADS": "1", **more}
    environ["PYTHONPATH"] = os.pathsep.join([package["PYTHONPATH"], *sys.path])
    if sanitizer == ADDRESS:
        environ["PYTHONMALLOC"] = "malloc"  # pymalloc would hide use after free
    check = f"import annot\nassert annot.__file__.startswith({package['PYTHONPATH']!r})\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", check + program],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout
