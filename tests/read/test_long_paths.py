"""Profiles with very long texts: reports take memory in proportion to the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlite_profile import SqliteProfile

pytestmark = pytest.mark.slow
_NAMES = 3000

_PEAK = """
import sys
from annot.cli.main import main
status = main(sys.argv[1:])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(status, peak, file=sys.stderr)
"""


def _peak(profile: Path, *words: str) -> int:
    """Return the peak memory of a report (kB). The kernel counts the parent's into ru_maxrss."""
    command = [sys.executable, "-c", _PEAK, str(profile), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=profile.parent)
    status, peak = done.stderr.split()[-2:]
    assert status == "0", done.stderr
    return int(peak)


@pytest.mark.parametrize("words", [[], ["--all"], ["--columns", "roofline"], ["-o", "page.html"]], ids=" ".join)
def test_long_paths_take_little_memory(words: list[str], tmp_path: Path) -> None:
    """Layers inside more others than a model has: all outer paths of 3,000 names take 3,000 times the file."""
    peaks = []
    for number in (1, _NAMES):
        profile = SqliteProfile()
        for layer in range(200):
            profile.layer(".".join([f"a{layer}"] * number) + " Linear |fwd", layer * 10, layer * 10 + 6)
        folder = tmp_path / str(number)
        folder.mkdir()
        path = profile.write(folder / "run.sqlite")
        peaks.append(_peak(path, *words))
    size = 200 * _NAMES * 4 >> 10
    assert peaks[1] - peaks[0] < 50 * size + 20_000
