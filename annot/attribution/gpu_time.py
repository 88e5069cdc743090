"""Attribution of GPU activities and of memory marks to ranges and layers.

`Busy` is the reference implementation of `annot/native/tables/busy_time.c`, with the conventions of
`annot.attribution.column_ops`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import NONE, Numbers, high_of, low_of, one_chunk, owner_columns, pair
from annot.attribution.launches import Launches
from annot.attribution.nesting import Key, Nodes
from annot.attribution.range_trees import Forest, loops
from annot.labels.marks import MEMORY, parse_memory
from annot.labels.tag import DOMAIN
from annot.native import tables
from annot.profile import Source

_TIMES: Final = ("busy_ns", "first_ns", "last_ns")
_RESULT: Final = dict.fromkeys(("key", "device"), pl.Int32) | dict.fromkeys(_TIMES, pl.Int64)


class Busy:
    """Busy time of each device per key, from the parent and key (Int32) of each node. Concurrent streams count once."""

    def __init__(self, node_parent: pl.Series, node_key: pl.Series) -> None:
        native = tables()
        keys = max(node_key.to_list(), default=NONE) + 1
        self._native: Any = native and native.Busy(*one_chunk(node_parent, node_key), keys)
        self._nodes = None if self._native is not None else Nodes.of(node_parent, node_key)
        self._blocks: list[pl.DataFrame] = []
        self._last: int | None = None

    def add(self, node: pl.Series, device: pl.Series, start: pl.Series, end: pl.Series) -> bool:
        """Add GPU activities to every key on the path of their node (Int32; -1 is ignored), by device code (Int32).

        Returns whether the starts ascend over all calls. If not, the result is invalid.
        """
        if self._native is not None:
            return bool(self._native.add(*one_chunk(node, device, start, end)))
        block = pl.DataFrame({"node": node, "device": device, "start": start, "end": end})
        block = block.filter(pl.col("node") != NONE)
        if block.is_empty():
            return True
        starts = block["start"]
        sorted_ = starts.is_sorted() and (self._last is None or starts[0] >= self._last)
        self._last = starts[-1]
        self._blocks.append(block)
        return sorted_

    def result(self) -> pl.DataFrame:
        """Return key, device (Int32), busy_ns, first_ns and last_ns (Int64): a row per key and device with activity."""
        if self._native is not None:
            columns = map(pl.Series, self._native.result())
            return pl.DataFrame(dict(zip(_RESULT, columns, strict=True))).sort("key", "device")
        rows: list[tuple[int, ...]] = []
        if self._nodes is not None and self._blocks:
            topmost = self._nodes.outermost(self._nodes.keys)
            for (device,), activities in pl.concat(self._blocks).partition_by("device", as_dict=True).items():
                rows += [(key, device, *times) for key, *times in _device_times(self._nodes, topmost, activities)]
        return pl.DataFrame(rows, schema=_RESULT, orient="row").sort("key", "device")


class _Union:
    """Union of intervals: its length, its first and its last instant."""

    def __init__(self) -> None:
        # Intervals are in descending order of time, stored with negative times. Nodes are merged into their parents,
        # whose intervals mostly started earlier, so that new intervals are appended at the end of the list.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.ns = 0
        self.first, self.last = 1 << 63, -1 << 63

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, start: int, end: int) -> None:
        self.first, self.last = min(self.first, start), max(self.last, end)
        if end > start:
            self._cover(-end, -start)

    def _cover(self, begin: int, end: int) -> None:
        low, high = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if low < high:  # merge with the intervals that it touches
            begin, end = min(begin, self._begins[low]), max(end, self._ends[high - 1])
        self.ns += end - begin - sum(self._ends[low:high]) + sum(self._begins[low:high])
        self._begins[low:high], self._ends[low:high] = [begin], [end]

    def merge(self, other: _Union) -> None:
        """Add the intervals of another union."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        for begin, end in zip(other._begins, other._ends, strict=True):
            self._cover(begin, end)


def _device_times(nodes: Nodes, topmost: list[bool], activities: pl.DataFrame) -> Iterator[tuple[int, int, int, int]]:
    """Yield key, busy_ns, first_ns and last_ns of one device.

    Each node is merged into its parent, from the last node to the first. The shorter list is merged into the longer
    one, so that each interval moves at most O(log n) times in a tree of any depth. The union of a key is the union of
    its topmost nodes.
    """
    topmost_count = Counter(key for key, top in zip(nodes.keys, topmost, strict=True) if top)
    unions: dict[int, _Union] = {}
    several: dict[int, _Union] = {}
    for node, start, end in activities.select("node", "start", "end").iter_rows():
        unions.setdefault(node, _Union()).add(start, end)
    for node in range(len(nodes) - 1, NONE, -1):
        union = unions.pop(node, None)
        if union is None:
            continue
        key, parent = nodes.keys[node], nodes.parents[node]
        if topmost[node] and topmost_count[key] == 1:
            yield key, union.ns, union.first, union.last
        elif topmost[node]:
            several.setdefault(key, _Union()).merge(union)
        if parent != NONE:
            shorter, longer = sorted((union, unions.get(parent, _Union())), key=len)
            longer.merge(shorter)
            unions[parent] = longer
    for key, union in several.items():
        yield key, union.ns, union.first, union.last


MEMORY_COLUMNS: Final = ("memory_source", "memory_change_bytes", "memory_peak_bytes")
_PHASES: Final = ("forward", "backward", "recompute")


def memory_of(source: Source, forest: Forest) -> pl.DataFrame | None:
    """Return the memory of the layers in the selected steps, or None if the profile has no memory marks.

    The rows have key (Int64), memory_source, memory_change_bytes (sum over the calls) and memory_peak_bytes (maximum
    over the calls).
    """
    marks = source.marks
    if marks.is_empty():
        return None
    marks = marks.filter(pl.col("text").str.starts_with(f"{MEMORY} ") & (pl.col("domain") == DOMAIN))
    texts = {text: parse_memory(text) for text in marks["text"].unique()}
    figures = pl.DataFrame(
        [(text, *parsed) for text, parsed in texts.items() if parsed is not None],
        schema=dict.fromkeys(("text", "figure", "memory_source"), pl.String),
        orient="row",
    )
    marks = marks.join(figures, on="text", maintain_order="left").with_columns(
        pl.col("payload").cast(pl.Int64, strict=False).alias("bytes")
    )
    if marks.is_empty():
        return None
    # The key of the layer of the innermost range around each mark, null outside layers.
    row = forest.of_threads().owners(forest.threads.codes(marks["thread"]), marks["start"], marks["start"])
    labels = forest.tree["label"].gather(column_ops.known(row))
    layered = forest.labels["phase"].is_in(_PHASES).gather(labels)
    keys = pl.select(key=pl.when(layered).then(forest.labels["key"].gather(labels)).cast(pl.Int64)).to_series()
    placed = marks.with_columns(keys).drop_nulls("key")
    figure = pl.col("figure")
    return placed.group_by("key").agg(
        pl.col("memory_source").first(),
        pl.col("bytes").filter(figure == "change").sum().alias("memory_change_bytes"),
        pl.col("bytes").filter(figure == "peak").max().alias("memory_peak_bytes"),
    )


UNATTRIBUTED: Final = "(unattributed)"
"""Layer of the rows of unattributed GPU activities, or without a GPU of host time. Their module is the reason."""

REASONS: Final = ("launched in no range", "no launch recorded", "no correlation id")
"""Reasons why a GPU activity is unattributed."""

OUTSIDE_RANGES: Final = "outside ranges"
"""Reason why host time is unattributed in a profile without GPU activity."""

FARTHEST: Final = float(1 << 62)
"""Limit of sums of times (ns). Sums are 64-bit integers without overflow checks."""

_BY_NAME: Final = {"node": pl.Int32, "name": pl.String, "kernel": pl.Boolean} | dict.fromkeys(
    ("calls", "gpu_ns", "min_ns", "max_ns", "gpu_by_time_ns", "gpu_guessed_ns"), pl.Int64
)
_BY_STEP: Final = dict.fromkeys(("process_code", "step"), pl.Int32) | dict.fromkeys(
    ("gpu_ns", "launched_ns", "kernels", "copies", "first_ns", "last_ns"), pl.Int64
)
_ROOT: Final = pl.Series("node", [NONE], pl.Int32)


class Reach:
    """Check that sums and differences of times fit into 64-bit integers, which do not detect overflow."""

    def __init__(self) -> None:
        self._first, self._last = math.inf, -math.inf
        self._total = 0.0

    def add(self, table: pl.DataFrame) -> None:
        """Add the columns start and end of a table."""
        bounds = [table[name].cast(pl.Int64) for name in ("start", "end")]
        instants = [at for column in bounds for at in (column.min(), column.max()) if isinstance(at, int)]
        if not instants:
            return
        self._first, self._last = min(self._first, *instants), max(self._last, *instants)
        if not self.too_far:
            self._total += float((bounds[1] - bounds[0]).cast(pl.Float64).clip(0).sum())

    @property
    def too_far(self) -> bool:
        """Whether the sum of the durations, or the time from the first start to the last end, exceeds `FARTHEST`."""
        return self._total > FARTHEST or self._last - self._first > FARTHEST


class Attributor:
    """The range and the node of each GPU activity.

    `whole` has the ranges of all steps: a graph that runs in a selected step may have been captured in another one.
    Without a selection it is `forest`, to which nodes are added for the reasons and for captured GPU activities.
    `elsewhere` has the ranges in which other profiles captured graphs.
    """

    def __init__(self, forest: Forest, launches: Launches, whole: Forest, elsewhere: Forest | None = None) -> None:
        self._forest, self._launches, self._whole, self._elsewhere = forest, launches, whole, elsewhere
        self.reasons = [
            forest.nodes.extend(column_ops.NONE, [forest.keys.number((UNATTRIBUTED, reason, "other"))])
            for reason in REASONS
        ]
        """The node of each of `REASONS`."""
        self.outside = forest.nodes.extend(
            column_ops.NONE, [forest.keys.number((UNATTRIBUTED, OUTSIDE_RANGES, "other"))]
        )
        """The node of `OUTSIDE_RANGES`."""
        self._has_guesses = forest.thread_range_count < forest.tree.height
        self._captured: dict[tuple[int, int, int], int] = {}

    def of(self, work: pl.DataFrame) -> pl.DataFrame:
        """Return rows of `annot.profile.WORK` with their duration and attribution.

        The new columns are gpu_ns, process_code, range (row in the tree, -1 outside any range), node, by_time (the
        range is of another thread), guessed (several ranges of the process were open), step (-1 outside any step), cell
        (see `annot.attribution.nesting`) and left_out (in a step that was not requested).
        """
        process = self._launches.process_codes(work["process"])
        owner, step, cell = self._launches.get(process, work["correlation"])
        captured = bool("origin_start" in work.columns and work["origin_start"].count())
        if captured:  # a GPU activity with an unknown launch is in the step of its origin
            of_origin = self._launches.steps.at(process, work["origin_start"])
            unlaunched = owner.is_null() & work["origin_start"].is_not_null()
            step = pl.select(pl.when(unlaunched).then(of_origin).otherwise(step).alias("step")).to_series()
        length = (pl.col("end") - pl.col("start")).clip(lower_bound=0).fill_null(0)
        step, steps = step.fill_null(NONE), self._launches.steps
        left_out = pl.lit(value=False) if steps.choice is None else ~steps.selected(step)
        launch_columns = owner.alias("owner"), step.alias("step"), cell.alias("cell"), process.alias("process_code")
        placed = work.with_columns(launch_columns).with_columns(
            length.alias("gpu_ns"),
            *owner_columns("owner", guesses=self._has_guesses),
            left_out.alias("left_out"),
        )
        placed = placed.with_columns(self._nodes(placed)).drop("owner")
        return self._nest_captured(placed) if captured else placed

    def _nodes(self, placed: pl.DataFrame) -> pl.Series:
        in_no_range, unlaunched, without_id = self.reasons
        path = self._forest.tree["path"].gather(column_ops.known(placed["range"])).alias("path")
        nodes = placed.select("correlation", path, launched=pl.col("owner").is_not_null())
        reason = (
            pl.when("launched")
            .then(in_no_range)
            .when(pl.col("correlation").is_not_null())
            .then(unlaunched)
            .otherwise(without_id)
        )
        return nodes.select(pl.coalesce("path", reason).cast(pl.Int32).alias("node")).to_series()

    def _nest_captured(self, placed: pl.DataFrame) -> pl.DataFrame:
        """Nest the layers in which each GPU activity was captured under the range that launched its CUDA graph."""
        hits = [origins.ranges(placed) for origins in self._origins]
        paths = [origins.paths(hit) for origins, hit in zip(self._origins, hits, strict=True)]
        last = pl.when(paths[-1].is_not_null()).then(len(paths) - 1).otherwise(0)
        pairs = placed.select("node", origin=pl.coalesce(paths), where=last)
        distinct = pairs.drop_nulls().unique(maintain_order=True)
        nodes = [self._captured_node(*row) for row in distinct.iter_rows()]
        distinct = distinct.with_columns(pl.Series("captured", nodes, pl.Int32))
        pairs = pairs.join(distinct, on=["node", "origin", "where"], how="left", maintain_order="left")
        hit = hits[0]  # a range of this profile
        if self._whole is not self._forest:
            hit = self._among_selected.gather(hit)
        no_range = placed["range"] == column_ops.NONE
        owner = pl.select(pl.when(no_range & hit.is_not_null()).then(hit).otherwise(placed["range"])).to_series()
        return placed.with_columns(pairs.select(node=pl.coalesce("captured", "node")).to_series(), owner.alias("range"))

    @cached_property
    def _origins(self) -> list[_Origins]:
        whole = _Origins(self._whole, self._launches.tree if self._whole is self._forest else self._whole.of_threads())
        elsewhere = self._elsewhere
        return [whole] if elsewhere is None else [whole, _Origins(elsewhere, elsewhere.of_threads())]

    @cached_property
    def _among_selected(self) -> pl.Series:
        """Row in the tree of each range of all steps, null for ranges outside the selected steps."""
        rows = self._forest.tree.select("id", row=pl.int_range(pl.len(), dtype=pl.Int32))
        return self._whole.tree.select("id").join(rows, on="id", how="left", maintain_order="left")["row"]

    def _captured_node(self, node: int, origin: int, where: int) -> int:
        if (node, origin, where) not in self._captured:
            nodes, number = self._forest.nodes, self._forest.keys.number
            around = column_ops.NONE if node in self.reasons else node
            there = set(nodes.chain(around))
            layers, with_loops = self._origins[where].layers(origin)
            keys = [key for key in map(number, layers) if key not in there]
            if around == column_ops.NONE and not keys:  # captured in loops only: attribute it to the loops
                keys = [*map(number, with_loops)]
            self._captured[node, origin, where] = nodes.extend(around, keys)
        return self._captured[node, origin, where]


class _Origins:
    """Lookup of the layers around the origins of GPU activities, in the ranges of one profile."""

    def __init__(self, forest: Forest, tree: column_ops.Tree) -> None:
        self._forest, self._tree = forest, tree
        self._loops = loops(forest.labels)

    def ranges(self, placed: pl.DataFrame) -> pl.Series:
        """Return the row in the tree of the innermost range around each origin, null outside any range."""
        thread, instant = self._forest.threads.codes(placed["origin_thread"]), placed["origin_start"]
        return column_ops.known(self._tree.owners(thread, instant, instant))

    def paths(self, ranges: pl.Series) -> pl.Series:
        """Return the node of the path of each range."""
        return self._forest.tree["path"].gather(ranges)

    def layers(self, path: int) -> tuple[list[Key], list[Key]]:
        """Return the layers of a path, outermost first, without and with loops."""
        names, chain = self._forest.keys.names, self._forest.nodes.chain(path)
        return [names[key] for key in chain if key not in self._loops], [names[key] for key in chain]


class Account:
    """Sums of the GPU activities of all launches of the run, added block by block."""

    def __init__(self, forest: Forest, launches: Launches, attributor: Attributor) -> None:
        self._forest, self._launches, self._attributor = forest, launches, attributor
        launches.crossing.clear()
        self._known = len(forest.nodes)
        parent, key = forest.nodes.columns()
        # A node around all others stands for the whole device.
        self._whole = max(forest.nodes.keys) + 1
        self._busy = Busy(pl.concat([_ROOT, parent + 1]), pl.concat([_ROOT.replace(NONE, self._whole), key]))
        self._names = [pl.DataFrame(schema=_BY_NAME)]
        self._steps = [pl.DataFrame(schema=_BY_STEP)]
        self._devices, self._device_numbers = Numbers(), Numbers()  # a damaged profile has any number as a device
        self.settled = True
        """Whether the sums are valid: the GPU activities came in order of start, and all layer paths existed before."""
        self.reach = Reach()
        """Durations of the GPU activities. The sums are invalid once `too_far` is set."""

    def add(self, work: pl.DataFrame) -> None:
        """Add rows of `annot.profile.WORK`."""
        self.reach.add(work)
        if self.reach.too_far:
            return
        placed = self._attributor.of(work)
        kept = placed.filter(~pl.col("left_out")) if placed["left_out"].any() else placed
        self._launches.crossing.add(kept["cell"], kept["gpu_ns"])
        launched = ~pl.col("node").is_in(self._attributor.reasons[1:])
        self._names.append(_sum_by_name(kept.lazy()).collect())
        self._steps.append(_sum_by_step(placed.lazy(), launched).collect())
        self.settled &= self._known == len(self._forest.nodes)
        if self.settled:
            self.settled = self._add_busy(kept)

    def _add_busy(self, kept: pl.DataFrame) -> bool:
        timed = kept.filter(pl.col("start").is_not_null()) if kept["start"].null_count() else kept
        ends = timed.select(pl.max_horizontal("start", "end").alias("end")).to_series()
        # A code per process and device: processes may use one device number for different devices.
        device = self._device_numbers.of(timed["device"].cast(pl.Int64))
        code = self._devices.of(pair(timed["process_code"], device + 1))
        return self._busy.add(timed["node"] + 1, code, timed["start"], ends)

    def of_names(self) -> pl.DataFrame:
        """Return a row per node and name of a GPU activity: see `Attribution.names`."""
        every = pl.concat(self._names).group_by("node", "name", "kernel", maintain_order=True)
        extremes = pl.col("min_ns").min(), pl.col("max_ns").max()
        return every.agg(pl.col("calls", "gpu_ns").sum(), *extremes, pl.col("gpu_by_time_ns", "gpu_guessed_ns").sum())

    def of_steps(self) -> pl.DataFrame:
        """Return a row per step with GPU activities, also for steps left out: see `Attribution.step_work`."""
        every = pl.concat(self._steps).group_by("process_code", "step")
        bounds = pl.col("first_ns").min(), pl.col("last_ns").max()
        return every.agg(pl.col("gpu_ns", "launched_ns", "kernels", "copies").sum(), *bounds)

    def busy(self) -> pl.DataFrame:
        """Return the result of `Busy.result` with process and device instead of the device code.

        The rows of whole devices have a null key.
        """
        busy = self._busy.result()
        process, device = high_of(self._devices.known), low_of(self._devices.known) - 1
        number = self._device_numbers.known.gather(column_ops.known(device))
        devices = pl.DataFrame({"process": self._launches.processes(process), "device": number})[busy["device"]]
        key = pl.when(pl.col("key") != self._whole).then("key")
        return busy.select(key, *_TIMES).hstack(devices)


def _sum_by_name(kept: pl.LazyFrame) -> pl.LazyFrame:
    ns = pl.col("gpu_ns")
    sums = kept.group_by("node", "name", "kernel").agg(
        calls=pl.len().cast(pl.Int64),
        gpu_ns=ns.sum(),
        min_ns=ns.min(),
        max_ns=ns.max(),
        gpu_by_time_ns=ns.filter("by_time").sum(),
        gpu_guessed_ns=ns.filter("guessed").sum(),
    )
    return sums.with_columns(pl.col("name").cast(pl.String))


def _sum_by_step(placed: pl.LazyFrame, launched: pl.Expr) -> pl.LazyFrame:
    kernels = pl.col("kernel").cast(pl.Int64)
    return placed.group_by("process_code", "step").agg(
        pl.col("gpu_ns").sum(),
        launched_ns=pl.col("gpu_ns").filter(launched).sum(),
        kernels=kernels.sum(),
        copies=(1 - kernels).sum(),
        first_ns=pl.col("start").cast(pl.Int64).min(),
        last_ns=pl.col("end").cast(pl.Int64).max(),
    )
