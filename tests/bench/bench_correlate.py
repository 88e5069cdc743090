"""A large Nsight Systems export to the layer table: annot against `nsys stats`, whole processes.

Run by hand: ``python tests/bench/bench_correlate.py [PROFILE.sqlite ...]``. Without profiles one of a million
events is made. Prints time, the most memory, and how many times as long `nsys stats`, and nsys-ai (PyPI), took to tell
which range used the time. What is not installed is not timed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from large_profile import write_profile

from annot.util.installed_tools import find_nsys

ANNOT = (sys.executable, "-m", "annot", "report")


class Cost(NamedTuple):
    """What a command took: seconds, the most memory that it had (GiB), and seconds of the CPU."""

    seconds: float
    memory: float
    cpu_seconds: float


def timed(command: tuple[str, ...]) -> Cost:
    """Run a command and return its cost."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return Cost(time.perf_counter() - began, usage.ru_maxrss / 2**20, usage.ru_utime + usage.ru_stime)


def compare(path: Path) -> None:
    """Print a line about a profile."""
    timed((*ANNOT, str(path)))  # so that the file is in memory for both
    seconds, memory, _ = min(timed((*ANNOT, str(path))) for _ in range(3))
    print(f"{path.name}: {path.stat().st_size / 1e6:,.0f} MB, annot {seconds:.2f} s, {memory:.2f} GiB")
    for name, command in peers(path).items():
        theirs, theirs_memory, _ = timed(command)
        print(f"  {name} {theirs:.1f} s, {theirs_memory:.2f} GiB: {theirs / seconds:.0f} times as long")


def peers(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the commands of others that are installed."""
    commands: dict[str, tuple[str, ...]] = {}
    nsys = find_nsys()
    if nsys is not None:
        # The projection of 2022 took more than nine minutes for a million events.
        name = "nvtxkernsum" if nsys.version < (2023,) else "nvtx_gpu_proj_sum"
        options = ("-q", "-r", name, "-f", "csv", "-o", "-", "--force-export=false")
        commands[f"nsys stats {name}"] = (str(nsys.path), "stats", *options, str(path))
    nsys_ai = shutil.which("nsys-ai")
    if nsys_ai is not None:
        skill = ("skill", "run", "nvtx_layer_breakdown", "--no-cache", "--format", "json")
        commands["nsys-ai nvtx_layer_breakdown"] = (nsys_ai, *skill, str(path))
    return commands


def main() -> None:
    """Compare the profiles that are named, or one made here."""
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            compare(Path(name))
        return
    with tempfile.TemporaryDirectory(prefix="annot-") as folder:
        path = Path(folder) / "million.sqlite"
        write_profile(path, 1_000_000)
        compare(path)


if __name__ == "__main__":
    main()
