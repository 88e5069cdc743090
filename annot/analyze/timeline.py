"""What happened when: ranges of threads and work of streams in lanes, as many as a picture can hold."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import polars as pl

from annot.analyze.pieces import placed_blocks
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
    places: dict[_Place, int] = {}
    every = pl.concat([pl.DataFrame(schema=_ROW), *_ranges(attribution, places), *_work(attribution, places)])
    lanes, found = _lanes(every, places)
    first = found["start_ns"].min()
    start = first if isinstance(first, int) else 0
    events, step = _sampled(found, most)
    events = _in_rows(events.with_columns(pl.col("start_ns") - start), lanes)
    events = events.select([*_EVENTS]).cast(pl.Schema(_EVENTS)).sort("lane", "row", "start_ns", maintain_order=True)
    left_out = every["place"].n_unique() - len(lanes)
    return Timeline(events, lanes, start, every.height, step, left_out)


_Place: TypeAlias = tuple[str | int | None, ...]
_ROW: Final = {
    "place": pl.Int32, "row": pl.Int32, "start_ns": pl.Int64, "length_ns": pl.Int64, "text": pl.Categorical,
    "key": pl.Int32,
}  # fmt: skip
"""An event as it is held while there are millions: where it is by number, and texts of which each is there once."""


def _conform(part: pl.DataFrame) -> pl.DataFrame:
    rows = part.select(pl.col(name).cast(dtype) for name, dtype in _ROW.items())
    return rows.with_columns(pl.col("length_ns").clip(0).fill_null(0)).drop_nulls("start_ns")


def _numbered(where: pl.DataFrame, kind: str, places: dict[_Place, int]) -> pl.Series:
    """The number of each place: of `_PLACE`, what there is."""
    distinct = where.unique(maintain_order=True)
    rows = distinct.select(pl.col(n) if n in where.columns else pl.lit(None, pl.Int64).alias(n) for n in _PLACE)
    numbers = [places.setdefault((kind, *row), len(places)) for row in rows.iter_rows()]
    there = distinct.with_columns(pl.Series("place", numbers, pl.Int32))
    return where.join(there, on=where.columns, how="left", nulls_equal=True, maintain_order="left")["place"]


def _ranges(attribution: Attribution, places: dict[_Place, int]) -> Iterator[pl.DataFrame]:
    """Ranges of threads that nest, with their depth, those of processes side by side, and those that cross others."""
    forest = attribution.forest
    if not known(attribution.meta):
        return
    nested, shared = forest.tree.head(forest.trunk), forest.tree.slice(forest.trunk)
    _, depth = sweep.parents(nested["thread"], nested["end"])
    none = pl.Series("row", [None], pl.Int32).new_from_index(0, forest.loose.height)
    threads, says = forest.threads.table, forest.says.select(pl.col("text").cast(pl.Categorical), "key")
    for kind, rows, row in (
        ("range", nested, depth),
        ("process", shared, _rows(forest)),
        ("crossing", forest.loose, none),
    ):
        of_thread = _numbered(threads.select(["process"] if kind == "process" else ["process", "thread"]), kind, places)
        times = rows.select(start_ns="start", length_ns=pl.col("end") - pl.col("start"))
        said = [column.gather(rows["says"]) for column in says]
        yield _conform(times.with_columns(of_thread.gather(rows["thread"]), row.alias("row"), *said))


def _rows(forest: Forest) -> pl.Series:
    """The row of each range of a process: its lanes lie one below the other, each as high as it has to be."""
    lanes = process_lanes(forest)
    heights = lanes.group_by("process", "lane").agg((pl.col("row").max() + 1).alias("height")).sort("process", "lane")
    above = (pl.col("height").cum_sum() - pl.col("height")).over("process")
    tops = heights.select("process", "lane", top=above)
    found = lanes.join(tops, on=["process", "lane"], how="left", maintain_order="left")
    return found["row"].cast(pl.Int64) + found["top"].cast(pl.Int64)


def _work(attribution: Attribution, places: dict[_Place, int]) -> Iterator[pl.DataFrame]:
    key_of_node = pl.Series("key", attribution.forest.nodes.keys, pl.Int32)
    for block in placed_blocks(attribution):
        place = _numbered(block.select(pl.col("process", "device", "stream").cast(pl.Int64)), "work", places)
        work = block.select(start_ns="start", length_ns="gpu_ns", text="name", row=pl.lit(None, pl.Int32))
        yield _conform(work.with_columns(place, key_of_node.gather(block["node"])))


def _lanes(every: pl.DataFrame, places: dict[_Place, int]) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """The lanes with the most time, those of a process together, and the events in them with their lane."""
    schema = pl.Schema({"kind": _KIND, **dict.fromkeys(_PLACE, pl.Int64())})
    where = pl.DataFrame(list(places), schema=schema, orient="row").with_columns(
        place=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    groups = every.group_by("place").agg(pl.col("length_ns").sum(), pl.len().cast(pl.Int64).alias("total"))
    groups = groups.join(where, on="place").sort("length_ns", "place", descending=[True, False]).head(_LANES)
    groups = groups.sort("process", "kind", *_PLACE[1:], nulls_last=True).with_row_index("lane")
    lane = where.join(groups.select("place", "lane"), on="place", how="left", maintain_order="left")["lane"]
    found = every.with_columns(lane.gather(every["place"]).alias("lane")).drop("place")
    lanes = groups.select("kind", *_PLACE, "total").to_dicts()
    return lanes, found.drop_nulls("lane") if found["lane"].null_count() else found


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
            part = part.with_columns(pl.Series("row", _packed(part), pl.Int32))
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
