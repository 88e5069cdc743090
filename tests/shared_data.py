"""Where the real profiles lie that come with a developer's checkout; tests that need them skip without."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_PLACES = (_ROOT / "shared" / "data", _ROOT.parent / "shared" / "data")


def shared(name: str) -> Path:
    """Return the path of a shared file; skip the test where it is absent."""
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    pytest.skip(f"needs the real profile {name}, which is not in this checkout")


def unpacked(name: str, folder: Path) -> Path:
    """Return a copy of a compressed shared file, unpacked into a folder."""
    path = folder / Path(name).stem
    path.write_bytes(gzip.decompress(shared(name).read_bytes()))
    return path
