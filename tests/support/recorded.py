"""Record a small C program that makes the given NVTX calls, for tests of the recorder."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from compiled_once import compiled

from annot import native
from annot.read.recording.export import Recording, assemble

SANITIZER = os.environ.get("ANNOT_TEST_SANITIZER")
"""Sanitizer for compiling the program and the recorder, such as ``thread``. `test_sanitizers` sets it."""
EMULATED = bool(os.environ.get("ANNOT_TEST_EMULATED"))
"""Whether the program and the recorder are compiled for aarch64, and run under qemu. `test_aarch64` sets it."""
AARCH64 = "aarch64-linux-gnu"
"""Prefix of the cross compiler, and name of the folder with its libraries in `/usr`."""
SOURCE = Path(__file__).with_name("recorder_client.c")
NAMES = {33: "category", 34: "mark", 39: "thread", 59: "push", 60: "start", 75: "domain", 76: "domain end"}
PAYLOADS = ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue")


def nvtx_headers() -> list[Path]:
    """Return the header folders of the package nvidia-nvtx."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec else None
    return [header.parent.parent for root in roots or [] for header in Path(root).glob("*/include/nvtx3/nvToolsExt.h")]


@functools.cache
def client() -> str:
    """Compile the program. Skip the test without a compiler or headers."""
    headers = nvtx_headers()
    if not shutil.which("gcc") or not headers:
        pytest.skip("needs gcc and the headers of nvidia-nvtx")
    program = _compiled([SOURCE], "-ldl")
    return emulated(program) if EMULATED else program


def emulated(program: str) -> str:
    """Return the path of a script that runs a program for aarch64."""
    script = Path(program).with_suffix(".sh")
    unfinished = script.with_suffix(f".{os.getpid()}")
    unfinished.write_text(f'#!/bin/sh\nexec qemu-aarch64 -L /usr/{AARCH64} {program} "$@"\n')
    unfinished.chmod(0o755)
    unfinished.rename(script)
    return str(script)


def _compiled(sources: list[Path], *options: str) -> str:
    flags = [f"-fsanitize={SANITIZER}", "-fno-sanitize-recover=all", "-g"] if SANITIZER else []
    includes = [f"-I{path}" for path in nvtx_headers()]
    compiler = f"{AARCH64}-gcc" if EMULATED else "gcc"
    return str(compiled([compiler, "-O2", "-std=gnu11", "-pthread", *flags, *includes], sources, *options))


@functools.cache
def recorder() -> str:
    """Return the path of the recorder. Skip the test if it was not built."""
    if SANITIZER or EMULATED:
        return _compiled(sorted((Path(native.__file__).parent / "recorder").glob("*.c")), "-shared", "-fPIC")
    library = native.recorder_library()
    if library is None:
        pytest.skip("the recorder was not built")
    return str(library)


def environment(parts: Path | None) -> dict[str, str]:
    """Return the environment of a recorded process. Without `parts`, the recorder is loaded but idle."""
    environ = {**os.environ, "NVTX_INJECTION64_PATH": recorder()}
    environ.pop("ANNOT_RECORD_DIR", None)
    if parts is not None:
        parts.mkdir(exist_ok=True)
        environ["ANNOT_RECORD_DIR"] = str(parts)
    return environ


def run(parts: Path | None, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program under the recorder."""
    command = [client(), *map(str, words)]
    return subprocess.run(
        command, env=environment(parts), capture_output=True, text=True, timeout=60, check=False, **options
    )


@functools.cache
def _holder() -> str:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    return _compiled([SOURCE.with_name("held_locks.c")], "-shared", "-fPIC", "-ldl")


def while_held(library: str, count: Path) -> dict[str, str]:
    """Return variables with which a process forks while a thread holds a lock of a library (`held_locks.c`).

    The process writes the number of these forks to the file `count`.
    """
    return {"LD_PRELOAD": _holder(), "HELD_LOCKS_OF": library, "HELD_LOCKS_COUNT": str(count)}


@dataclass(frozen=True)
class Row:
    """Row of NVTX_EVENTS with strings and ids resolved to names."""

    kind: str
    text: str | None
    start: int
    end: int | None
    domain: str
    category: int | None
    color: int | None
    payload: dict[str, Any]
    pid: int
    thread: int
    end_thread: int | None
    range: int | None


def rows(path: Path, *kinds: str) -> list[Row]:
    """Return the events of a profile by start time, optionally only those of some kinds."""
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        names = {
            (row["globalTid"] >> 24, row["domainId"]): row["text"]
            for row in connection.execute("SELECT * FROM NVTX_EVENTS WHERE eventType = 75")
        }
        found = connection.execute(
            "SELECT *, coalesce(value, text) AS name FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id ORDER BY start"
        ).fetchall()
    connection.close()
    made = [
        Row(
            NAMES[row["eventType"]], row["name"], row["start"], row["end"],
            names.get((row["globalTid"] >> 24, row["domainId"]), str(row["domainId"])),
            row["category"], row["color"], {name: row[name] for name in PAYLOADS if row[name] is not None},
            row["globalTid"] >> 24 & 0xFFFFFF, row["globalTid"], row["endGlobalTid"], row["rangeId"],
        )
        for row in found
    ]  # fmt: skip
    return [row for row in made if not kinds or row.kind in kinds]


def record_client(folder: Path, *words: object) -> tuple[list[Row], Recording]:
    """Record the program. Return its events and the result of the recording."""
    result = run(folder / "parts", *words)
    assert result.returncode == 0, result.stderr
    recording = assemble(folder / "parts", folder / "out.sqlite")
    return rows(folder / "out.sqlite"), recording


def python(folder: Path, code: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without an NVTX tool unless `environ` sets one."""
    recorder()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANNOT_", "NVTX_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**clean, **(environ or {})}, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
