"""Trace events: ranges, launches and GPU activities on tracks, with flow arrows between them.

Events are built in blocks, so that a long profile does not have to fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from annot.analyze.api_calls import Calls
from annot.analyze.lanes import process_lanes
from annot.analyze.tracks import Tracks
from annot.attribution import Attribution, column_ops
from annot.attribution.host_times import known
from annot.attribution.range_trees import Forest
from annot.profile import Source

__all__ = ["EVENTS", "Events", "events"]

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


@dataclass(frozen=True, slots=True)
class _Arrows:
    """Arrows of a profile.

    Args:
        calls: the API calls.
        launches: the arrow of each row of `calls`; null: the call launched nothing.
        ranges: begin, end (rows of the forward and the backward range), arrow.
    """

    calls: Calls
    launches: pl.Series
    ranges: pl.DataFrame

    def of_ids(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the arrow and the start of the call for each process and correlation id."""
        found = self.calls.rows(rows["process"], rows["correlation"])
        return pl.DataFrame({"arrow": self.launches.gather(found), "called": self.calls.start.gather(found)})


class Events:
    """Events of a profile, in blocks.

    Args:
        attribution: the profile.
    """

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._has_times = known(attribution.meta)
        self.tracks = Tracks(attribution.meta)
        """The tracks of the blocks so far."""

    @cached_property
    def zero(self) -> int:
        """The earliest time in the profile, in ns of its clock."""
        forest = self._attribution.forest
        starts = [part["start"].min() for part in (forest.tree, forest.crossing)] if self._has_times else []
        for blocks in (self._calls(), _source(self._attribution).work_blocks()):
            starts += [block["start"].min() for block in blocks]
        starts += [self._attribution.steps.table["start"].min() if self._has_times else None]
        return min((start for start in starts if isinstance(start, int)), default=0)

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all events with the columns of `EVENTS`: steps, ranges, launches, then GPU activities."""
        zero, arrows = self.zero, self._arrows()
        parts = [self._activities(arrows)]
        if self._has_times:
            parts = [self._steps(), self._tree(arrows), self._crossing(), self._launches(arrows), *parts]
        for part in parts:
            for block in part:
                for rows in block.iter_slices(_SLICE):
                    yield _conform(rows.with_columns(pl.col("start") - zero))

    def _arrows(self) -> _Arrows:
        """Number the launches of GPU activities, then the pairs of forward and backward ranges."""
        calls = Calls()
        for block in self._calls():
            calls.add(block.drop_nulls(["thread", "start"]))
        used = pl.Series("used", [False], pl.Boolean).new_from_index(0, len(calls.settle().start))
        for block in self._placed():
            found = calls.rows(block["process"], block["correlation"]).filter(~block["left_out"])
            used = used.scatter(found.drop_nulls().unique(), True)
        launches = pl.select(pl.when(used).then(used.cast(pl.Int64).cum_sum() - 1)).to_series()
        pairs = forward_pairs(self._attribution.forest)
        count = int(used.sum())
        numbers = pl.int_range(count, count + pairs.height, dtype=pl.Int64, eager=True)
        return _Arrows(calls, launches, pairs.with_columns(numbers.alias("arrow")))

    def _calls(self) -> Iterator[pl.DataFrame]:
        """The API calls; empty if CPU times are unknown."""
        return iter(()) if not self._has_times else _source(self._attribution).launch_blocks()

    def _placed(self) -> Iterator[pl.DataFrame]:
        """The GPU activities with their ranges and nodes."""
        return (self._attribution.attributor.of(block) for block in _source(self._attribution).work_blocks())

    def _steps(self) -> Iterator[pl.DataFrame]:
        steps = self._attribution.steps
        table = steps.table.filter(steps.selected(steps.table["step"]))
        codes = self._attribution.whole.threads.table.select("process", "process_code").unique()
        rows = table.rename({"process": "process_code"}).join(codes, on="process_code", how="left")
        name = pl.format("step {}{}", "step", pl.when("warmup").then(pl.lit(" (warm-up)")).otherwise(pl.lit("")))
        length = pl.col("end") - pl.col("start")
        yield rows.select("start", name.alias("name"), length.alias("length"), self.tracks.of_steps(rows["process"]))

    def _tree(self, arrows: _Arrows) -> Iterator[pl.DataFrame]:
        forest = self._attribution.forest
        gpu_ns = column_ops.fold(forest.tree["parent"], self._attribution.range_work()["gpu_self_ns"]).alias("gpu_ns")
        rows = forest.tree.select("thread", "start", "end", "label").with_columns(gpu_ns)
        where = forest.threads.table.select("process", "thread")
        lanes = process_lanes(forest)
        sides = {
            "arrow_out": arrows.ranges.select("arrow", row="begin"),
            "arrow_in": arrows.ranges.select("arrow", row="end"),
        }
        for first in range(0, rows.height, _SLICE):
            part = rows.slice(first, _SLICE)
            in_threads = max(min(forest.thread_range_count - first, part.height), 0)
            shared = lanes.slice(first + in_threads - forest.thread_range_count, part.height - in_threads)
            tracks = (self.tracks.of_threads(where[part["thread"].head(in_threads)]), self.tracks.of_layers(shared))
            part = part.with_columns(pl.concat(tracks)).with_row_index("row", offset=first).cast({"row": pl.Int64})
            for name, side in sides.items():
                part = part.join(side, on="row", how="left", maintain_order="left").rename({"arrow": name})
            yield self._ranges(part, "range")

    def _crossing(self) -> Iterator[pl.DataFrame]:
        for part in self._attribution.forest.crossing.select("thread", "start", "end", "label").iter_slices(_SLICE):
            yield self._ranges(part, "crossing")

    def _ranges(self, part: pl.DataFrame, kind: str) -> pl.DataFrame:
        forest = self._attribution.forest
        labels = self._named_labels[part["label"]]
        where = forest.threads.table.select("process", "thread")[part["thread"]]
        length = (pl.col("end") - pl.col("start")).alias("length")
        track = part["track"] if "track" in part.columns else self.tracks.of_threads(where)
        rows = part.drop("thread", "label").with_columns(length, track, kind=pl.lit(kind))
        return pl.concat([rows.drop("end"), labels], how="horizontal")

    @cached_property
    def _named_labels(self) -> pl.DataFrame:
        """Parsed labels with a name for display: ``features.0 Conv2d backward``."""
        labels = self._attribution.forest.labels
        model = pl.when((pl.col("layer") == "") & (pl.col("module") != "") & pl.col("layered")).then(pl.lit("(model)"))
        operation = pl.col("role").is_in(["operator", "backward"]).fill_null(False)
        phase = pl.when(pl.col("phase").is_in(["backward", "recompute", "optimizer"]) & ~operation)
        parts = (pl.coalesce(model, "layer"), "module", pl.col("number").cast(pl.String), phase.then("phase"))
        texts = pl.concat_list(*parts).list.drop_nulls()
        name = texts.list.eval(pl.element().filter(pl.element() != "")).list.join(" ")
        return labels.select(name.alias("name"), "layer", "module", "phase", "shapes")

    def _launches(self, arrows: _Arrows) -> Iterator[pl.DataFrame]:
        for block in self._calls():
            name = _text("name") if "name" in block.columns else pl.lit("launch").alias("name")
            rows = block.select(*_wholes("process", "thread", "start", "end", "correlation"), name)
            rows = rows.hstack(arrows.of_ids(rows)).filter(pl.col("called") == pl.col("start")).drop_nulls("arrow")
            rows = rows.unique("arrow", keep="first")
            rows = rows.with_columns(_length()).sort("start", maintain_order=True)
            track = self.tracks.of_launches(rows)
            yield rows.with_columns(track, kind=pl.lit("launch")).rename({"arrow": "arrow_out"})

    def _activities(self, arrows: _Arrows) -> Iterator[pl.DataFrame]:
        keys, nodes = self._attribution.forest.keys, self._attribution.forest.nodes
        for block in self._placed():
            placed = block.filter(~pl.col("left_out") & pl.col("start").is_not_null())
            names = [keys.names[nodes.keys[node]] for node in placed["node"].unique(maintain_order=True)]
            keyed = pl.DataFrame(names, schema=dict.fromkeys(("layer", "module", "phase"), pl.String), orient="row")
            keyed = keyed.with_columns(placed["node"].unique(maintain_order=True))
            rows = placed.select(
                "node", "start", *_wholes("process", "correlation"), _whole(placed, "device"), _whole(placed, "stream"),
                _text("name"), pl.when("kernel").then(pl.lit("kernel")).otherwise(pl.lit("copy")).alias("kind"),
                pl.col("gpu_ns").alias("length"),
            ).join(keyed, on="node", how="left", maintain_order="left")  # fmt: skip
            rows = rows.hstack(arrows.of_ids(rows).select("arrow"))
            rows = rows.sort("start", maintain_order=True)
            yield rows.with_columns(self.tracks.of_work(rows)).rename({"arrow": "arrow_in"})


def events(attribution: Attribution) -> Events:
    """Return the events of a profile.

    Args:
        attribution: the profile.

    Raises:
        ValueError: the attribution was made without its source.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "start": [10], "end": [25], "name": ["gemm"]}
        >>> found = events(attribute(Profile.build({}, kernels=pl.DataFrame(kernel))))
        >>> pl.concat(found.blocks()).select("name", "start", "length").rows()
        [('gemm', 0, 15)]
    """
    if attribution.source is None:
        raise ValueError("the attribution lacks its source, so its GPU activities cannot be read again")
    return Events(attribution)


def _source(attribution: Attribution) -> Source:
    assert attribution.source is not None
    return attribution.source


def _whole(table: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64) if name in table.columns else pl.lit(None, pl.Int64).alias(name)


def _wholes(*names: str) -> list[pl.Expr]:
    return [pl.col(name).cast(pl.Int64) for name in names]


def _text(name: str) -> pl.Expr:
    """A column of names as strings: categorical codes are only valid in their block."""
    return pl.col(name).cast(pl.String).fill_null("")


def _length() -> pl.Expr:
    return (pl.col("end") - pl.col("start")).clip(lower_bound=0).fill_null(0).alias("length")


def _conform(block: pl.DataFrame) -> pl.DataFrame:
    kind = [] if "kind" in block.columns else [pl.lit("step").alias("kind")]
    block = block.with_columns(kind)
    return block.select(
        pl.col(name).cast(dtype) if name in block.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in EVENTS.items()
    )


_PAIRS: Final = {"begin": pl.Int64, "end": pl.Int64}


def forward_pairs(forest: Forest) -> pl.DataFrame:
    """Return the pairs of forward and backward ranges.

    Operations are paired by autograd's sequence number. A backward range of a layer belongs to the last forward call
    without one, because the backward pass processes the calls in reverse order.

    Args:
        forest: the ranges.

    Returns:
        begin, end (Int64): rows in `forest.tree` of the forward and the backward range; each row occurs at most once
        in each column.
    """
    by_number = pl.DataFrame([(of, row) for row, of in forest.pairs.items()], schema=_PAIRS, orient="row")
    pairs = pl.concat([_of_layers(forest), by_number.sort("end")])
    return pairs.unique("begin", keep="first", maintain_order=True).unique("end", keep="first", maintain_order=True)


def _of_layers(forest: Forest) -> pl.DataFrame:
    process = forest.threads.table["process_code"].gather(forest.tree["thread"]).alias("process")
    labels = forest.labels.select("layer", "module", "phase", "layered", "role")
    paired = labels.select(
        pl.col("layered") & pl.col("phase").is_in(["forward", "backward"]) & (pl.col("module") != "")
    ).to_series()
    rows = forest.tree.select("start", "label").with_row_index("row").with_columns(process)
    rows = rows.filter(paired.gather(rows["label"]))
    rows = pl.concat([rows, labels.select("layer", "module", "phase")[rows["label"]]], how="horizontal")
    rows = rows.sort("start", maintain_order=True)
    of_layer = ["process", "layer", "module"]
    forward = pl.col("phase") == "forward"
    # Match like brackets: a forward range opens, a backward range closes the last open one.
    level = pl.when(forward).then(1).otherwise(-1).cum_sum().over(of_layer) + pl.when(forward).then(0).otherwise(1)
    rows = rows.with_columns(level.alias("level"))
    before = pl.col("row", "phase").shift(1).over([*of_layer, "level"])
    rows = rows.with_columns(before.name.suffix("_before"))
    found = rows.filter(~forward & (pl.col("phase_before") == "forward"))
    return found.select(pl.col("row_before").cast(pl.Int64).alias("begin"), pl.col("row").cast(pl.Int64).alias("end"))
