"""Run the `annot` command line, for tests of its commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from annot import load, native
from annot.labels.tag import parse
from annot.util.installed_tools import find_nsys

ANNOT = [sys.executable, "-m", "annot"]
NO_NSYS = "/nonexistent/nsys"

needs_recorder = pytest.mark.skipif(native.recorder_library() is None, reason="the recorder was not built")
_needs_nsys = pytest.mark.skipif(find_nsys() is None, reason="Nsight Systems is not installed")


def needs_nsys(test: Any) -> Any:
    """Mark a test that captures with the real Nsight Systems, and skip it without `nsys`."""
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
    """Write a script that opens the ranges "outer" and "inner", then runs `text`."""
    path = folder / name
    path.write_text(RANGES + text)
    return path


def annot(*words: object, cwd: Path, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line and wait for it."""
    return subprocess.run(
        [*ANNOT, *map(str, words)], cwd=cwd, input=stdin, capture_output=True, timeout=120,
        env={**os.environ, **environ}, check=False,
    )  # fmt: skip


def window_seen_by_nsys(program: str, folder: Path) -> list[str]:
    """Capture a program with ``schedule(capture=True)``. Return the layers whose forwards Nsight Systems recorded."""
    tool = find_nsys()
    assert tool is not None
    capturing = ["--capture-range=nvtx", "--nvtx-capture=capture@annot", "--capture-range-end=stop"]
    run = [str(tool.path), "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", *capturing, "--output=out"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANNOT_")}
    command = [*run, sys.executable, "-c", program]
    for _ in range(5):  # nsys 2022.4 sometimes ends with "End of file" before it starts the program
        done = subprocess.run(command, cwd=folder, env=environment, check=False, timeout=180)
        if done.returncode == 0:
            break
    assert done.returncode == 0
    ranges = load(next(folder.glob("out*.nsys-rep"))).ranges
    return [tag.layer for tag in map(parse, ranges["text"]) if tag and tag.phase == "forward"]


def without_native(folder: Path) -> Path:
    """Copy annot without its C parts into a folder for `python -m annot`. Return the folder."""
    package = Path(native.__file__).parents[1]
    shutil.copytree(package, folder / "annot", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def last_line(stderr: bytes) -> str:
    """Return the last line of standard error."""
    return stderr.decode().strip().splitlines()[-1]
