"""Damaged inputs that annot reads from a folder or with another program: Parquet, recording parts, binary reports."""

from __future__ import annotations

import functools
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import ncu_report_file
import polars as pl
from fuzz_bytes import damaged
from fuzz_sqlite import nsys, with_graphs
from sqlite_profile import to_parquet

from annot import native

__all__ = ["ncu_rep", "nsys_rep", "parquet", "parts"]

_RECORDED = """
import os, signal, sys
import annot
for epoch in annot.epochs(2):
    for batch in annot.batches(range(2)):
        with annot.trace("outer", domain="mine", category="kind", color="red", payload=7):
            annot.mark("here")
with annot.trace("open"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@functools.cache
def _parts() -> dict[str, bytes]:
    """Return the parts of a killed recording, or nothing if the recorder was not built."""
    library = native.recorder_library()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NVTX_INJECTION64_PATH": str(library), "ANNOT_RECORD_DIR": folder}
        if library is not None:
            subprocess.run([sys.executable, "-c", _RECORDED], env=environment, check=False)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def parts(path: Path, chance: random.Random) -> None:
    """Write the parts of a recording, with one part damaged."""
    path.mkdir()
    known = _parts()
    broken = chance.choice(sorted(known)) if known else ""
    for name, content in known.items():
        (path / name).write_bytes(damaged(content, chance) if name == broken else content)


def parquet(path: Path, chance: random.Random) -> None:
    """Write the folder of a Parquet export with damaged values or bytes."""
    source = path.with_suffix(".sqlite")
    if chance.random() < 0.5:
        nsys(source, chance)
    else:
        with_graphs().write(source)
    try:
        to_parquet(source, path, narrow=chance.random() < 0.5)
    except (sqlite3.Error, pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        path.mkdir(exist_ok=True)  # keep the files written before the error
    source.unlink()
    files = sorted(path.iterdir())
    if files and chance.random() < 0.7:
        file = chance.choice(files)
        file.write_bytes(damaged(file.read_bytes(), chance))


@functools.cache
def _ncu_seed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return ncu_report_file.write(Path(folder) / "x", ncu_report_file.training()).read_bytes()


def ncu_rep(path: Path, chance: random.Random) -> None:
    """Write a damaged report of Nsight Compute."""
    path.write_bytes(damaged(_ncu_seed(), chance))


def nsys_rep(path: Path, chance: random.Random) -> None:
    """Write a file that starts like a report of Nsight Systems."""
    first = chance.choice((b"NVIDIA Tegra Profiler Report 1.\n", b"NVIDIA Tegra Profiler Report 2026@4@1@191-2v0.\n"))
    path.write_bytes(first + chance.randbytes(chance.choice((0, 10, 5000))))
