"""Sums of the events that a sampled timeline leaves out, in cells of time: with them, sums of any interval are right.

The page adds up the events that it has, and the cells in the interval. Sums are exact from cell to cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

__all__ = ["Cells", "bounds_of", "cells_of", "in_lanes_of_cells"]

_CELLS: Final = 2048
_HOST: Final = ("thread", "layers")
"""Kinds of tracks whose ranges nest."""
_KEYS: Final = ("lane", "key", "text")
_SLICE: Final = 1 << 18
"""Events per slice. Slices keep temporary columns small."""


@dataclass(frozen=True, slots=True)
class Cells:
    """What the events of a sample lack, by cell: row `cell` is the time from `bounds[cell]` to `bounds[cell + 1]` (ns).

    Args:
        bounds: ends of the cells, ascending.
        sums: cell, key, text, calls and length_ns of the GPU activities that the sample lacks. Without GPU activity,
            those of the ranges, without the ranges in them (text is null): negative where the sample has a range
            without the ranges in it.
        busy: cell, lane (the first of the device) and length_ns in which only activities run that the sample lacks.
    """

    bounds: list[int]
    sums: pl.DataFrame
    busy: pl.DataFrame


def bounds_of(events: pl.DataFrame) -> pl.Series:
    """Return the bounds of cells with about as many starts of events each."""
    starts = events["start_ns"].sort()
    last = events.select((pl.col("start_ns") + pl.col("length_ns")).max()).to_series()
    return pl.concat([starts.gather_every(-(-events.height // _CELLS)).unique(), last]).unique().sort()


def in_lanes_of_cells(events: pl.DataFrame, lanes: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return the events in the lanes whose sums cells have: those of devices, or without any those of the host."""
    devices = any(lane["device"] for lane in lanes)
    numbers = [number for number, lane in enumerate(lanes) if lane["device"] or (not devices and lane["kind"] in _HOST)]
    return events.filter(pl.col("lane").is_in(numbers))


def cells_of(
    every: pl.DataFrame, kept: pl.DataFrame, bounds: pl.Series, lanes: Sequence[dict[str, Any]], most: int
) -> Cells:
    """Return the sums of `every` event that the events `kept` do not have.

    Args:
        every: result of `in_lanes_of_cells` for events with the columns lane, row, start_ns, length_ns, text and key.
        kept: some of the events.
        bounds: result of `bounds_of`.
        lanes: device and kind of each lane.
        most: maximum number of rows of the sums. A cell becomes longer until they fit.
    """
    first_of: dict[str, int] = {}
    for place, lane in enumerate(lanes):
        first_of.setdefault(lane["device"], place)
    devices = {place: first_of[lane["device"]] for place, lane in enumerate(lanes) if lane["device"]}
    intervals = [_intervals(events, devices, lanes) for events in (every, in_lanes_of_cells(kept, lanes))]
    sums = _sum_in_cells(_less(*intervals), bounds, "key", "text")
    busy = _sum_in_cells(_less(*(_busy(rows.drop("key", "text")) for rows in intervals)), bounds, "lane").drop("calls")
    while sums.height > most and bounds.len() > 2:
        bounds = pl.concat([bounds.gather_every(2), bounds.tail(1)]).unique().sort()
        sums, busy = _doubled(sums), _doubled(busy)
    return Cells(bounds.to_list(), sums.sort("cell", "key", "text"), busy.sort("cell", "lane"))


def _less(every: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([every, kept.with_columns(-pl.col("calls"), -pl.col("sign"))])


def _intervals(events: pl.DataFrame, devices: dict[int, int], lanes: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """The GPU activities. Without any: each range for its key, and with the sign -1 for that of the range around."""
    device = pl.Series([devices.get(number, -1) for number in range(len(lanes))], dtype=pl.Int32)
    owner = device.gather(events["lane"]).alias("lane")
    times = (pl.col("start_ns").alias("start"), (pl.col("start_ns") + pl.col("length_ns")).alias("end"))
    calls, sign = pl.lit(1, pl.Int64).alias("calls"), pl.lit(1, pl.Int64).alias("sign")
    if devices:
        return events.select(owner, "key", "text", *times, calls, sign)
    own = events.select(owner, "key", pl.lit(None, pl.Categorical).alias("text"), *times, calls, sign)
    inner = own.with_columns(
        _outer(events).alias("key"), calls=pl.lit(0, pl.Int64), sign=pl.lit(-1, pl.Int64)
    ).drop_nulls("key")
    return pl.concat([own, inner])


def _outer(events: pl.DataFrame) -> pl.Series:
    """The key of the innermost event around each in the rows above it, as the page finds it; null: none."""
    end = pl.col("start_ns") + pl.col("length_ns")
    around = events.select("lane", "row", "start_ns", "key", until=end).sort("start_ns")
    pending = events.select("lane", "row", "start_ns", end=end, outer=pl.lit(None, pl.Int32)).with_row_index("place")
    done: list[pl.DataFrame] = []
    while pending.height:
        pending = pending.with_columns(pl.col("row") - 1).filter(pl.col("row") >= 0).sort("start_ns")
        pending = pending.join_asof(around, on="start_ns", by=["lane", "row"], check_sortedness=False)
        inside = pl.col("until").fill_null(-1) >= pl.col("end")
        done.append(pending.filter(inside).select("place", "key"))
        pending = pending.filter(~inside).drop("key", "until")
    return pl.DataFrame({"place": pl.int_range(events.height, dtype=pl.UInt32, eager=True)}).join(
        pl.concat(done), on="place", how="left", maintain_order="left"
    )["key"]


def _busy(intervals: pl.DataFrame) -> pl.DataFrame:
    """The times in which a device is busy, without overlaps."""
    busy = intervals.filter((pl.col("lane") >= 0) & (pl.col("sign") > 0)).sort("lane", "start")
    before = pl.col("end").cum_max().shift(1).over("lane").fill_null(pl.col("start"))
    return busy.with_columns(start=pl.max_horizontal("start", before)).filter(pl.col("end") > pl.col("start"))


def _sum_in_cells(intervals: pl.DataFrame, bounds: pl.Series, *keys: str) -> pl.DataFrame:
    """The sums of the intervals in each cell. A call counts where it starts."""
    every = [_cut(some, bounds, keys) for some in intervals.iter_slices(_SLICE)] or [_cut(intervals, bounds, keys)]
    sums = pl.concat(every).group_by("cell", *keys).agg(pl.all().sum())
    return sums.filter((pl.col("calls") != 0) | (pl.col("length_ns") != 0))


def _cut(intervals: pl.DataFrame, bounds: pl.Series, keys: Sequence[str]) -> pl.DataFrame:
    """The sums of some of the intervals."""
    last = bounds.len() - 2
    first = bounds.search_sorted(intervals["start"], side="right").cast(pl.Int64) - 1
    final = bounds.search_sorted(intervals["end"], side="left").cast(pl.Int64) - 1
    cut = intervals.with_columns(first=first.clip(0, last), final=final.clip(0, last))
    single = cut.filter(pl.col("final") <= pl.col("first")).with_columns(cell="first")
    several = cut.filter(pl.col("final") > pl.col("first")).with_columns(
        cell=pl.int_ranges("first", pl.col("final") + 1, dtype=pl.Int64)
    )
    cut = pl.concat([single, several.explode("cell")])
    begin, end = (bounds.gather(cut["cell"] + more) for more in (0, 1))
    cut = cut.with_columns(
        calls=pl.when(pl.col("cell") == pl.col("first")).then("calls").otherwise(0),
        length_ns=(pl.min_horizontal("end", end) - pl.max_horizontal("start", begin)) * pl.col("sign"),
    )
    return cut.group_by("cell", *keys).agg(pl.col("calls", "length_ns").sum())


def _doubled(sums: pl.DataFrame) -> pl.DataFrame:
    keys = [name for name in _KEYS if name in sums.columns]
    return sums.group_by(pl.col("cell") // 2, *keys).agg(pl.exclude("cell", *keys).sum())
