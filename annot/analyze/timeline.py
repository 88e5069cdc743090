"""The timeline of the page: a sample of the ranges and GPU activities of `annot.analyze.trace_events`.

A lane is a track with everything that overlaps on it: the page draws a lane as rows below each other. Cells of time
have the sums of the events that the sample leaves out. The page adds up the events that it has, and the cells in an
interval. Sums are exact from cell to cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.trace_events import Lanes, Tracks, activity_blocks, range_blocks
from annot.attribution.attribute import Attribution

_CELLS: Final = 2048
_HOST: Final = ("thread", "layers")
"""Kinds of tracks whose ranges nest."""
_KEYS: Final = ("lane", "key", "text")
_SUM_SLICE: Final = 1 << 18
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


def _bounds_of(events: pl.DataFrame) -> pl.Series:
    """Return the bounds of cells with about as many starts of events each."""
    starts = events["start_ns"].sort()
    last = events.select((pl.col("start_ns") + pl.col("length_ns")).max()).to_series()
    return pl.concat([starts.gather_every(-(-events.height // _CELLS)).unique(), last]).unique().sort()


def _in_lanes_of_cells(events: pl.DataFrame, lanes: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return the events in the lanes whose sums cells have: those of devices, or without any those of the host."""
    devices = any(lane["device"] for lane in lanes)
    numbers = [number for number, lane in enumerate(lanes) if lane["device"] or (not devices and lane["kind"] in _HOST)]
    return events.filter(pl.col("lane").is_in(numbers))


def _cells_of(
    every: pl.DataFrame, kept: pl.DataFrame, bounds: pl.Series, lanes: Sequence[dict[str, Any]], most: int
) -> Cells:
    """Return the sums of `every` event that the events `kept` do not have.

    Args:
        every: result of `_in_lanes_of_cells` for events with the columns lane, row, start_ns, length_ns, text and key.
        kept: some of the events.
        bounds: result of `_bounds_of`.
        lanes: device and kind of each lane.
        most: maximum number of rows of the sums. A cell becomes longer until they fit.
    """
    first_of: dict[str, int] = {}
    for place, lane in enumerate(lanes):
        first_of.setdefault(lane["device"], place)
    devices = {place: first_of[lane["device"]] for place, lane in enumerate(lanes) if lane["device"]}
    intervals = [_intervals(events, devices, lanes) for events in (every, _in_lanes_of_cells(kept, lanes))]
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
    every = [_cut(some, bounds, keys) for some in intervals.iter_slices(_SUM_SLICE)] or [_cut(intervals, bounds, keys)]
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


_EVENTS: Final = {
    "lane": pl.Int32,
    "row": pl.Int8,
    **dict.fromkeys(("start_ns", "length_ns"), pl.Int64),
    "text": pl.Categorical,
    "key": pl.Int32,
}
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
        >>> from annot.attribution.attribute import attribute
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
        bounds = _bounds_of(shown)
        shown = _in_lanes_of_cells(shown, lanes)  # the others are most of the memory
        cells = _cells_of(shown, events, bounds, lanes, most)
    events = _assign_rows(events.cast({"row": pl.Int32})).with_columns(pl.col("text").cast(pl.String))
    for number, deepest in events.group_by("lane").agg(pl.col("row").max()).iter_rows():
        lanes[number]["rows"] = deepest + 1
    events = events.sort("lane", "row", "start_ns", maintain_order=True)
    return Timeline(
        events=events,
        lanes=lanes,
        start_ns=start,
        total=total,
        every=step,
        left_out=len(tracks.all()) - len(lanes),
        cells=cells,
    )


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
