"""Parts of the step time: their names, and those of processes without a GPU with the layers in them.

The verdict, the bar, the advice, the page and the guide take the names of parts from here, so that a part has one name.

Without a GPU, a phase has the time in which it is the innermost phase on a thread. A wait for data inside a forward
belongs to the data, an optimizer step inside a backward to the optimizer. Operations and user ranges belong to the
phase around them. A range around a whole pass does not show whether its thread computes. PyTorch's reducer waits in it,
outside all operations, while gloo communicates on its own threads. Where such a range has no layer or operation inside
it, a collective on another thread takes precedence.

Layers of one class that differ in the index of a block count together, such as ``blocks.*.norm LayerNorm``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import polars as pl

from annot.analyze.step_parts import (
    COLLECTIVE_NAME,
    Intervals,
    StepInputs,
    exclusive,
    intervals_of,
    merged,
    step_inputs,
    without,
)
from annot.attribution.attribute import Attribution, known
from annot.attribution.column_ops import NONE, inside
from annot.attribution.column_ops import known as known_rows
from annot.attribution.range_trees import Forest
from annot.labels import layer_path
from annot.util.weak_keys import once_for_each


class PartName(NamedTuple):
    """Name of a part, which completes "46% …" and "mostly …", and a sentence about it without its full stop.

    Example:
        >>> GPU_PARTS["launch"].name
        'waiting for launches'
    """

    name: str
    meaning: str


_DATA: Final = "waiting for data"
_EXPOSED: Final = "exposed communication"
OTHER: Final = "other_ranges"
OUTSIDE: Final = "outside_ranges"

GPU_PARTS: Final[Mapping[str, PartName]] = {
    "tensor_cores": PartName("Tensor Cores", "a kernel runs on Tensor Cores"),
    "kernels": PartName(
        "other kernels", "another kernel runs, or its use of Tensor Cores is unknown; except collectives"
    ),
    "collectives": PartName(_EXPOSED, "only collectives run"),
    "copies": PartName("exposed copies", "only copies and memsets run"),
    "data": PartName(_DATA, "the GPU is idle while a thread waits for data"),
    "unrecorded": PartName("unexplained", "the GPU is idle, and the profile does not show what it waits for"),
    "synchronisation": PartName(
        "synchronising", "the GPU is idle because a thread waits for it, or waited and has not launched anything since"
    ),
    "launch": PartName(
        "waiting for launches", "the GPU is idle for less than 1 ms while the CPU prepares the next launch"
    ),
    "allocation": PartName("allocating memory", "the GPU is idle while a thread allocates or frees GPU memory"),
    "host": PartName("waiting for the CPU", "the GPU is idle while the CPU runs other code"),
}
"""Parts of the step time of a GPU, by their keys in files."""

CPU_PARTS: Final[Mapping[str, PartName]] = {
    "forward": PartName("forward", "a thread computes the forward pass"),
    "backward": PartName("backward", "a thread computes the backward pass, or a forward again for checkpointing"),
    "optimizer": PartName("optimizer", "a thread updates parameters or zeroes gradients"),
    "collectives": PartName(_EXPOSED, "the process waits in collectives and computes no phase"),
    "data": PartName(_DATA, "a thread waits for data"),
    OTHER: PartName(
        "other ranges", "the process is in other ranges, such as those of @trace or the operations of a loss"
    ),
    OUTSIDE: PartName("outside ranges", "the process runs code outside any range but that of an epoch or batch"),
}
"""Parts of the step time of a process without a GPU in order of precedence, by their keys in files."""

STEP_PARTS: Final[Mapping[str, PartName]] = {**GPU_PARTS, **CPU_PARTS}
"""Parts of the step time of either; equal keys have equal names."""

IDLE: Final = ("data", "unrecorded", "synchronisation", "launch", "allocation", "host")
"""Parts in which a GPU is idle."""


_LEAST: Final = 5
"""Number of equal layers that count together, as in `annot.report.tree`."""
_BLOCK: Final = re.compile(r"(?<![^./_])\d+(?=[./])")
"""Index of a block in the path of a layer inside it."""
_SEPARATOR: Final = re.compile(r"([./])")
_LAST: Final = re.compile(r"\d+$")


def repeated_layers(rows: pl.DataFrame, ns: str) -> pl.DataFrame:
    """Return the time of each layer, repeated layers as one, the longest first.

    Args:
        rows: rows with layer and module.
        ns: column of the time (ns).

    Returns:
        layer (its path, with ``*`` for an index that differs), module, ns and layers (number of layers in the row).

    Example:
        >>> rows = pl.DataFrame({"layer": [f"h.{n}.fc" for n in range(9)], "module": ["Linear"] * 9, "ns": range(9)})
        >>> repeated_layers(rows, "ns").rows()
        [('h.*.fc', 'Linear', 36, 9)]
    """
    sums = rows.group_by("layer", "module").agg(pl.col(ns).sum().alias("ns"))
    blocks = pl.Series([_BLOCK.sub("*", layer) for layer in sums["layer"]], dtype=pl.String)
    repeated = pl.len().over(blocks, "module") >= _LEAST
    sums = sums.with_columns(block=pl.when(repeated).then(blocks).otherwise("layer"))
    sums = sums.group_by("block", "module").agg(pl.col("ns").sum(), pl.col("layer").sort())
    sums = sums.sort("ns", "block", "module", descending=[True, False, False])
    paths = pl.Series("layer", [_common(layers) for layers in sums["layer"].to_list()], pl.String)
    return sums.select(paths, "module", "ns", layers=pl.col("layer").list.len().cast(pl.Int64))


def main_layer(times: Mapping[str, float]) -> str:
    """Return which of repeated layers has more than half of their time; empty: none has, or there is one layer.

    Example:
        >>> main_layer({"h.0": 1, "h.1": 5, "h.2": 2}), main_layer({"h.0": 1, "h.1": 1})
        ('h.1', '')
    """
    longest = max(times, key=lambda layer: times[layer], default="")
    return longest if len(times) > 1 and 2 * times[longest] > sum(times.values()) else ""


def around_others(layers: pl.Series) -> pl.Series:
    """Return which paths (or ``""``, the model) have other paths of the series inside them (Boolean).

    Example:
        >>> around_others(pl.Series(["", "h.0", "h.0.fc", "head"])).to_list()
        [True, True, False, False]
    """
    return layers.is_in(list(layer_path.containers(layers, layers)))


def _common(layers: list[str]) -> str:
    """The path of layers that differ in indices of blocks, with ``*`` for these."""
    columns = zip(*(_SEPARATOR.split(layer) for layer in layers), strict=True)
    return "".join(column[0] if len(set(column)) == 1 else _LAST.sub("*", column[0]) for column in columns)


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
def layers_of_parts(attribution: Attribution) -> pl.DataFrame:
    """Return the time of each layer in the parts of `COMPUTED`: part, layer, module, ns, the longest first.

    Only processes without GPU activities count. The times of a part add up to its share of
    `annot.analyze.run_summary.step_time`. Where layers of several threads overlap, the time counts to the part that
    comes first in `CPU_PARTS`, then to a layer without layers inside it, since threads of a pool compute the layers of
    a model that is open on another thread, then to the layer that starts first.
    """
    tables = [pl.DataFrame(schema=_LAYERS)]
    layers = attribution.whole.layers_of_nodes()  # the nodes of the segments are those of all ranges
    inputs = step_inputs(attribution)
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
    segments = segments.with_columns(is_inner=inner.gather(known_rows(segments["node"])).fill_null(False))
    for code, phase in enumerate(COMPUTED):
        for waits in (False, True):
            rows = segments.filter((pl.col("part") == code) & (pl.col("waits") == waits))
            usable = without(free, collectives) if waits else free
            for is_inner in (True, False):
                mine = rows.filter(pl.col("is_inner") == is_inner)
                if mine.is_empty():
                    continue
                shares = exclusive(mine, usable).select("node", ns="wall_ns")
                of_nodes = layers.select(pl.col("layer", "module").gather(known_rows(shares["node"])).fill_null(""))
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
    parent = known_rows(tree["parent"])
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
        at = known_rows(above)
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
        "thread",
        pl.lit(0).alias("opens"),
        -pl.col("row"),
        part="outer",
        node="outer_node",
        waits="outer_waits",
        time="end",
    ).select(starts.columns)
    # At the same time, inner ranges end before outer ones, and then outer ranges start before inner ones.
    events = pl.concat([starts, ends]).sort("thread", "time", "opens", "row")
    following = pl.col("time").shift(-1).over("thread")
    return events.select("thread", "part", "node", "waits", start="time", end=following).drop_nulls("end")


def _crossing(forest: Forest) -> pl.DataFrame:
    code = _own_part(forest).gather(forest.crossing["label"]).fill_null(_REST).alias("part")
    return forest.crossing.select("thread", "start", "end", code, node=pl.lit(NONE, pl.Int32), waits=pl.lit(False))
