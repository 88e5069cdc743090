"""A disk of one megabyte, for tests that fill it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["small_disk"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte; skips where it cannot be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )  # fmt: skip
    if not mounted or mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
