"""Paths of real profiles next to a developer's checkout. Tests that need a missing one are skipped."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PLACES = (_ROOT / "shared" / "data", _ROOT.parent / "shared" / "data")


def shared(name: str) -> Path:
    """Return the path of a shared file. Skip the test if it is missing."""
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    pytest.skip(f"needs the real profile {name}, which is not in this checkout")


def unpacked(name: str, folder: Path) -> Path:
    """Unpack a compressed shared file into a folder and return the path."""
    path = folder / Path(name).stem
    path.write_bytes(gzip.decompress(shared(name).read_bytes()))
    return path
