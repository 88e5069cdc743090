"""Breakdown of step time: GPU activities by kind, and idle time by what the CPU does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import polars as pl

from annot.analyze.overlap import shares
from annot.analyze.step_parts import WORK, Parts, intervals_of, launching, parts_of
from annot.attribution.attribute import Attribution

__all__ = ["SHARES", "step_time"]

SHARES: Final = {
    "tensor_cores": "a kernel runs on Tensor Cores",
    "kernels": "another kernel runs, except collectives",
    "collectives": "only collectives run (exposed communication); without a GPU: the process is in a collective",
    "copies": "only copies and memsets run",
    "data": "the GPU is idle while a thread waits for data",
    "launch": "the GPU is idle while its next activity is being launched",
    "host": "the GPU is idle and nothing is being launched: the CPU is inside a range (CPU-bound)",
    "idle": "the GPU is idle and the CPU is outside any range",
}
"""Shares of step time in order of precedence."""


def step_time(attribution: Attribution, parts: Parts | None = None) -> pl.DataFrame:
    """Return the breakdown of step time into disjoint shares that add up exactly.

    The step time is that of `annot.analyze.step_parts.parts_of`, without warm-up. Each device of a process has a
    breakdown of the whole step time of the process.

    Args:
        attribution: the profile.
        parts: the result of `annot.analyze.step_parts.parts_of`; None: it is computed.

    Returns:
        process; device (null: the process uses no device); share: one of `SHARES`; ns: time of the share; hidden_ns:
        time overlapped by an earlier share, such as copies and collectives behind kernels; wall_ns: step time, the sum
        of ns over the shares of a device. All Int64 except share.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "start": [10], "end": [25], "name": ["ampere_sgemm_64x64_nn"]}
        >>> step_time(attribute(Profile.build({}, kernels=pl.DataFrame(kernel)))).filter(pl.col("ns") > 0).rows()
        [(1, 0, 'kernels', 15, 0, 15)]
    """
    parts = parts or parts_of(attribution)
    devices = parts.windows.partition_by("process", "device", as_dict=True, maintain_order=True)
    found = [_of_device(key[0], key[1], window, parts) for key, window in devices.items()]
    schema = {"process": pl.Int64, "device": pl.Int64, "share": pl.String, "ns": pl.Int64, "hidden_ns": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema | {"wall_ns": pl.Int64}), *found])


def _of_device(process: int | None, device: int | None, window: pl.DataFrame, parts: Parts) -> pl.DataFrame:
    """The shares of one device, or of the process if it uses no device."""
    mine = pl.col("process").eq_missing(pl.lit(process, pl.Int64))
    here, host = parts.of_device(process, device), parts.host
    going_on: dict[str, Callable[[], pl.DataFrame]] = {
        share: partial(_intervals_of_share, here, share) for share in WORK
    }
    if here.is_empty():
        going_on["collectives"] = lambda: host.collectives.filter(mine)
    going_on["data"] = lambda: host.data.filter(mine)
    going_on["launch"] = lambda: launching(here)
    going_on["host"] = lambda: host.ranges.filter(mine)
    rows = shares(intervals_of(window), going_on)
    wall = pl.col("ns").sum().alias("wall_ns")
    where = (pl.lit(process, pl.Int64).alias("process"), pl.lit(device, pl.Int64).alias("device"))
    return rows.select(*where, "share", "ns", "hidden_ns", wall)


def _intervals_of_share(work: pl.DataFrame, share: str) -> pl.DataFrame:
    return intervals_of(work.filter(pl.col("share") == share))
