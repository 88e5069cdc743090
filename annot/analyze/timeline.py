"""Timeline for charts: ranges of threads and GPU activities of streams in lanes, sampled to a maximum number."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import polars as pl

from annot.analyze.gpu_activities import attributed_blocks
from annot.analyze.lanes import process_lanes
from annot.attribution import Attribution, column_ops
from annot.attribution.host_times import known
from annot.attribution.range_trees import Forest

__all__ = ["Timeline", "timeline"]

_EVENTS: Final = {
    "lane": pl.Int32, "row": pl.Int32, "start_ns": pl.Int64, "length_ns": pl.Int64, "text": pl.String, "key": pl.Int32,
}  # fmt: skip
_PLACE: Final = ("process", "thread", "device", "stream")
_KIND: Final = pl.Enum(["range", "process", "crossing", "work"])
_LANES: Final = 64
_ROWS: Final = 24
"""Maximum number of rows in a lane; deeper events share the last row."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events in lanes.

    Args:
        events: lane, row (in the lane, from 0), start_ns (relative to `start_ns`), length_ns, text, key (layer id in
            the forest of `annot.attribution.Attribution`; -1: none); sorted by lane, row and start.
        lanes: kind ("range", "process", "crossing" or "work"), process, thread, device, stream (None: does not apply),
            rows: number of rows, total: number of events before sampling.
        start_ns: start of the first event.
        total: number of events in all lanes, before sampling.
        every: sampling interval of the shorter events: every n-th is present; 1: all events; 0: only the longest.
        left_out: number of lanes that are left out.
    """

    events: pl.DataFrame
    lanes: list[dict[str, Any]]
    start_ns: int
    total: int
    every: int
    left_out: int


def timeline(attribution: Attribution, most: int = 100_000) -> Timeline:
    """Return the timeline of the selected steps.

    If there are more than `most` events, at least about half of the result are the longest events, and the others are
    sampled evenly from the rest. At most 64 lanes are returned: those with the most time.

    Args:
        attribution: the profile.
        most: maximum number of events.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "stream": [7], "start": [10], "end": [25], "name": ["gemm"]}
        >>> timeline(attribute(Profile.build({}, kernels=pl.DataFrame(kernel)))).events.row(0)
        (0, 0, 0, 15, 'gemm', 2)
    """
    places: dict[_Place, int] = {}
    every = pl.concat([pl.DataFrame(schema=_ROW), *_ranges(attribution, places), *_activities(attribution, places)])
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
"""Compact columns of an event: the place is an index, and texts are categorical."""


def _conform(part: pl.DataFrame) -> pl.DataFrame:
    rows = part.select(pl.col(name).cast(dtype) for name, dtype in _ROW.items())
    return rows.with_columns(pl.col("length_ns").clip(0).fill_null(0)).drop_nulls("start_ns")


def _numbered(where: pl.DataFrame, kind: str, places: dict[_Place, int]) -> pl.Series:
    """The index of each row's place, identified by the columns of `_PLACE` that the table contains."""
    distinct = where.unique(maintain_order=True)
    rows = distinct.select(pl.col(n) if n in where.columns else pl.lit(None, pl.Int64).alias(n) for n in _PLACE)
    numbers = [places.setdefault((kind, *row), len(places)) for row in rows.iter_rows()]
    known_places = distinct.with_columns(pl.Series("place", numbers, pl.Int32))
    return where.join(known_places, on=where.columns, how="left", nulls_equal=True, maintain_order="left")["place"]


def _ranges(attribution: Attribution, places: dict[_Place, int]) -> Iterator[pl.DataFrame]:
    """Events of nested ranges of threads (row: depth), process ranges and crossing ranges."""
    forest = attribution.forest
    if not known(attribution.meta):
        return
    nested, shared = forest.tree.head(forest.thread_range_count), forest.tree.slice(forest.thread_range_count)
    _, depth = column_ops.parents(nested["thread"], nested["end"])
    none = pl.Series("row", [None], pl.Int32).new_from_index(0, forest.crossing.height)
    threads, labels = forest.threads.table, forest.labels.select(pl.col("text").cast(pl.Categorical), "key")
    for kind, rows, row in (
        ("range", nested, depth),
        ("process", shared, _rows(forest)),
        ("crossing", forest.crossing, none),
    ):
        of_thread = _numbered(threads.select(["process"] if kind == "process" else ["process", "thread"]), kind, places)
        times = rows.select(start_ns="start", length_ns=pl.col("end") - pl.col("start"))
        texts = [column.gather(rows["label"]) for column in labels]
        yield _conform(times.with_columns(of_thread.gather(rows["thread"]), row.alias("row"), *texts))


def _rows(forest: Forest) -> pl.Series:
    """The row of each process range, with the lanes of a process stacked below each other."""
    lanes = process_lanes(forest)
    heights = lanes.group_by("process", "lane").agg((pl.col("row").max() + 1).alias("height")).sort("process", "lane")
    offset = (pl.col("height").cum_sum() - pl.col("height")).over("process")
    tops = heights.select("process", "lane", top=offset)
    found = lanes.join(tops, on=["process", "lane"], how="left", maintain_order="left")
    return found["row"].cast(pl.Int64) + found["top"].cast(pl.Int64)


def _activities(attribution: Attribution, places: dict[_Place, int]) -> Iterator[pl.DataFrame]:
    key_of_node = pl.Series("key", attribution.forest.nodes.keys, pl.Int32)
    for block in attributed_blocks(attribution):
        place = _numbered(block.select(pl.col("process", "device", "stream").cast(pl.Int64)), "work", places)
        work = block.select(start_ns="start", length_ns="gpu_ns", text="name", row=pl.lit(None, pl.Int32))
        yield _conform(work.with_columns(place, key_of_node.gather(block["node"])))


def _lanes(every: pl.DataFrame, places: dict[_Place, int]) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """The lanes with the most time, grouped by process, and their events with the lane."""
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
    """At most `most` events, and the sampling interval of the shorter ones."""
    if events.height <= most:
        return events, 1
    step = -(-2 * events.height // most)
    longest = (most * step - events.height) // (step - 1)  # the samples of the rest fill up to `most`
    # Sorting indices takes half the time of sorting the table.
    order = events.select(pl.arg_sort_by("length_ns", descending=True, maintain_order=True)).to_series()
    rest = events[order.slice(longest)].select("lane", "start_ns", pl.Series("event", order.slice(longest)))
    rest = rest.sort("lane", "start_ns", maintain_order=True).gather_every(step)
    return events[pl.concat([order.head(longest), rest["event"]]).head(most)], step


def _in_rows(events: pl.DataFrame, lanes: list[dict[str, Any]]) -> pl.DataFrame:
    """Assign rows to events without one, and set the number of rows of each lane."""
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
    """The first free row of each event, in order of start."""
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
