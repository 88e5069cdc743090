"""Events and tracks of a trace viewer: steps, ranges, launches and GPU activities, with flow arrows.

Tracks are steps, threads and layers of processes, and streams of devices. Events are built in blocks, so that a long
profile does not have to fit into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

import polars as pl

from annot.analyze.step_parts import Calls, typed
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known
from annot.attribution.nesting import KEY
from annot.attribution.range_trees import Forest

_Key: TypeAlias = tuple[int | None, ...]
_WHERE: Final = {
    "steps": ("process",),
    "thread": ("process", "thread"),
    "layers": ("process",),
    "crossing": ("process", "thread"),
    "launch": ("process", "thread"),
    "stream": ("process", "device", "stream"),
}
"""Kinds of tracks, with the columns that identify a track together with its lane."""
_THREADS: Final = {"thread": "", "crossing": ", crossing", "launch": ": launches"}
"""Kinds of tracks of a thread, with the end of their names."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process, or a device of a process."""

    number: int
    process: str
    device: str

    @property
    def name(self) -> str:
        """Name for display."""
        return f"{self.device} of {self.process}" if self.device else self.process


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the timeline."""

    number: int
    group: Group
    name: str
    kind: str
    order: tuple[Any, ...]
    """Sorts tracks by process, kind and the columns that identify them."""


class Tracks:
    """Groups and tracks, numbered from 1 in order of appearance; groups and tracks share the numbers.

    Args:
        meta: metadata of the profile, which names processes and devices.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._processes = {process["process"]: process for process in meta.get("processes", ())}
        self._unnamed: dict[int | None, int] = {}
        self._groups: dict[_Key, Group] = {}
        self._tracks: dict[tuple[str, _Key], Track] = {}
        self._threads: dict[int, dict[int | None, int]] = defaultdict(dict)
        self._lanes: dict[tuple[str, _Key], Lanes] = defaultdict(Lanes)

    def groups(self) -> list[Group]:
        """Return the groups of the tracks so far."""
        return list(self._groups.values())

    def all(self) -> list[Track]:
        """Return the tracks so far."""
        return list(self._tracks.values())

    def of(self, kind: str, rows: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each row.

        Args:
            kind: steps, thread, layers, crossing (ranges of a thread that cross), launch or stream.
            rows: process; thread of threads and launches; device and stream of streams (Int64); and lane, if rows
                that overlap are on tracks of their own.
        """
        where = rows.select(*_WHERE[kind], *(["lane"] if "lane" in rows.columns else []))
        distinct = where.unique(maintain_order=True)
        numbers = [self._track(kind, key).number for key in distinct.iter_rows()]
        tracks = distinct.with_columns(pl.Series("track", numbers, pl.Int32))
        return where.join(tracks, on=where.columns, how="left", nulls_equal=True, maintain_order="left")["track"]

    def of_overlapping(self, kind: str, rows: pl.DataFrame) -> pl.Series:
        """Return the track (Int32) of each row, with tracks of their own for rows that overlap, also across calls.

        The rows have the columns of the kind (see `of`), start and length (Int64), sorted by start.
        """
        rows = rows.select(*_WHERE[kind], "start", end=pl.col("start") + pl.col("length")).with_row_index("place")
        lanes = [
            group.select("place", *_WHERE[kind], self._lanes[kind, key].of(group["start"], group["end"]))
            for key, group in rows.partition_by(*_WHERE[kind], as_dict=True, maintain_order=True).items()
        ]
        return self.of(kind, pl.concat(lanes).sort("place") if lanes else rows)

    def _track(self, kind: str, key: _Key) -> Track:
        if (kind, key) not in self._tracks:
            process, *where = key
            group = self._group(process, where[0] if kind == "stream" else None, is_device=kind == "stream")
            order = ((process is None, process), [*_WHERE].index(kind), *((number is None, number) for number in where))
            self._tracks[kind, key] = Track(self._next(), group, self._name(kind, where, group), kind, order)
        return self._tracks[kind, key]

    def _name(self, kind: str, where: list[int | None], group: Group) -> str:
        if kind in _THREADS:
            threads = self._threads[group.number]
            return f"thread {threads.setdefault(where[0], len(threads) + 1)}{_THREADS[kind]}"
        lane = where[len(_WHERE[kind]) - 1 :]
        name = kind if kind != "stream" else "unknown stream" if where[1] is None else f"stream {where[1]}"
        return f"{name}, overlapping" if any(lane) else name

    def _group(self, process: int | None, device: int | None, *, is_device: bool) -> Group:
        key = (process, device, int(is_device))
        if key not in self._groups:
            facts = self._processes.get(process, {})
            count = self._unnamed.setdefault(process, len(self._unnamed) + 1)
            host = f"{facts.get('name') or 'process'} {facts.get('pid', count)}"
            named = f"GPU {'unknown' if device is None else device}" if is_device else ""
            self._groups[key] = Group(self._next(), host, named)
        return self._groups[key]

    def _next(self) -> int:
        return len(self._groups) + len(self._tracks) + 1


class Lanes:
    """Lanes for events that overlap: an event gets the first lane that is free at its start.

    Example:
        >>> lanes = Lanes()
        >>> lanes.of(pl.Series([0, 1, 2]), pl.Series([9, 2, 3])).to_list(), lanes.of(pl.Series([8]), pl.Series([9]))[0]
        ([0, 1, 1], 1)
    """

    def __init__(self) -> None:
        self._running: list[tuple[int, int]] = []  # heap of the ends of running events, with their lanes
        self._free: list[int] = []  # heap

    def of(self, starts: pl.Series, ends: pl.Series) -> pl.Series:
        """Return the lane (Int32) of each event, from 0; call it in order of start."""
        if not (starts < ends.cum_max().shift(1)).any():
            self._release(starts[0])
            if not self._running or self._free[:1] == [0]:
                self.place(starts[0], ends.cum_max()[-1])  # one event in place of many: no loop
                return pl.Series("lane", [0], pl.Int32).new_from_index(0, len(starts))
        return pl.Series("lane", [self.place(*times) for times in zip(starts, ends, strict=True)], pl.Int32)

    def place(self, start: int, end: int) -> int:
        """Return the lane of an event."""
        self._release(start)
        lane = heappop(self._free) if self._free else len(self._running)
        heappush(self._running, (end, lane))
        return lane

    def _release(self, at: int) -> None:
        while self._running and self._running[0][0] <= at:
            heappush(self._free, heappop(self._running)[1])


def _nested_lanes(forest: Forest) -> pl.DataFrame:
    """Return lanes for the ranges of processes, in the order of the tree.

    Two ranges in the same lane either do not overlap, or are nested in the tree as well. The columns are process, lane
    (the first free one, from 0 in each process) and row (place among all rows of the process, where the lanes are below
    each other and inner ranges below outer ones).
    """
    first = forest.thread_range_count
    shared = forest.tree.slice(first)
    lanes: dict[int, Lanes] = defaultdict(Lanes)
    placed: list[tuple[int, int, int]] = []
    until: list[int] = []  # a range leaves its lane free for inner ranges from then on
    process = forest.threads.table["process"].gather(shared["thread"])
    for code, start, end, parent in zip(process, shared["start"], shared["end"], shared["parent"], strict=True):
        above = parent - first
        if above >= 0 and until[above] <= start:
            until[above] = end
            _, lane, depth = placed[above]
            placed.append((code, lane, depth + 1))
        else:
            placed.append((code, lanes[code].place(start, end), 0))
        until.append(start)
    rows = pl.DataFrame(placed, schema={"process": pl.Int64, "lane": pl.Int32, "row": pl.Int32}, orient="row")
    heights = rows.group_by("process", "lane").agg(height=pl.col("row").max() + 1).sort("process", "lane")
    tops = heights.select("process", "lane", top=(pl.col("height").cum_sum() - pl.col("height")).over("process"))
    rows = rows.join(tops, on=["process", "lane"], how="left", maintain_order="left")
    return rows.select("process", "lane", row=(pl.col("row") + pl.col("top")).cast(pl.Int32))


EVENTS: Final = {
    "track": pl.Int32,  # number in `Events.tracks`; events on a track are nested, except those of kind "crossing"
    "kind": pl.String,  # "range", "crossing" (overlaps others, or ends on another thread), "step", "launch", "kernel"
    # or "copy"
    "name": pl.String,
    "start": pl.Int64,  # ns since `Events.zero`
    "length": pl.Int64,  # ns
    "layer": pl.String,  # layer, module and phase are null for launches
    "module": pl.String,
    "phase": pl.String,
    "shapes": pl.String,  # of ranges; null: unknown
    "gpu_ns": pl.Int64,  # of nested ranges: GPU time launched in them
    "arrow_out": pl.Int64,  # id of the arrow that starts here; null: none
    "arrow_in": pl.Int64,  # id of the arrow that ends here; an arrow may end at several events
}
_SLICE: Final = 1 << 16


def range_blocks(attribution: Attribution) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the ranges in blocks, each with the kind of its tracks; nothing if CPU times are unknown.

    The blocks have process, thread (Int64) or lane (Int32), kind, start, length (ns), label (row of `forest.labels`),
    range (row of `forest.tree`) and row (depth on the track, Int32). Crossing ranges lack the last two.
    """
    if not known(attribution.meta):
        return
    forest = attribution.forest
    rows = forest.tree.select("thread", "start", "end", "label").with_row_index("range")
    nested, shared = rows.head(forest.thread_range_count), rows.slice(forest.thread_range_count)
    _, depth = column_ops.parents(nested["thread"], nested["end"])
    tables = {
        "thread": nested.with_columns(depth.alias("row")),
        "layers": shared.hstack(_nested_lanes(forest).drop("process")),
        "crossing": forest.crossing.select("thread", "start", "end", "label"),
    }
    threads = forest.threads.table.select("process", "thread")
    for kind, ranges in tables.items():
        for block in ranges.iter_slices(_SLICE):
            length = (pl.col("end") - pl.col("start")).alias("length")
            block = block.with_columns(length, kind=pl.lit("crossing" if kind == "crossing" else "range"))
            yield kind, block.drop("thread", "end").hstack(threads[block["thread"]])


def activity_blocks(attribution: Attribution) -> Iterator[pl.DataFrame]:
    """Yield the GPU activities in blocks.

    The blocks have process, device, stream, correlation (Int64), kind, name, start, length (ns) and key (number in
    `forest.keys`, Int32).
    """
    kind = pl.when("kernel").then(pl.lit("kernel")).otherwise(pl.lit("copy"))
    for block in attribution.activity_blocks():
        block = block.drop_nulls("start")
        keys = pl.Series("key", attribution.forest.nodes.keys, pl.Int32).gather(block["node"])
        numbers = [pl.col(name).cast(pl.Int64) for name in ("process", "device", "stream", "correlation")]
        yield block.select(*numbers, "name", "start", keys, kind=kind, length="gpu_ns")


class Events:
    """Events of a profile, in blocks.

    Raises ValueError if the attribution was made without its source.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "start": [10], "end": [25], "name": ["gemm"]}
        >>> found = Events(attribute(Profile.build({}, kernels=pl.DataFrame(kernel))))
        >>> pl.concat(found.blocks()).select("name", "start", "length").rows()
        [('gemm', 0, 15)]
    """

    def __init__(self, attribution: Attribution) -> None:
        if attribution.source is None:
            raise ValueError("the attribution lacks its source, so its GPU activities cannot be read again")
        self._attribution, self._source = attribution, attribution.source
        self._has_times = known(attribution.meta)
        self.tracks = Tracks(attribution.meta)
        """The tracks of the blocks so far."""

    @cached_property
    def zero(self) -> int:
        """The earliest time in the profile, in ns of its clock."""
        forest = self._attribution.forest
        starts = [ranges["start"].min() for ranges in (forest.tree, forest.crossing)] if self._has_times else []
        for blocks in (self._calls(), self._source.work_blocks()):
            starts += [block["start"].min() for block in blocks]
        starts += [self._attribution.steps.table["start"].min() if self._has_times else None]
        return min((start for start in starts if isinstance(start, int)), default=0)

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all events with the columns of `EVENTS`: steps, ranges, launches, then GPU activities."""
        zero, tables = self.zero, [self._activities()]
        if self._has_times:
            tables = [self._steps(), self._ranges(), self._launches(), *tables]
        for blocks in tables:
            for block in blocks:
                for rows in block.with_columns(pl.col("start") - zero).iter_slices(_SLICE):
                    yield typed(rows, EVENTS)

    @cached_property
    def _arrows(self) -> tuple[Calls, pl.Series, pl.DataFrame]:
        """The API calls, the arrow of each (null: the call launched nothing), and begin, end and arrow of ranges."""
        calls = Calls()
        for block in self._calls():
            calls.add(block.drop_nulls(["thread", "start"]))
        used = pl.Series("used", [False], pl.Boolean).new_from_index(0, len(calls.settle().start))
        for block in self._attribution.activity_blocks():
            used = used.scatter(calls.rows(block["process"], block["correlation"]).drop_nulls().unique(), True)
        launches = pl.select(pl.when(used).then(used.cast(pl.Int64).cum_sum() - 1)).to_series()
        pairs = _forward_pairs(self._attribution.forest)
        return calls, launches, pairs.select("begin", "end", arrow=pl.int_range(pl.len(), dtype=pl.Int64) + used.sum())

    def _find_calls(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the arrow and the start of the call for each process and correlation id."""
        calls, arrows, _ = self._arrows
        index = calls.rows(rows["process"], rows["correlation"])
        return pl.DataFrame({"arrow": arrows.gather(index), "called": calls.start.gather(index)})

    def _calls(self) -> Iterator[pl.DataFrame]:
        """The API calls; empty if CPU times are unknown."""
        return self._source.launch_blocks() if self._has_times else iter(())

    def _steps(self) -> Iterator[pl.DataFrame]:
        steps = self._attribution.steps
        table = steps.table.filter(steps.selected(steps.table["step"]))
        codes = self._attribution.whole.threads.table.select("process", "process_code").unique()
        rows = table.rename({"process": "process_code"}).join(codes, on="process_code", how="left")
        name = pl.format("step {}{}", "step", pl.when("warmup").then(pl.lit(" (warm-up)")).otherwise(pl.lit("")))
        length = pl.col("end") - pl.col("start")
        track = self.tracks.of("steps", rows)
        yield rows.select("start", track, name=name, length=length, kind=pl.lit("step"))

    def _ranges(self) -> Iterator[pl.DataFrame]:
        forest = self._attribution.forest
        own = self._attribution.range_work("gpu_self_ns").to_series()
        gpu_ns = column_ops.fold(forest.tree["parent"], own)
        del own
        labels = _named_labels(forest)
        for kind, block in range_blocks(self._attribution):
            rows = block.with_columns(self.tracks.of("thread" if kind == "crossing" else kind, block))
            rows = rows.hstack(labels[rows["label"]])
            if kind != "crossing":
                rows = rows.with_columns(gpu_ns.gather(rows["range"]).alias("gpu_ns"))
                for name, side in {"arrow_out": "begin", "arrow_in": "end"}.items():
                    arrow = self._arrows[2].select(pl.col(side).alias("range"), pl.col("arrow").alias(name))
                    rows = rows.join(arrow, on="range", how="left", maintain_order="left")
            yield rows

    def _launches(self) -> Iterator[pl.DataFrame]:
        for block in self._calls():
            name = _text("name") if "name" in block.columns else pl.lit("launch").alias("name")
            numbers = [pl.col(column).cast(pl.Int64) for column in ("process", "thread", "start", "end", "correlation")]
            rows = block.select(*numbers, name)
            rows = rows.hstack(self._find_calls(rows)).filter(pl.col("called") == pl.col("start")).drop_nulls("arrow")
            length = (pl.col("end") - pl.col("start")).clip(lower_bound=0).fill_null(0)
            rows = rows.unique("arrow", keep="first").with_columns(length=length, kind=pl.lit("launch"))
            rows = rows.rename({"arrow": "arrow_out"}).sort("start", maintain_order=True)
            yield rows.with_columns(self.tracks.of_overlapping("launch", rows))

    def _activities(self) -> Iterator[pl.DataFrame]:
        keys = self._attribution.forest.layers()
        for block in activity_blocks(self._attribution):
            arrow = self._find_calls(block)["arrow"].alias("arrow_in")
            rows = block.with_columns(_text("name"), arrow).hstack(keys[block["key"]])
            rows = rows.sort("start", maintain_order=True)
            yield rows.with_columns(self.tracks.of_overlapping("stream", rows))


def _named_labels(forest: Forest) -> pl.DataFrame:
    """Parsed labels with a name for display: ``features.0 Conv2d backward``."""
    model = pl.when((pl.col("layer") == "") & (pl.col("module") != "") & pl.col("layered")).then(pl.lit("(model)"))
    operation = pl.col("role").is_in(["operator", "backward"]).fill_null(False)
    phase = pl.when(pl.col("phase").is_in(["backward", "recompute", "optimizer"]) & ~operation)
    words = (pl.coalesce(model, "layer"), "module", pl.col("number").cast(pl.String), phase.then("phase"))
    texts = pl.concat_list(*words).list.drop_nulls()
    name = texts.list.eval(pl.element().filter(pl.element() != "")).list.join(" ")
    return forest.labels.select(name.alias("name"), *KEY, "shapes")


def _text(name: str) -> pl.Expr:
    """A column of names as strings: categorical codes are only valid in their block."""
    return pl.col(name).cast(pl.String).fill_null("")


def _forward_pairs(forest: Forest) -> pl.DataFrame:
    """Return begin and end (UInt32): rows in `forest.tree` of forward and backward ranges, each at most once.

    Operations are paired by autograd's sequence number. A backward range of a layer belongs to the last forward call
    without one, because the backward pass processes the calls in reverse order.
    """
    rows = {"begin": list(forest.pairs.values()), "end": list(forest.pairs)}
    by_number = pl.DataFrame(rows, schema=dict.fromkeys(rows, pl.UInt32))
    pairs = pl.concat([_backward_pairs(forest), by_number.sort("end")])
    return pairs.unique("begin", keep="first", maintain_order=True).unique("end", keep="first", maintain_order=True)


def _backward_pairs(forest: Forest) -> pl.DataFrame:
    process = forest.threads.table["process_code"].gather(forest.tree["thread"]).alias("process")
    paired = pl.col("layered") & pl.col("phase").is_in(["forward", "backward"]) & (pl.col("module") != "")
    labels = forest.labels.select(*KEY, paired=paired)
    rows = forest.tree.select("start", "label").with_row_index("row").with_columns(process)
    rows = rows.filter(labels["paired"].gather(rows["label"]))
    rows = rows.hstack(labels.select(KEY)[rows["label"]]).sort("start", maintain_order=True)
    of_layer = ["process", "layer", "module"]
    forward = pl.col("phase") == "forward"
    # Match like brackets: a forward range opens, a backward range closes the last open one.
    level = pl.when(forward).then(1).otherwise(-1).cum_sum().over(of_layer) + pl.when(forward).then(0).otherwise(1)
    rows = rows.with_columns(level.alias("level"))
    before = pl.col("row", "phase").shift(1).over([*of_layer, "level"])
    rows = rows.with_columns(before.name.suffix("_before"))
    pairs = rows.filter(~forward & (pl.col("phase_before") == "forward"))
    return pairs.select(begin="row_before", end="row")
