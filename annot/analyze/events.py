"""What happened when: ranges, launches and device work on tracks, and what led to what.

Made in blocks, so that a long profile need not be in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from annot.analyze.calls import Calls
from annot.analyze.pairs import forward_of
from annot.analyze.process_lanes import process_lanes
from annot.analyze.tracks import Tracks
from annot.correlate import Attribution, sweep
from annot.correlate.host_times import known
from annot.profile import Source

__all__ = ["EVENTS", "Events", "events"]

EVENTS: Final = {
    "track": pl.Int32,  # number in `Events.tracks`; events of a track nest, but for those of kind "loose"
    "kind": pl.String,  # "range", "loose" (crosses others, or ended on another thread), "step", "launch", "kernel",
    # or "copy"
    "name": pl.String,
    "start": pl.Int64,  # ns since `Events.zero`
    "length": pl.Int64,  # ns
    "layer": pl.String,  # this and the next two are null for launches
    "module": pl.String,
    "phase": pl.String,
    "shapes": pl.String,  # of ranges; null: not known
    "gpu_ns": pl.Int64,  # of ranges in the tree: device time launched in them
    "arrow_out": pl.Int64,  # number of the arrow that begins here; null: none
    "arrow_in": pl.Int64,  # number of the arrow that ends here; one may end at several events
}
_SLICE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class _Arrows:
    """Which arrows there are.

    Args:
        calls: when each launch was.
        launches: the arrow of each row of `calls`; null: it led to no work.
        ranges: begin, end, arrow of ranges.
    """

    calls: Calls
    launches: pl.Series
    ranges: pl.DataFrame

    def of_ids(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the arrow, and when the call was made, of each process and correlation id."""
        found = self.calls.rows(rows["process"], rows["correlation"])
        return pl.DataFrame({"arrow": self.launches.gather(found), "called": self.calls.start.gather(found)})


class Events:
    """The events of a profile.

    Args:
        attribution: the profile.
    """

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._has_times = known(attribution.meta)
        self.tracks = Tracks(attribution.meta)
        """The tracks of the blocks that were made so far."""

    @cached_property
    def zero(self) -> int:
        """The first instant (ns) of the profile, in its own time."""
        forest = self._attribution.forest
        instants = [part["start"].min() for part in (forest.tree, forest.loose)] if self._has_times else []
        for blocks in (self._calls(), _source(self._attribution).work_blocks()):
            instants += [block["start"].min() for block in blocks]
        instants += [self._attribution.steps.table["start"].min() if self._has_times else None]
        return min((instant for instant in instants if isinstance(instant, int)), default=0)

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all events, as `EVENTS`: steps, ranges, launches, then device work."""
        zero, arrows = self.zero, self._arrows()
        parts = [self._work(arrows)]
        if self._has_times:
            parts = [self._steps(), self._tree(arrows), self._loose(), self._launches(arrows), *parts]
        for part in parts:
            for block in part:
                for rows in block.iter_slices(_SLICE):
                    yield _conform(rows.with_columns(pl.col("start") - zero))

    def _arrows(self) -> _Arrows:
        """Number the launches that led to device work, then the forward ranges that led to backward ones."""
        calls = Calls()
        for block in self._calls():
            calls.add(block.drop_nulls(["thread", "start"]))
        led = pl.Series("led", [False], pl.Boolean).new_from_index(0, len(calls.settle().start))
        for block in self._placed():
            found = calls.rows(block["process"], block["correlation"]).filter(~block["left_out"])
            led = led.scatter(found.drop_nulls().unique(), True)
        launched = pl.select(pl.when(led).then(led.cast(pl.Int64).cum_sum() - 1)).to_series()
        pairs = forward_of(self._attribution.forest)
        count = int(led.sum())
        numbers = pl.int_range(count, count + pairs.height, dtype=pl.Int64, eager=True)
        return _Arrows(calls, launched, pairs.with_columns(numbers.alias("arrow")))

    def _calls(self) -> Iterator[pl.DataFrame]:
        """The API calls, if the profile knows when they were made."""
        return iter(()) if not self._has_times else _source(self._attribution).launch_blocks()

    def _placed(self) -> Iterator[pl.DataFrame]:
        """The device work with its places."""
        return (self._attribution.places.of(block) for block in _source(self._attribution).work_blocks())

    def _steps(self) -> Iterator[pl.DataFrame]:
        steps = self._attribution.steps
        table = steps.table.filter(steps.wanted(steps.table["step"]))
        codes = self._attribution.whole.threads.table.select("process", "process_code").unique()
        rows = table.rename({"process": "process_code"}).join(codes, on="process_code", how="left")
        name = pl.format("step {}{}", "step", pl.when("warmup").then(pl.lit(" (warm-up)")).otherwise(pl.lit("")))
        length = pl.col("end") - pl.col("start")
        yield rows.select("start", name.alias("name"), length.alias("length"), self.tracks.of_steps(rows["process"]))

    def _tree(self, arrows: _Arrows) -> Iterator[pl.DataFrame]:
        forest = self._attribution.forest
        gpu_ns = sweep.fold(forest.tree["parent"], self._attribution.range_work()["gpu_self_ns"]).alias("gpu_ns")
        rows = forest.tree.select("thread", "start", "end", "says").with_columns(gpu_ns)
        where = forest.threads.table.select("process", "thread")
        lanes = process_lanes(forest)
        sides = {
            "arrow_out": arrows.ranges.select("arrow", row="begin"),
            "arrow_in": arrows.ranges.select("arrow", row="end"),
        }
        for first in range(0, rows.height, _SLICE):
            part = rows.slice(first, _SLICE)
            in_threads = max(min(forest.trunk - first, part.height), 0)
            beside = lanes.slice(first + in_threads - forest.trunk, part.height - in_threads)
            tracks = (self.tracks.of_threads(where[part["thread"].head(in_threads)]), self.tracks.of_layers(beside))
            part = part.with_columns(pl.concat(tracks)).with_row_index("row", offset=first).cast({"row": pl.Int64})
            for name, side in sides.items():
                part = part.join(side, on="row", how="left", maintain_order="left").rename({"arrow": name})
            yield self._ranges(part, "range")

    def _loose(self) -> Iterator[pl.DataFrame]:
        for part in self._attribution.forest.loose.select("thread", "start", "end", "says").iter_slices(_SLICE):
            yield self._ranges(part, "loose")

    def _ranges(self, part: pl.DataFrame, kind: str) -> pl.DataFrame:
        forest = self._attribution.forest
        said = self._said[part["says"]]
        where = forest.threads.table.select("process", "thread")[part["thread"]]
        length = (pl.col("end") - pl.col("start")).alias("length")
        track = part["track"] if "track" in part.columns else self.tracks.of_threads(where)
        rows = part.drop("thread", "says").with_columns(length, track, kind=pl.lit(kind))
        return pl.concat([rows.drop("end"), said], how="horizontal")

    @cached_property
    def _said(self) -> pl.DataFrame:
        """What each text says, and how the range is called: ``features.0 Conv2d backward``."""
        said = self._attribution.forest.says
        model = pl.when((pl.col("layer") == "") & (pl.col("module") != "") & pl.col("layered")).then(pl.lit("(model)"))
        operation = pl.col("role").is_in(["operator", "backward"]).fill_null(False)
        phase = pl.when(pl.col("phase").is_in(["backward", "recompute", "optimizer"]) & ~operation)
        parts = (pl.coalesce(model, "layer"), "module", pl.col("number").cast(pl.String), phase.then("phase"))
        texts = pl.concat_list(*parts).list.drop_nulls()
        name = texts.list.eval(pl.element().filter(pl.element() != "")).list.join(" ")
        return said.select(name.alias("name"), "layer", "module", "phase", "shapes")

    def _launches(self, arrows: _Arrows) -> Iterator[pl.DataFrame]:
        for block in self._calls():
            name = _text("name") if "name" in block.columns else pl.lit("launch").alias("name")
            rows = block.select(*_wholes("process", "thread", "start", "end", "correlation"), name)
            rows = rows.hstack(arrows.of_ids(rows)).filter(pl.col("called") == pl.col("start")).drop_nulls("arrow")
            rows = rows.unique("arrow", keep="first")
            rows = rows.with_columns(_length()).sort("start", maintain_order=True)
            track = self.tracks.of_launches(rows)
            yield rows.with_columns(track, kind=pl.lit("launch")).rename({"arrow": "arrow_out"})

    def _work(self, arrows: _Arrows) -> Iterator[pl.DataFrame]:
        keys, nodes = self._attribution.forest.keys, self._attribution.forest.nodes
        for block in self._placed():
            placed = block.filter(~pl.col("left_out") & pl.col("start").is_not_null())
            names = [keys.names[nodes.keys[node]] for node in placed["node"].unique(maintain_order=True)]
            there = pl.DataFrame(names, schema=dict.fromkeys(("layer", "module", "phase"), pl.String), orient="row")
            there = there.with_columns(placed["node"].unique(maintain_order=True))
            rows = placed.select(
                "node", "start", *_wholes("process", "correlation"), _whole(placed, "device"), _whole(placed, "stream"),
                _text("name"), pl.when("kernel").then(pl.lit("kernel")).otherwise(pl.lit("copy")).alias("kind"),
                pl.col("gpu_ns").alias("length"),
            ).join(there, on="node", how="left", maintain_order="left")  # fmt: skip
            rows = rows.hstack(arrows.of_ids(rows).select("arrow"))
            rows = rows.sort("start", maintain_order=True)
            yield rows.with_columns(self.tracks.of_work(rows)).rename({"arrow": "arrow_in"})


def events(attribution: Attribution) -> Events:
    """Return what happened when.

    Raises:
        ValueError: the attribution does not know its source.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "start": [10], "end": [25], "name": ["gemm"]}
        >>> happened = events(attribute(Profile.build({}, kernels=pl.DataFrame(kernel))))
        >>> pl.concat(happened.blocks()).select("name", "start", "length").rows()
        [('gemm', 0, 15)]
    """
    if attribution.source is None:
        raise ValueError("the attribution does not know its source, so its work cannot be gone through again")
    return Events(attribution)


def _source(attribution: Attribution) -> Source:
    assert attribution.source is not None
    return attribution.source


def _whole(table: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64) if name in table.columns else pl.lit(None, pl.Int64).alias(name)


def _wholes(*names: str) -> list[pl.Expr]:
    return [pl.col(name).cast(pl.Int64) for name in names]


def _text(name: str) -> pl.Expr:
    """Names of blocks may be numbers that mean something in their block only."""
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
