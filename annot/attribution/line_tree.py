"""The tree of the layer table: steps, ranges of the program, models, layers and operations inside each other.

Each node of the layer paths belongs to one line, and each line is inside the line of the range around it. A layer that
runs in several places has a line in each, with its part of the time. A layer directly inside itself is one line.

The backward pass and the recomputation of a layer are on the line of its forward pass, wherever their ranges are, so
that a line has all times of its layer. If the forward pass has several lines, these times are on the line that shares
most of the ranges around them, or inside what these lines share.

The time of a line is its self time plus the time of the lines inside, so that all times add up to those of the run.
Ranges that run at the same time, on several threads or in a graph of TensorFlow, are added up. Ranges that cross others
(`annot.attribution.nesting`) have calls and no time, because their time is that of other lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.attribute import Attribution
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.host_times import without_unknown
from annot.attribution.layer_chains import KEY, Key
from annot.attribution.layer_tables import by_layer, phases_of_nodes
from annot.labels import layer_path
from annot.labels.foreign import phase_of
from annot.util.weak_keys import once_for_each

__all__ = ["LAYER_PHASES", "LineTree", "by_line", "is_layer", "line_tree", "rows_of_nodes"]

LAYER_PHASES: Final = ("forward", "backward", "recompute")
"""Phases of a layer."""
_LATER: Final = ("backward", "recompute")
"""Phases that follow the forward pass to its line."""
_SUMS: Final = ("calls", "host_self_ns", "gpu_self_ns", "gpu_by_sequence_ns", "gpu_by_time_ns", "kernels", "copies")
_INCLUSIVE: Final = {"host_ns": "host_self_ns", "gpu_ns": "gpu_self_ns", "kernels_total": "kernels"}


@dataclass(frozen=True, slots=True)
class LineTree:
    """The lines of the layer table.

    Args:
        names: layer, module and phase of each line; the phase is empty unless it is the name of the line.
        parents: line around each line, -1 at the top. A parent comes before its children.
        layers: whether each line is a layer of a model.
        of_node: line of each node of the layer paths.
        of_crossing: line of each key of the crossing ranges.
    """

    names: Sequence[Key]
    parents: Sequence[int]
    layers: Sequence[bool]
    of_node: Sequence[int]
    of_crossing: Mapping[int, int]

    def levels(self) -> list[int]:
        """Return the number of lines between each line and the outermost layers; -1: steps and ranges around layers."""
        around_layers = [False] * len(self.names)
        for line in range(len(self.names) - 1, -1, -1):
            if (parent := self.parents[line]) != column_ops.NONE:
                around_layers[parent] |= self.layers[line] or around_layers[line]
        levels: list[int] = []
        for line, parent in enumerate(self.parents):
            above = -1 if parent == column_ops.NONE else levels[parent]
            levels.append(-1 if above < 0 and around_layers[line] and not self.layers[line] else above + 1)
        return levels

    def same_lines(self, other: LineTree) -> list[int]:
        """Return the number of each line in another tree, -1 for lines that it lacks.

        What is inside such a line is inside the line around it: the tree of selected steps lacks epochs.
        """
        numbers = {pair: number for number, pair in enumerate(zip(other.parents, other.names, strict=True))}
        matches: list[int] = []
        around = {column_ops.NONE: column_ops.NONE}
        for line, (parent, name) in enumerate(zip(self.parents, self.names, strict=True)):
            matches.append(numbers.get((around[parent], name), column_ops.NONE))
            around[line] = around[parent] if matches[line] == column_ops.NONE else matches[line]
        return matches


def is_layer(layer: str, module: str, phase: str) -> bool:
    """Return whether a row of `annot.attribution.by_layer` is a layer of a model, not a range of the program.

    Example:
        >>> is_layer("fc", "Linear", "forward"), is_layer("train › forward", "", "forward")
        (True, False)
    """
    if phase not in LAYER_PHASES or "::" in layer:
        return False
    return bool(module) or (bool(layer) and layer_path.INSIDE not in layer and phase_of(layer) != phase)


@once_for_each
def line_tree(attribution: Attribution) -> LineTree:
    """Return the lines of a profile."""
    forest = attribution.forest
    names, nodes, lines = forest.keys.names, forest.nodes, _Lines()
    of_node = [column_ops.NONE] * len(nodes)
    is_later: list[bool] = []
    for node, (parent, key) in enumerate(zip(nodes.parents, nodes.keys, strict=True)):
        is_later.append(names[key][2] in _LATER or (parent != column_ops.NONE and is_later[parent]))
        if not is_later[node]:
            of_node[node] = lines.inside(_line_of(of_node, parent), names[key])
    forward = {name: list(numbers) for name, numbers in lines.of_name.items()}
    for node, (parent, key) in enumerate(zip(nodes.parents, nodes.keys, strict=True)):
        if is_later[node]:
            among = forward.get(_name(names[key]), ()) if names[key][2] in _LATER else ()
            of_node[node] = lines.inside(lines.nearest(_line_of(of_node, parent), among), names[key])
    crossing = forest.labels["key"].gather(forest.crossing["label"].unique(maintain_order=True))
    of_crossing = {key: lines.anywhere(names[key]) for key in crossing}
    return LineTree(lines.names, lines.parents, lines.layers, of_node, of_crossing)


def _line_of(of_node: Sequence[int], node: int) -> int:
    return column_ops.NONE if node == column_ops.NONE else of_node[node]


def _name(key: Key) -> Key:
    """Return the name of the line of a key: the phases of a layer are one line."""
    layer, module, phase = key
    return layer, module, "" if layer or (module and phase in LAYER_PHASES) else phase


class _Lines:
    """The lines so far."""

    def __init__(self) -> None:
        self.names: list[Key] = []
        self.parents: list[int] = []
        self.layers: list[bool] = []
        self.of_name: dict[Key, list[int]] = {}
        self._numbers: dict[tuple[int, Key], int] = {}

    def inside(self, parent: int, key: Key) -> int:
        """Return the line of a key inside a line, which is the line itself if it has the same name."""
        name = _name(key)
        if parent != column_ops.NONE and self.names[parent] == name:
            line = parent
        elif (line := self._numbers.get((parent, name), column_ops.NONE)) == column_ops.NONE:
            line = self._numbers[parent, name] = len(self.names)
            self.of_name.setdefault(name, []).append(line)
            self.names.append(name)
            self.parents.append(parent)
            self.layers.append(is_layer(*key))
        return line

    def anywhere(self, key: Key) -> int:
        """Return the first line with the name of a key, or a new outermost line."""
        lines = self.of_name.get(_name(key))
        return lines[0] if lines else self.inside(column_ops.NONE, key)

    def nearest(self, around: int, lines: Sequence[int]) -> int:
        """Return the line in which the backward pass of a layer is.

        Args:
            around: the line of the range around it.
            lines: the lines of the forward pass of the layer.

        Returns:
            The parent of the line that shares most lines around it with `around`, or what several such lines share.
            Without lines: `around`.
        """
        if not lines:
            return around
        parents = {self.parents[line] for line in lines}
        if around in parents or around in lines:
            return around
        if len(parents) > 1:
            mine = self._path(around)
            shared = {parent: _shared(mine, self._path(parent)) for parent in parents}
            parents = {parent for parent in parents if shared[parent] == max(shared.values())}
        first, *others = (self._path(parent) for parent in parents)
        for other in others:
            first = first[: _shared(first, other)]
        return first[-1] if first else column_ops.NONE

    def _path(self, line: int) -> list[int]:
        """Return the lines around a line, outermost first, and the line itself."""
        path = []
        while line != column_ops.NONE:
            path.append(line)
            line = self.parents[line]
        return path[::-1]


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of lines at the beginning of two paths that are the same."""
    return next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def rows_of_nodes(attribution: Attribution) -> pl.DataFrame:
    """Return line and phase of each node: its phase, or that of the range around it."""
    phase = phases_of_nodes(attribution.forest).replace(UNATTRIBUTED, "other")
    return pl.DataFrame({"line": pl.Series(line_tree(attribution).of_node, dtype=pl.Int64), "phase": phase})


@once_for_each
def by_line(attribution: Attribution) -> pl.DataFrame:
    """Return a row per line and phase of the layer table, in order of the first start of the lines.

    Returns:
        line and parent (numbers, parent -1: outermost), is_layer (of a model), level (see `LineTree.levels`), own
        (phase of the rows of `by_layer` with the layer; null: only lines inside have this phase), and columns of
        `annot.attribution.by_layer`. The times of a row are those of the line in one phase; a range without a phase
        has that of the range around it. gpu_busy_ns is null for a line with some of the executions of its layer.
    """
    tree = line_tree(attribution)
    rows = _inclusive(_own_rows(attribution, tree), tree)
    layers = by_layer(attribution)
    named = pl.DataFrame([*tree.names], schema=dict.fromkeys(("layer", "module", "named"), pl.String), orient="row")
    named = named.with_columns(
        line=pl.int_range(pl.len()),
        parent=pl.Series(tree.parents, dtype=pl.Int64),
        is_layer=pl.Series(tree.layers, dtype=pl.Boolean),
        level=pl.Series(tree.levels(), dtype=pl.Int64),
    )
    rows = rows.join(named, on="line", how="left", maintain_order="left")
    rows = rows.with_columns(pl.coalesce("own", "phase").alias("own"))
    more = layers.select(*KEY[:2], *(name for name in _OF_LAYER if name in layers.columns), own="phase", known="phase")
    rows = rows.join(more, on=["layer", "module", "own"], how="left", maintain_order="left")
    rows = rows.with_columns(own="known")
    rows = rows.with_columns(_busy(rows, layers), pl.col("shapes").fill_null([]))
    first = pl.col("start").min().over("line")
    rows = rows.sort(pl.col("layer") == UNATTRIBUTED, first, "line", "start", nulls_last=True, maintain_order=True)
    return without_unknown(
        rows.drop("named", "known", "start", "shapes").hstack(rows.select("shapes")), attribution.meta
    )


_OF_LAYER: Final = ("gpu_busy_ns", "source", "shapes")


def _own_rows(attribution: Attribution, tree: LineTree) -> pl.DataFrame:
    """Return the sums of each line and phase without the lines inside, with the calls of crossing ranges."""
    forest, labels = attribution.forest, attribution.forest.labels
    own = forest.layers_of_nodes().select(own="phase")
    rows = attribution.nodes.select(*_SUMS, "start").hstack(rows_of_nodes(attribution)).hstack(own)
    keys = labels["key"].gather(forest.crossing["label"])
    line = keys.cast(pl.Int64).replace_strict(tree.of_crossing, return_dtype=pl.Int64) if keys.len() else keys
    crossing = forest.crossing.select(
        "start", line.alias("line").cast(pl.Int64), labels["phase"].gather(forest.crossing["label"]), calls=1
    )
    crossing = crossing.with_columns(own="phase", calls=pl.col("calls").cast(pl.Int64))
    used = rows.filter(pl.any_horizontal(pl.col(_SUMS) > 0))
    every = pl.concat([used, crossing], how="diagonal_relaxed").group_by("line", "phase", maintain_order=True)
    return every.agg(pl.col(_SUMS).sum(), pl.col("start").min(), pl.col("own").first())


def _inclusive(rows: pl.DataFrame, tree: LineTree) -> pl.DataFrame:
    """Add the sums with the lines inside, and the rows of lines of which only lines inside have a phase."""
    parents = pl.Series("parent", tree.parents, pl.Int32)
    every = pl.DataFrame({"line": pl.int_range(len(tree.parents), eager=True)})
    tables = [rows.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _INCLUSIVE).clear()]
    for _, phase_rows in rows.group_by("phase", maintain_order=True):
        dense = every.join(phase_rows, on="line", how="left", maintain_order="left")
        sums = (column_ops.fold(parents, dense[own].fill_null(0)).alias(name) for name, own in _INCLUSIVE.items())
        dense = dense.with_columns(sums).with_columns(phase=pl.lit(phase_rows["phase"][0]))
        has_any = pl.any_horizontal(pl.col(_INCLUSIVE) > 0)
        tables.append(dense.filter(pl.col("calls").is_not_null() | has_any))
    return pl.concat(tables, how="diagonal_relaxed").with_columns(pl.col(_SUMS).fill_null(0))


def _busy(rows: pl.DataFrame, layers: pl.DataFrame) -> pl.Expr:
    """Return gpu_busy_ns, which is known for lines with the whole time of their layer."""
    named = pl.when((pl.col("layer") != "") | ((pl.col("module") != "") & pl.col("phase").is_in(LAYER_PHASES)))
    whole = layers.group_by(*KEY[:2], named=named.then(pl.lit("")).otherwise("phase")).agg(whole=pl.col("gpu_ns").sum())
    of_layer = rows.join(whole, on=[*KEY[:2], "named"], how="left", maintain_order="left")["whole"]
    return pl.when(pl.col("gpu_ns").sum().over("line") == of_layer).then("gpu_busy_ns").alias("gpu_busy_ns")
