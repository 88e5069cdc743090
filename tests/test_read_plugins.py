"""Readers of other packages: found by their entry points, asked before those of annot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

READER = """
import polars as pl
from annot.profile import Profile

NAME = "mine"


def sniff(path, head):
    return head.startswith(b'{"traceEvents": "of mine')


def read(path):
    ranges = pl.DataFrame({"id": [0], "process": [1], "thread": [1], "text": ["fc"], "start": [0], "end": [7]})
    return Profile.build({"source": str(path), "format": NAME, "notes": ["read by mine"]}, ranges=ranges)
"""


def test_reader_of_another_package(tmp_path: Path) -> None:
    """A package that declares a reader makes its format known to `annot report`, even where annot has one like it."""
    (tmp_path / "their_reader.py").write_text(READER)
    info = tmp_path / "their_reader-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-reader\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[annot.readers]\nmine = their_reader\n")
    profile = tmp_path / "x.json"
    profile.write_text('{"traceEvents": "of mine"}')
    command = [sys.executable, "-m", "annot", "report", str(profile), "--format", "csv"]
    known = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)}, check=True
    )
    assert known.stdout.splitlines()[1].startswith('fc,"",other,1,7,7,')
    without = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "fc" not in without.stdout
