"""Exclusive wall-clock time of each kernel, copy and memset in the steps."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, TypeAlias

import polars as pl

from annot.analyze.overlap import merged, within
from annot.analyze.step_parts import parts_of
from annot.attribution.attribute import Attribution

__all__ = ["step_work"]


def step_work(attribution: Attribution, windows: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the GPU activities of the steps with their exclusive time.

    Where activities overlap on a device, the time counts to the one that started first. The times of a device add up to
    its busy time. Removing an activity shortens the steps by at most its time.

    Args:
        attribution: the profile.
        windows: the times of the steps, see `annot.analyze.step_parts.Parts`; None: they are computed.

    Returns:
        node, name, kernel, calls (started in the steps), wall_ns: a row per node and name.
    """
    spans = parts_of(attribution).windows if windows is None else windows
    of_device = spans.partition_by("process", "device", as_dict=True)
    work, names = _coded(attribution)
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for key in list(work):
        rows = pl.concat(work.pop(key))
        if key in of_device:
            parts.append(_exclusive(rows, merged(of_device[key])).select(list(_SCHEMA)))
    sums = (
        pl.concat(parts).group_by("node", "name", "kernel", maintain_order=True).agg(pl.col("calls", "wall_ns").sum())
    )
    return sums.with_columns(pl.Series("name", names, pl.String).gather(sums["name"]))


_SCHEMA: Final = {"node": pl.Int32, "name": pl.Int32, "kernel": pl.Boolean, "calls": pl.Int64, "wall_ns": pl.Int64}
_ACTIVITY: Final = {
    "process": pl.Int64, "device": pl.Int64, "start": pl.Int64, "end": pl.Int64, "node": pl.Int32, "kernel": pl.Boolean,
    "name": pl.Int32,
}  # fmt: skip
_Device: TypeAlias = tuple[int | None, int | None]


def _coded(attribution: Attribution) -> tuple[dict[_Device, list[pl.DataFrame]], list[str]]:
    """All GPU activities by process and device with the other columns of `_ACTIVITY`, and the names that they index."""
    codes: dict[str, int] = {}
    parts: dict[_Device, list[pl.DataFrame]] = defaultdict(list)
    for block in attribution.source.work_blocks() if attribution.source is not None else ():
        placed = attribution.attributor.of(block).filter(~pl.col("left_out")).drop_nulls(["start", "end"])
        texts = placed["name"].cast(pl.String).fill_null("")
        for name in texts.unique():
            codes.setdefault(name, len(codes))
        placed = placed.with_columns(texts.replace_strict(codes, return_dtype=pl.Int32).alias("name"))
        present = [name for name in _ACTIVITY if name in placed.columns]
        missing = [pl.lit(None, _ACTIVITY[name]).alias(name) for name in _ACTIVITY if name not in placed.columns]
        rows = placed.select(*(pl.col(name).cast(_ACTIVITY[name]) for name in present), *missing)
        for (process, device), part in rows.partition_by("process", "device", as_dict=True, include_key=False).items():
            parts[process, device].append(part.select(name for name in _ACTIVITY if name in part.columns))
    return parts, list(codes)


def _exclusive(rows: pl.DataFrame, window: pl.DataFrame) -> pl.DataFrame:
    """The GPU activities of one device: a row per node and name."""
    rows = rows.sort("start", maintain_order=True)
    begin = pl.max_horizontal("start", pl.col("end").cum_max().shift(1))
    rows = rows.with_columns(begin=begin, until=pl.max_horizontal(begin, "end"))
    taken = within(rows["until"], window) - within(rows["begin"], window)
    inside = within(rows["start"] + 1, window) > within(rows["start"], window)
    rows = rows.with_columns(taken.alias("wall_ns"), inside.cast(pl.Int64).alias("calls"))
    sums = rows.group_by("node", "name", "kernel", maintain_order=True).agg(pl.col("calls", "wall_ns").sum())
    return sums.filter((pl.col("calls") > 0) | (pl.col("wall_ns") > 0))
