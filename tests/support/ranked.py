"""Profiles of many ranks, and a profile without host times, for tests of comparisons and reports."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import polars as pl
from sqlite_profile import in_float32, training

from annot.profile import Profile

US = 1000
SLOW = 5
"""Rank whose first convolution takes `LATE` longer in each of the two steps."""
LATE = 300 * US
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write_ranks(folder: Path, count: int = 8, *, name: str = "run_rank{}.sqlite") -> list[Path]:
    """Write a profile per rank: two steps that end in an all-reduce, in which the other ranks wait for `SLOW`.

    The all-reduce takes 400 µs, but 100 µs on the slow rank. The first convolution of rank r takes 900 + r µs, and
    `LATE` more on the slow rank.
    """
    folder.mkdir(exist_ok=True)
    return [write_rank(folder / name.format(rank), rank) for rank in range(count)]


def write_rank(path: Path, rank: int, *, says: int | None = None) -> Path:
    """Write the profile of one rank. `says` is the rank in the metadata of the file."""
    profile = in_float32(training(device=True))
    for step in range(2):
        zero = step * 2200 * US
        number = 500 + 10 * step
        profile.call(zero + 300 * US, zero + 305 * US, number)
        more = rank * US + (LATE if rank == SLOW else 0)
        profile.kernel(zero + 310 * US, zero + 310 * US + more, number, "conv_rest")
        profile.call(zero + 1842 * US, zero + 1845 * US, number + 1)
        wait = 100 if rank == SLOW else 400
        profile.kernel(zero + 1850 * US, zero + (1850 + wait) * US, number + 1, ALL_REDUCE)
    if says is not None:
        profile.add("META_DATA_CAPTURE", name="ANNOT_RANK", value=str(says))
    return profile.write(path)


def ordered_only() -> Profile:
    """Return a profile of one layer with one kernel of 40 ns. Its host times have only an order."""
    one = {"process": [1], "thread": [1], "start": [1], "end": [2], "correlation": [3]}
    work = {"process": [1], "device": [0], "stream": [0], "start": [100], "end": [140], "correlation": [3]}
    text = "fc Linear [4,8]f32 |fwd"
    ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"], "text": [text]}
    return Profile.build(
        {"source": "counters.csv", "host_times": False},
        ranges=pl.DataFrame(ranges | {"start": [0], "end": [3]}),
        launches=pl.DataFrame(one),
        kernels=pl.DataFrame(work | {"name": ["ampere_sgemm_32x32_nn"]}),
    )


def die_if_deadly(path: str) -> str:
    """Return the name in capitals, or kill the process. At module level, so that other processes can import it."""
    if path == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return path.upper()
