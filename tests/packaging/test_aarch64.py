"""The C parts on aarch64: all compile without a warning, and those that do not call Python run under qemu."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
from compiled_once import compiled
from recorded import AARCH64, emulated, nvtx_headers
from sanitized import ROOT, run_tests

COMPILER = f"{AARCH64}-gcc"
EXTENSIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which(COMPILER) or not shutil.which("qemu-aarch64"),
        reason="needs the Debian packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user",
    ),
]


@pytest.fixture(scope="module")
def python_headers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders with the headers of this Python, for aarch64.

    Debian has a pyconfig.h per architecture. That of x86-64 fits: sizes of types are the same.
    """
    include = Path(sysconfig.get_paths()["include"])
    folder = tmp_path_factory.mktemp("include")
    (folder / AARCH64).symlink_to(include.parent / str(sysconfig.get_config_var("MULTIARCH")))
    return [include, folder]


@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda extension: extension["name"].rpartition("_")[2])
def test_c_part_compiles_without_a_warning(extension: dict[str, Any], python_headers: list[Path]) -> None:
    """It is compiled and linked as setuptools does it, with more warnings, which are errors."""
    macros = [f"-D{macro}={value}" for macro, value in extension.get("define-macros", [])]
    includes = [f"-I{path}" for path in (*nvtx_headers(), *python_headers)]
    command = [COMPILER, "-shared", "-fPIC", *extension["extra-compile-args"], *WARNINGS, *macros, *includes]
    library = compiled(command, [ROOT / name for name in extension["sources"]], *extension.get("extra-link-args", []))
    assert library.read_bytes()[18:20] == (183).to_bytes(2, "little")  # EM_AARCH64


@pytest.mark.skipif(not nvtx_headers(), reason="needs nvidia-nvtx")
def test_recorder_of_a_c_program() -> None:
    """The tests of the recorder pass under qemu, which does not clear memory in children of clone."""
    run_tests(("collect/test_recorder_calls", "collect/test_recorder_processes"), ("clone",), ANNOT_TEST_EMULATED="1")


def test_reader_of_sqlite_files(tmp_path: Path) -> None:
    """The reader finds the rows that SQLite wrote: integers of all sizes, NULL, and texts on several pages."""
    numbers = [None, 0, 1, *(sign * (1 << bits) for bits in (6, 7, 15, 23, 31, 47, 62) for sign in (-1, 1))]
    rows = [(i, number, "é" * (i % 50 * 70)) for i, number in enumerate(numbers * 30, 1)]
    with sqlite3.connect(tmp_path / "x.sqlite") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, number INTEGER, text TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master").fetchone()
    connection.close()
    parts = ROOT / "annot/native/tables"
    sources = [ROOT / "tests/support/sqlite_reader.c", parts / "sqlite_pages.c", parts / "sqlite_records.c"]
    program = compiled([COMPILER, "-O2", "-std=gnu11", *WARNINGS, f"-I{parts}"], sources)
    command = [emulated(str(program)), str(tmp_path / "x.sqlite"), str(root), "ait"]
    printed = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    assert printed == "".join(f"{i}|{'' if number is None else number}|{text}\n" for i, number, text in rows)
