"""Parts of the steps of a process without a GPU: the phases that its threads compute, and the layers in them.

A phase has the time in which it is the innermost phase on a thread. A wait for data inside a forward belongs to the
data, an optimizer step inside a backward to the optimizer. Operations and user ranges belong to the phase around them.

A range around a whole pass does not show whether its thread computes. PyTorch's reducer waits in it, outside all
operations, while gloo communicates on its own threads. Where such a range has no layer or operation inside it, a
collective on another thread takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import polars as pl

from annot.analyze.overlap import exclusive, merged, without
from annot.analyze.part_names import OTHER
from annot.analyze.repeated_layers import around_others
from annot.analyze.step_parts import COLLECTIVE_NAME, Intervals, StepInputs, intervals_of
from annot.attribution.attribute import Attribution, known
from annot.attribution.column_ops import NONE, inside
from annot.attribution.range_trees import Forest
from annot.util.weak_keys import once_for_each

__all__ = ["COMPUTED", "going_on_without_gpu", "layers_of_parts", "phase_times"]

COMPUTED: Final = ("forward", "backward", "optimizer")
"""Parts that compute. Communication behind them is hidden."""

_PHASES: Final = {"forward": 0, "backward": 1, "recompute": 1, "optimizer": 2, "data": 3, "collective": 3}
_OPTIMIZER: Final = 2
_REST: Final = 3
"""Code of the ranges in which a thread waits, and of those outside the phases."""
_SEGMENTS: Final = {
    "process": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "part": pl.Int8,
    "node": pl.Int32,
    "waits": pl.Boolean,
}
_LAYERS: Final = {"part": pl.String, "layer": pl.String, "module": pl.String, "ns": pl.Int64}


def going_on_without_gpu(attribution: Attribution, inputs: StepInputs, process: int | None) -> dict[str, Intervals]:
    """Return the intervals of each of `CPU_PARTS` of a process, except the last one."""
    mine = pl.col("process").eq_missing(pl.lit(process, pl.Int64))
    computed, host = phase_times(attribution, inputs).filter(mine), inputs.host
    going_on: dict[str, Intervals] = {name: _phase_intervals(computed, code) for code, name in enumerate(COMPUTED)}
    for name, kind in (("collectives", "collectives"), ("data", "data"), (OTHER, "ranges")):
        going_on[name] = partial(host[kind].filter, mine)
    return going_on


def _phase_intervals(computed: pl.DataFrame, code: int) -> Intervals:
    return lambda: intervals_of(computed.filter(pl.col("part") == code))


@once_for_each
def phase_times(attribution: Attribution, inputs: StepInputs) -> pl.DataFrame:
    """Return the times in which threads compute: process, start, end (ns), part (index in `COMPUTED`)."""
    segments = _segments(attribution, by_node=False).drop("node")
    tables = [segments.filter(~pl.col("waits")).drop("waits")]
    for (process, code), rows in segments.filter("waits").partition_by("process", "part", as_dict=True).items():
        spans = without(merged(rows), _collectives(inputs, process))
        tables.append(
            spans.select(process=pl.lit(process, pl.Int64), start="start", end="end", part=pl.lit(code, pl.Int8))
        )
    return pl.concat(tables)


def _collectives(inputs: StepInputs, process: int | None) -> pl.DataFrame:
    return merged(inputs.host["collectives"].filter(pl.col("process").eq_missing(pl.lit(process, pl.Int64))))


@once_for_each
def layers_of_parts(attribution: Attribution, inputs: StepInputs) -> pl.DataFrame:
    """Return the time of each layer in the parts of `COMPUTED`: part, layer, module, ns, the longest first.

    Only processes without GPU activities count. The times of a part add up to its share of
    `annot.analyze.step_time.step_time`. Where layers of several threads overlap, the time counts to the part that
    comes first in `CPU_PARTS`, then to a layer without layers inside it, since threads of a pool compute the layers of
    a model that is open on another thread, then to the layer that starts first.
    """
    tables = [pl.DataFrame(schema=_LAYERS)]
    layers = attribution.whole.layers_of_nodes()  # the nodes of the segments are those of all ranges
    windows = inputs.windows.partition_by("process", "device", as_dict=True)
    on_cpu = [device for device in windows if inputs.of_device(device).is_empty()]
    segments = _segments(attribution, by_node=True) if on_cpu else pl.DataFrame()
    for device in on_cpu:
        mine = segments.filter(pl.col("process").eq_missing(pl.lit(device[0], pl.Int64)))
        tables += _layers(mine, merged(intervals_of(windows[device])), _collectives(inputs, device[0]), layers)
    sums = pl.concat(tables).group_by("part", "layer", "module").agg(pl.col("ns").sum())
    return sums.filter(pl.col("ns") > 0).sort("ns", "part", "layer", "module", descending=[True, False, False, False])


def _layers(
    segments: pl.DataFrame, free: pl.DataFrame, collectives: pl.DataFrame, layers: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """The time of each layer of a process in the free time."""
    paths = layers["layer"].unique()
    inner = ~layers["layer"].is_in(paths.filter(around_others(paths)).implode())
    of_layers = segments.select(pl.when(pl.col("node") >= 0).then("node")).to_series()
    segments = segments.with_columns(is_inner=inner.gather(of_layers).fill_null(False))
    for code, phase in enumerate(COMPUTED):
        for waits in (False, True):
            rows = segments.filter((pl.col("part") == code) & (pl.col("waits") == waits))
            usable = without(free, collectives) if waits else free
            for is_inner in (True, False):
                mine = rows.filter(pl.col("is_inner") == is_inner)
                if mine.is_empty():
                    continue
                shares = exclusive(mine, usable).select("node", ns="wall_ns")
                known_nodes = shares.select(pl.when(pl.col("node") >= 0).then("node")).to_series()
                of_nodes = layers.select(pl.col("layer", "module").gather(known_nodes).fill_null(""))
                yield of_nodes.with_columns(shares["ns"], part=pl.lit(phase)).select(list(_LAYERS))
                usable = without(usable, merged(mine))
            free = without(free, without(merged(rows), collectives) if waits else merged(rows))


def _segments(attribution: Attribution, *, by_node: bool) -> pl.DataFrame:
    """The times in which a phase of `COMPUTED` is the innermost on a thread, split by layer if `by_node`."""
    forest = attribution.whole
    if not known(attribution.meta):
        return pl.DataFrame(schema=_SEGMENTS)
    tree = forest.tree.select("thread", "start", "end", "parent", part=_parts(forest), node="path")
    tree = tree.with_columns(waits=_may_wait(forest) & (pl.col("part") < _OPTIMIZER))
    parent = tree.select(pl.when(pl.col("parent") >= 0).then("parent")).to_series()
    outer = tree.select(
        outer=pl.col("part").gather(parent).fill_null(_REST),
        outer_node=pl.col("node").gather(parent).fill_null(NONE),
        outer_waits=pl.col("waits").gather(parent).fill_null(False),
    )
    tree = tree.hstack(outer)
    changes = (pl.col("part") != pl.col("outer")) | (pl.col("waits") != pl.col("outer_waits"))
    if by_node:
        changes |= pl.col("node") != pl.col("outer_node")
    count = forest.thread_range_count
    tables = [_innermost(tree.head(count).filter(changes)), tree.slice(count).filter(changes), _crossing(forest)]
    rows = pl.concat([table.select("thread", "start", "end", "part", "node", "waits") for table in tables])
    process = forest.threads.table["process"].gather(rows["thread"])
    rows = rows.with_columns(process).filter(pl.col("part") != _REST, pl.col("end") > pl.col("start"))
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _SEGMENTS.items())


def _parts(forest: Forest) -> pl.Series:
    """The part (index in `COMPUTED`, or `_REST`) of each range of the tree: its own, or that of the range around it."""
    code = _own_part(forest).gather(forest.tree["label"]).alias("part")
    above = forest.tree["parent"]
    while True:  # each round doubles the distance to the range above
        open_ = code.is_null() & (above >= 0)
        if not open_.any():
            return code.fill_null(_REST)
        at = above.to_frame("at").select(pl.when(pl.col("at") >= 0).then("at")).to_series()
        code = code.zip_with(code.is_not_null(), code.gather(at))
        above = above.gather(at).fill_null(NONE)


def _own_part(forest: Forest) -> pl.Series:
    """The part of each label; null: that of the range around it."""
    phase = pl.col("phase").replace_strict(_PHASES, default=None, return_dtype=pl.Int8)
    named = pl.when(pl.col("text").str.contains(COLLECTIVE_NAME)).then(pl.lit(_REST, pl.Int8))
    return forest.labels.select(part=pl.coalesce(named, phase)).to_series()


def _may_wait(forest: Forest) -> pl.Series:
    """Return which ranges of the tree are neither a layer nor an operation, nor inside one (Boolean)."""
    computes = pl.col("layered") | (pl.col("role").is_in(["operator", "backward"])).fill_null(False)
    own = forest.labels.select(computes=computes).to_series().gather(forest.tree["label"])
    return ~(own | inside(own, forest.tree["parent"])).alias("waits")


def _innermost(changes: pl.DataFrame) -> pl.DataFrame:
    """Cut nested ranges of threads into the times in which each is the innermost: thread, start, end, part, node."""
    rows = changes.filter(pl.col("end") > pl.col("start")).with_columns(row=pl.int_range(pl.len()))
    starts = rows.select("thread", pl.lit(1).alias("opens"), "row", "part", "node", "waits", time="start")
    ends = rows.select(
        "thread", pl.lit(0).alias("opens"), -pl.col("row"), part="outer", node="outer_node", waits="outer_waits",
        time="end",
    ).select(starts.columns)  # fmt: skip
    # At the same time, inner ranges end before outer ones, and then outer ranges start before inner ones.
    events = pl.concat([starts, ends]).sort("thread", "time", "opens", "row")
    following = pl.col("time").shift(-1).over("thread")
    return events.select("thread", "part", "node", "waits", start="time", end=following).drop_nulls("end")


def _crossing(forest: Forest) -> pl.DataFrame:
    code = _own_part(forest).gather(forest.crossing["label"]).fill_null(_REST).alias("part")
    return forest.crossing.select("thread", "start", "end", code, node=pl.lit(NONE, pl.Int32), waits=pl.lit(False))
