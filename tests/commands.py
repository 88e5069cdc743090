"""Running `annot` as a user does, for the tests of its commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from annot import native
from annot.collect.tools import find_nsys

ANNOT = [sys.executable, "-m", "annot"]
NO_NSYS = "/nonexistent/nsys"

needs_recorder = pytest.mark.skipif(native.recorder_library() is None, reason="the recorder was not built")
_needs_nsys = pytest.mark.skipif(find_nsys() is None, reason="Nsight Systems is not installed")


def needs_nsys(test):
    """Mark a test that captures with the real Nsight Systems."""
    return pytest.mark.nsys(_needs_nsys(test))


COLLECTORS = [
    pytest.param("recorder", marks=needs_recorder),
    pytest.param("nsys", marks=[pytest.mark.nsys, _needs_nsys]),
]

RANGES = """
import sys
from annot import trace
with trace("outer"):
    with trace("inner"):
        pass
"""


def write_script(folder: Path, text: str, name: str = "script.py") -> Path:
    """Write a script that makes the ranges "outer" and "inner" and goes on with `text`."""
    path = folder / name
    path.write_text(RANGES + text)
    return path


def annot(*words: object, cwd: Path, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line and wait for it."""
    return subprocess.run(
        [*ANNOT, *map(str, words)], cwd=cwd, input=stdin, capture_output=True, timeout=120,
        env={**os.environ, **environ}, check=False,
    )  # fmt: skip


def without_native(folder: Path) -> Path:
    """Put annot without its C parts into a folder, where `python -m annot` finds it; return the folder."""
    package = Path(native.__file__).parents[1]
    shutil.copytree(package, folder / "annot", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def last_line(stderr: bytes) -> str:
    """Return the last line of what was said."""
    return stderr.decode().strip().splitlines()[-1]
