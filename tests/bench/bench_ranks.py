"""Eight ranks of five million events each: two worker processes against one.

Run by hand: ``python tests/bench/bench_ranks.py [PROFILE.sqlite ...]``. Without profiles one is made and read
under eight names. Each figure is that of a whole process, `annot report` with its start and its imports; one
worker is the process itself, in which polars uses all CPUs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from harness import report
from large_profile import write_profile

RANKS: Final = 8
EVENTS: Final = 5_000_000
ROUNDS: Final = 3
GAIN: Final = 1.0


def seconds(profiles: list[str], workers: int) -> float:
    """Return how long `annot report` takes with so many workers."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "annot", "report", *profiles, "--workers", str(workers), "--format", "json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(profiles: list[str]) -> None:
    """Time one and two workers in turn, and print the median of the ratios."""
    print(f"{len(profiles)} ranks, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)
    seconds(profiles, 1)  # fills the cache of the disk
    rounds = [(seconds(profiles, 1), seconds(profiles, 2)) for _ in range(ROUNDS)]
    one, two = (statistics.median(times) for times in zip(*rounds, strict=True))
    report("one worker", one, "s")
    report("two workers", two, "s")
    ratio = statistics.median(alone / both for alone, both in rounds)
    report("time of two over one", 1 / ratio, "", budget=GAIN, note=f"{ratio:.2f} times as fast")


def main() -> None:
    """Measure the profiles named on the command line, or one of our own making."""
    if sys.argv[1:]:
        measure(sys.argv[1:])
        return
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.sqlite"
        write_profile(profile, EVENTS)
        names = [Path(folder) / f"rank{rank}.sqlite" for rank in range(RANKS)]
        for name in names:
            name.symlink_to(profile)
        measure([str(name) for name in names])


if __name__ == "__main__":
    main()
