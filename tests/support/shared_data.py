"""Real profiles: `tests/data` has most of them, `../shared/data` next to a developer's checkout has all.

A test that needs a missing one skips.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import lzma
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_OWN = _ROOT / "tests" / "data"
_PLACES = (_OWN, _ROOT / "shared" / "data", _ROOT.parent / "shared" / "data")


@functools.cache
def shared(name: str) -> Path:
    """Return the path of a real profile. Skip the test if it is missing.

    `tests/data` has most profiles as xz. They are unpacked once per process, and compressed with gzip if the name says
    so.
    """
    packed = _packed(name)
    if packed.exists():
        path = _folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = lzma.decompress(packed.read_bytes())
        path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
        return path
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    pytest.skip(f"needs the real profile {name}, which is not in this checkout")


def shared_names(folder: str, ending: str) -> list[str]:
    """Return the names of all real profiles in a folder whose names end so. Skip the test if there are none."""
    plain = ending.removesuffix(".gz")
    found = {f"{path.relative_to(_OWN).with_suffix('')}" for path in (_OWN / folder).rglob(f"*{plain}.xz")}
    names = {f"{name}{ending.removeprefix(plain)}" for name in found}
    for place in _PLACES:
        names |= {str(path.relative_to(place)) for path in (place / folder).rglob(f"*{ending}")}
    return sorted(names) or pytest.skip(f"needs real profiles {folder}/*{ending}, which are not in this checkout")


def unpacked(name: str, folder: Path) -> Path:
    """Write a compressed profile into a folder, without the compression, and return its path."""
    path, packed = folder / Path(name).stem, _packed(name)
    content = lzma.decompress(packed.read_bytes()) if packed.exists() else gzip.decompress(shared(name).read_bytes())
    path.write_bytes(content)
    return path


def _packed(name: str) -> Path:
    return _OWN / f"{name.removesuffix('.gz')}.xz"


@functools.cache
def _folder() -> Path:
    """A folder that the process removes at its end, and that the processes which it forks leave alone."""
    folder, owner = Path(tempfile.mkdtemp(prefix="annot-profiles-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
