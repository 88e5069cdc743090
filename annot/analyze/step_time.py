"""Where the time of the steps went: what the devices did, and where they did nothing, what kept them waiting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import polars as pl

from annot.analyze.intervals import shares
from annot.analyze.step_parts import WORK, Parts, intervals_of, launching, parts_of
from annot.correlate.attribution import Attribution

__all__ = ["SHARES", "step_time"]

SHARES: Final = {
    "tensor_cores": "a kernel runs that computes on Tensor Cores",
    "kernels": "no kernel runs that surely does, but another that is no collective",
    "collectives": "no kernel computes, but devices talk to each other (exposed); on a CPU: processes do",
    "copies": "the device does nothing but copies and sets of memory",
    "data": "the device does nothing, and a thread waits for data",
    "launch": "the device does nothing, but what it will do next is already being launched",
    "host": "the device does nothing, and nothing is being launched: a range of the host is being worked on",
    "idle": "nothing of all this",
}
"""What has each moment of the steps; the first that is true."""


def step_time(attribution: Attribution, parts: Parts | None = None) -> pl.DataFrame:
    """Return where the time of the steps went: disjoint shares that add up to it exactly.

    The time is that of `annot.analyze.step_parts.parts_of`: the steps without their warm-up. Each device of each
    process that has steps shares out the whole time of the steps of its process.

    Args:
        attribution: the profile.
        parts: what `annot.analyze.step_parts.parts_of` returned of it; None: it is asked.

    Returns:
        process; device (null: the process used none); share: each of `SHARES`; ns: how long it had; hidden_ns: how
        long it went on besides, under one that stands above it, as copies and collectives do beside kernels;
        wall_ns: the whole time of the steps, the sum of ns over the shares of a device. All Int64.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "start": [10], "end": [25], "name": ["ampere_sgemm_64x64_nn"]}
        >>> step_time(attribute(Profile.build({}, kernels=pl.DataFrame(kernel)))).filter(pl.col("ns") > 0).rows()
        [(1, 0, 'kernels', 15, 0, 15)]
    """
    parts = parts or parts_of(attribution)
    devices = parts.windows.partition_by("process", "device", as_dict=True, maintain_order=True)
    found = [_of_device(place[0], place[1], window, parts) for place, window in devices.items()]
    schema = {"process": pl.Int64, "device": pl.Int64, "share": pl.String, "ns": pl.Int64, "hidden_ns": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema | {"wall_ns": pl.Int64}), *found])


def _of_device(process: int | None, device: int | None, window: pl.DataFrame, parts: Parts) -> pl.DataFrame:
    """The shares of one device; without any, those of the process."""
    mine = pl.col("process").eq_missing(pl.lit(process, pl.Int64))
    here, host = parts.of_device(process, device), parts.host
    going_on: dict[str, Callable[[], pl.DataFrame]] = {share: partial(_sharing, here, share) for share in WORK}
    if here.is_empty():
        going_on["collectives"] = lambda: host.collectives.filter(mine)
    going_on["data"] = lambda: host.data.filter(mine)
    going_on["launch"] = lambda: launching(here)
    going_on["host"] = lambda: host.ranges.filter(mine)
    rows = shares(intervals_of(window), going_on)
    wall = pl.col("ns").sum().alias("wall_ns")
    where = (pl.lit(process, pl.Int64).alias("process"), pl.lit(device, pl.Int64).alias("device"))
    return rows.select(*where, "share", "ns", "hidden_ns", wall)


def _sharing(work: pl.DataFrame, share: str) -> pl.DataFrame:
    return intervals_of(work.filter(pl.col("share") == share))
