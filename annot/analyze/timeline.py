"""What happened when: ranges of threads and work of streams in lanes, as many as a picture can hold."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.pieces import pieces
from annot.analyze.process_lanes import process_lanes
from annot.correlate import Attribution, sweep
from annot.correlate.forest import Forest
from annot.correlate.host_times import known

__all__ = ["Timeline", "timeline"]

_EVENTS: Final = {
    "lane": pl.Int32, "row": pl.Int32, "start_ns": pl.Int64, "length_ns": pl.Int64, "text": pl.String, "key": pl.Int32,
}  # fmt: skip
_PLACE: Final = ("process", "thread", "device", "stream")
_KIND: Final = pl.Enum(["range", "process", "crossing", "work"])
_LANES: Final = 64
_ROWS: Final = 24
"""Rows of one lane; what would need more is drawn in the last."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events in lanes.

    Args:
        events: lane, row (in the lane, from 0), start_ns (since `start_ns`), length_ns, text, key (number of the layer
            in `annot.correlate.Attribution`'s forest; -1: none); by lane, row and start.
        lanes: kind ("range", "process", "crossing" or "work"), process, thread, device, stream (null: it has none),
            rows: how many it has, total: how many events it has, drawn or not.
        start_ns: the first instant.
        total: events there are, in the lanes and in those left out.
        every: of the events that are not among the longest, each of this number is there; 1: all are; 0: none.
        left_out: lanes that are not there.
    """

    events: pl.DataFrame
    lanes: list[dict[str, Any]]
    start_ns: int
    total: int
    every: int
    left_out: int


def timeline(attribution: Attribution, most: int = 100_000) -> Timeline:
    """Return the timeline of what takes part.

    Of more than `most` events about half of that number, or more, are the longest ones, and the others are taken evenly
    from the rest. Of more than 64 lanes those with the most time are there.

    Args:
        attribution: whose ranges and work.
        most: events to return.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "stream": [7], "start": [10], "end": [25], "name": ["gemm"]}
        >>> timeline(attribute(Profile.build({}, kernels=pl.DataFrame(kernel)))).events.row(0)
        (0, 0, 0, 15, 'gemm', 2)
    """
    parts = [*_ranges(attribution), _work(attribution)]
    every = pl.concat([part.select(_COLUMNS) for part in parts]).drop_nulls("start_ns")
    lanes, found = _lanes(every)
    first = found["start_ns"].min()
    start = first if isinstance(first, int) else 0
    events, step = _sampled(found, most)
    events = _in_rows(events.with_columns(pl.col("start_ns") - start), lanes)
    events = events.select([*_EVENTS]).cast(pl.Schema(_EVENTS)).sort("lane", "row", "start_ns", maintain_order=True)
    left_out = every.select("kind", *_PLACE).n_unique() - len(lanes) if every.height else 0
    return Timeline(events, lanes, start, every.height, step, left_out)


_COLUMNS: Final = [
    pl.col("kind").cast(_KIND), *(pl.col(name).cast(pl.Int64) for name in _PLACE),
    pl.col("row").cast(pl.Int64), pl.col("start_ns").cast(pl.Int64),
    pl.col("length_ns").cast(pl.Int64).clip(0).fill_null(0), pl.col("text").cast(pl.String),
    pl.col("key").cast(pl.Int64),
]  # fmt: skip


def _ranges(attribution: Attribution) -> list[pl.DataFrame]:
    """Ranges of threads that nest, with their depth, those of processes side by side, and those that cross others."""
    forest = attribution.forest
    if not known(attribution.meta):
        return []
    nested, shared = forest.tree.head(forest.trunk), forest.tree.slice(forest.trunk)
    _, depth = sweep.parents(nested["thread"], nested["end"])
    none = pl.lit(None, pl.Int64)
    parts = []
    for kind, rows, row in (
        ("range", nested, depth),
        ("process", shared, _rows(forest)),
        ("crossing", forest.loose, none),
    ):
        where = forest.threads.table.select("process", "thread")[rows["thread"]]
        says = forest.says.select("text", "key")[rows["says"]]
        times = rows.select(start_ns="start", length_ns=pl.col("end") - pl.col("start"))
        part = pl.concat([where, says, times], how="horizontal")
        numbers = [none.alias(name) for name in ("device", "stream", *(["thread"] if kind == "process" else []))]
        parts.append(part.with_columns(pl.lit(kind).alias("kind"), row.cast(pl.Int64).alias("row"), *numbers))
    return parts


def _rows(forest: Forest) -> pl.Series:
    """The row of each range of a process: its lanes lie one below the other, each as high as it has to be."""
    lanes = process_lanes(forest)
    heights = lanes.group_by("process", "lane").agg((pl.col("row").max() + 1).alias("height")).sort("process", "lane")
    above = (pl.col("height").cum_sum() - pl.col("height")).over("process")
    tops = heights.select("process", "lane", top=above)
    found = lanes.join(tops, on=["process", "lane"], how="left", maintain_order="left")
    return found["row"].cast(pl.Int64) + found["top"].cast(pl.Int64)


def _work(attribution: Attribution) -> pl.DataFrame:
    work = pieces(attribution, ("process", "device", "stream", "start", "gpu_ns", "name", "node"))
    keys = pl.Series("key", attribution.forest.nodes.keys, pl.Int64).gather(work["node"])
    nothing = [pl.lit(None, pl.Int64).alias(name) for name in ("thread", "row")]
    renamed = work.rename({"start": "start_ns", "gpu_ns": "length_ns", "name": "text"})
    return renamed.with_columns(pl.lit("work").alias("kind"), keys, *nothing)


def _lanes(every: pl.DataFrame) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """The lanes with the most time, those of a process together, and the events in them with their lane."""
    groups = every.group_by("kind", *_PLACE).agg(pl.col("length_ns").sum(), pl.len().cast(pl.Int64).alias("total"))
    groups = groups.sort("length_ns", descending=True).head(_LANES)
    groups = groups.sort("process", "kind", *_PLACE[1:], nulls_last=True).with_row_index("lane")
    found = every.join(groups.select("lane", "kind", *_PLACE), on=["kind", *_PLACE], nulls_equal=True)
    lanes = groups.select("kind", *_PLACE, "total").to_dicts()
    return lanes, found


def _sampled(events: pl.DataFrame, most: int) -> tuple[pl.DataFrame, int]:
    """At most so many events, and each how many-th of the short ones is there."""
    if events.height <= most:
        return events, 1
    step = -(-2 * events.height // most)
    longest = (most * step - events.height) // (step - 1)  # so that with the others there are as many as may be
    # Only what decides is sorted: that takes half the time of sorting all there is.
    order = events.select(pl.arg_sort_by("length_ns", descending=True, maintain_order=True)).to_series()
    rest = events[order.slice(longest)].select("lane", "start_ns", pl.Series("event", order.slice(longest)))
    rest = rest.sort("lane", "start_ns", maintain_order=True).gather_every(step)
    return events[pl.concat([order.head(longest), rest["event"]]).head(most)], step


def _in_rows(events: pl.DataFrame, lanes: list[dict[str, Any]]) -> pl.DataFrame:
    """Give events without a row the first that is free, and say of each lane how many it has."""
    parts = [events.clear()]
    for lane in lanes:
        lane["rows"] = 1
    for (number,), part in sorted(events.partition_by("lane", as_dict=True, maintain_order=True).items()):
        part = part.sort("start_ns", maintain_order=True)
        if part["row"].null_count():
            part = part.with_columns(pl.Series("row", _packed(part), pl.Int64))
        part = part.with_columns(pl.col("row").clip(upper_bound=_ROWS - 1))
        most = part["row"].max()
        lanes[number]["rows"] = (most if isinstance(most, int) else 0) + 1
        parts.append(part)
    return pl.concat(parts)


def _packed(events: pl.DataFrame) -> list[int]:
    """The first row that is free for each of the events, which come by start."""
    free = list(range(_ROWS))
    running: list[tuple[int, int]] = []
    rows = []
    for start, length in events.select("start_ns", "length_ns").iter_rows():
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        row = heapq.heappop(free) if free else _ROWS - 1
        if len(running) < _ROWS:
            heapq.heappush(running, (start + length, row))
        rows.append(row)
    return rows
