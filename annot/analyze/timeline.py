"""Timeline for the page: a sample of the ranges and GPU activities of `annot.analyze.trace_events`, in lanes and rows.

A lane is a track with everything that overlaps on it: the page draws a lane as rows below each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.interval_sums import Cells, bounds_of, cells_of, in_lanes_of_cells
from annot.analyze.trace_events import activity_blocks, range_blocks
from annot.analyze.tracks import Lanes, Tracks
from annot.attribution import Attribution

__all__ = ["Timeline", "timeline"]

_EVENTS: Final = {
    "lane": pl.Int32, "row": pl.Int8, "start_ns": pl.Int64, "length_ns": pl.Int64, "text": pl.Categorical,
    "key": pl.Int32,
}  # fmt: skip
_ENDINGS: Final = {
    r"^(Backward|Recompute)( .*)? \|[a-z]+$": "$1$2",
    r" \|bwd$": " backward",
    r" \|re$": " recompute",
    r" \|[a-z]+$": "",
}
_LANES: Final = 64
_SLICE: Final = 1 << 20
_ROWS: Final = 24
"""Maximum number of rows in a lane; deeper events share the last row."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events in lanes.

    Args:
        events: lane, row (in the lane, from 0), start_ns (relative to `start_ns`), length_ns, text, key (number in
            `annot.attribution.range_trees.Forest.keys`); sorted by lane, row and start.
        lanes: name, kind of track, device (empty: host), rows: number of rows, total: number of events before sampling.
        start_ns: start of the first event.
        total: number of events in all lanes, before sampling.
        every: sampling interval of the shorter events: every n-th is present; 1: all events.
        left_out: number of lanes that are left out.
        cells: sums of the events of these lanes that are left out; their times are relative to `start_ns`. None: all
            events are there.
    """

    events: pl.DataFrame
    lanes: list[dict[str, Any]]
    start_ns: int
    total: int
    every: int
    left_out: int
    cells: Cells | None = None


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
    tracks = Tracks(attribution.meta)
    lanes, shown, total = _pick_lanes(pl.concat([pl.DataFrame(schema=_EVENTS), *_blocks(attribution, tracks)]), tracks)
    first = shown["start_ns"].min()
    start = first if isinstance(first, int) else 0
    shown = shown.with_columns(pl.col("start_ns") - start)
    events, step = _sampled(shown, lanes, most)
    cells = None
    if step > 1:
        bounds = bounds_of(shown)
        shown = in_lanes_of_cells(shown, lanes)  # the others are most of the memory
        cells = cells_of(shown, events, bounds, lanes, most)
    events = _assign_rows(events.cast({"row": pl.Int32})).with_columns(pl.col("text").cast(pl.String))
    for number, deepest in events.group_by("lane").agg(pl.col("row").max()).iter_rows():
        lanes[number]["rows"] = deepest + 1
    events = events.sort("lane", "row", "start_ns", maintain_order=True)
    return Timeline(events, lanes, start, total, step, len(tracks.all()) - len(lanes), cells)


def _blocks(attribution: Attribution, tracks: Tracks) -> Iterator[pl.DataFrame]:
    """The events with the columns of `_EVENTS`, in which `lane` is the number of the track."""
    labels = attribution.forest.labels.select(_shown_text().cast(pl.Categorical).alias("text"), "key")
    for kind, block in range_blocks(attribution):
        block = block.drop("lane", strict=False)  # what overlaps in a lane has rows of its own
        yield _compact(block.hstack(labels[block["label"]]), tracks.of(kind, block))
    for block in activity_blocks(attribution):
        yield _compact(block.rename({"name": "text"}), tracks.of("stream", block))


def _shown_text() -> pl.Expr:
    """The texts of ranges. Those of annot end in a word, as in ``fc Linear backward``, and not in their code."""
    text = pl.col("text").cast(pl.String)
    for ending, shown in _ENDINGS.items():
        text = text.str.replace(ending, shown)
    return pl.when("plain").then("text").otherwise(text)


def _compact(block: pl.DataFrame, track: pl.Series) -> pl.DataFrame:
    row = pl.col("row").clip(upper_bound=_ROWS - 1) if "row" in block.columns else pl.lit(None).alias("row")
    block = block.select("text", "key", row, track.alias("lane"), start_ns="start", length_ns="length")
    block = block.with_columns(pl.col("length_ns").clip(0).fill_null(0)).drop_nulls("start_ns")
    return block.select(pl.col(name).cast(dtype) for name, dtype in _EVENTS.items())


def _pick_lanes(every: pl.DataFrame, tracks: Tracks) -> tuple[list[dict[str, Any]], pl.DataFrame, int]:
    """The lanes with the most time, sorted by process and kind, their events, and the number of events in all lanes."""
    times = every.group_by("lane").agg(pl.col("length_ns").sum(), pl.len())
    longest = times.sort("length_ns", "lane", descending=[True, False]).head(_LANES)
    totals = dict(longest.select("lane", "len").iter_rows())
    shown = sorted((track for track in tracks.all() if track.number in totals), key=lambda track: track.order)
    several = len({track.group.process for track in shown}) > 1
    lanes = []
    for track in shown:
        owner = track.group.name if several else track.group.device
        name = f"{owner}, {track.name}" if owner else track.name.capitalize()
        device = owner if track.group.device else ""
        lanes.append({"name": name, "kind": track.kind, "device": device, "rows": 1, "total": totals[track.number]})
    lane_of = {track.number: lane for lane, track in enumerate(shown)}
    numbers = pl.Series("lane", [lane_of.get(track) for track in range(max(lane_of, default=0) + 1)], pl.Int32)
    events = every.with_columns(numbers.gather(every["lane"]))
    return lanes, events.drop_nulls("lane") if events["lane"].null_count() else events, every.height


def _sampled(events: pl.DataFrame, lanes: list[dict[str, Any]], most: int) -> tuple[pl.DataFrame, int]:
    """At most `most` events, and the sampling interval of the shorter ones."""
    if events.height <= most:
        return events, 1
    step = -(-2 * events.height // most)
    longest = (most * step - events.height) // (step - 1)  # the samples of the rest fill up to `most`
    # Filters keep the blocks of the events; to gather from blocks copies whole columns.
    best, length = events["length_ns"].clear(), events["length_ns"]
    for block in events.iter_slices(_SLICE):
        best = pl.concat([best, block["length_ns"]]).top_k(max(longest, 1))
    long = length >= best.min()
    order = pl.DataFrame({"event": long.arg_true(), "length": length.filter(long)})
    chosen = [order.sort("length", descending=True, maintain_order=True)["event"].head(longest)]
    rest, offset = ~_among(chosen[0], events.height), 0
    for number, lane in enumerate(lanes):  # lane by lane, because sorting takes several times the memory of its rows
        here = rest & (events["lane"] == number)
        rows = here.arg_true().alias("event")
        if lane["kind"] != "thread":  # ranges of threads are in order
            times = events.select("start_ns", "length_ns").filter(here).with_columns(rows)
            rows = times.sort("start_ns", "length_ns", descending=[False, True], maintain_order=True)["event"]
        chosen.append(rows.gather_every(step, offset))
        offset = (offset - len(rows)) % step
    kept = pl.concat(chosen).head(most)
    return events.filter(_among(kept, events.height))[kept.rank("ordinal") - 1], step


def _among(rows: pl.Series, count: int) -> pl.Series:
    """Return which of `count` rows are among the rows (Boolean)."""
    return pl.repeat(False, count, dtype=pl.Boolean, eager=True).scatter(rows, True)


def _assign_rows(events: pl.DataFrame) -> pl.DataFrame:
    """Put events without a row, which may overlap, into the first free row."""
    tables = [events.clear()]
    for group in events.sort("start_ns", maintain_order=True).partition_by("lane", maintain_order=True):
        if group["row"].null_count():
            row = Lanes().of(group["start_ns"], group["start_ns"] + group["length_ns"]).clip(upper_bound=_ROWS - 1)
            group = group.with_columns(row.alias("row"))
        tables.append(group)
    return pl.concat(tables)
