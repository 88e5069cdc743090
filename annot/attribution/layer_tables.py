"""Tables of an attribution by layer, module class, phase, kernel and operation, and the tree of the layer table.

The lines of the tree are steps, ranges of the program, models, layers and operations inside each other. Each node of
the layer paths belongs to one line, and each line is inside the line of the range around it. A layer that runs in
several places has a line in each, with its part of the time. A layer directly inside itself is one line.

The backward pass and the recomputation of a layer are on the line of its forward pass, wherever their ranges are, so
that a line has all times of its layer. If the forward pass has several lines, these times are on the line that shares
most of the ranges around them, or inside what these lines share.

The time of a line is its self time plus the time of the lines inside, so that all times add up to those of the run.
Ranges that run at the same time, on several threads or in a graph of TensorFlow, are added up. Ranges that cross others
(`annot.attribution.nesting`) have calls and no time, because their time is that of other lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, self_times, without_unknown
from annot.attribution.gpu_time import MEMORY_COLUMNS, UNATTRIBUTED
from annot.attribution.nesting import KEY, Key, Nodes
from annot.attribution.range_trees import Forest, inside_engine_range
from annot.labels import layer_path
from annot.labels.foreign import phase_of
from annot.util.weak_keys import once_for_each

_SHAPES_KEPT: Final = 8
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""
LAYER_PHASES: Final = ("forward", "backward", "recompute")
"""Phases of a layer."""
_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")
OPERATIONS: Final = ("operator", "backward")
"""Roles of operations; see `annot.profile.ROLES`."""
_OF_OPERATIONS: Final = {"op": pl.String, "phase": pl.String} | dict.fromkeys(
    ("calls", "host_self_ns", "gpu_self_ns", "kernels", "copies"), pl.Int64
)
NO_MODULE: Final = "(no module)"
"""Module of the ranges without a module class in tables by module."""
NO_OPERATION: Final = "(no operation)"
"""Operation of the other ranges in tables by operation."""
_REST: Final = (NO_MODULE, UNATTRIBUTED)
_OWN: Final = ("calls", "host_self_ns", "gpu_self_ns", "gpu_by_sequence_ns", "gpu_by_time_ns", "kernels", "copies")
_INCLUSIVE: Final = {"host_ns": "host_self_ns", "gpu_ns": "gpu_self_ns", "kernels_total": "kernels"}


@once_for_each
def by_layer(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, module class and phase. `annot.correlate` documents the columns."""
    layers = attribution.forest.layers()
    rows = _rolled_up(attribution, layers, range(layers.height))
    rows = rows.join(_shapes(attribution), on="group", how="left", maintain_order="left")
    devices = attribution.busy.group_by(group=pl.col("key").cast(pl.Int64)).agg(  # added up over devices
        gpu_busy_ns=pl.col("busy_ns").sum(), gpu_span_ns=pl.col("last_ns").max() - pl.col("first_ns").min()
    )
    rows = rows.join(devices, on="group", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("shapes").fill_null([]), pl.col("gpu_busy_ns", "gpu_span_ns").fill_null(0))
    memory = () if attribution.memory is None else MEMORY_COLUMNS
    if attribution.memory is not None:
        rows = rows.join(attribution.memory.rename({"key": "group"}), on="group", how="left", maintain_order="left")
    # Layers that only a capture names have no start. They follow in the order of their first GPU activity.
    unstarted = pl.when(pl.col("start").is_null()).then("group")
    rows = rows.sort(pl.col("layer") == UNATTRIBUTED, "start", unstarted, *KEY, nulls_last=True)
    times = (*_TIMES, *(f"gpu_{name}_ns" for name in ("busy", "span", "by_sequence", "by_time")))
    counts = ("kernels", "kernels_total", "copies")
    rows = rows.select(*KEY, "calls", *times, *counts, *memory, *_source(attribution), "shapes")
    return without_unknown(rows, attribution.meta)


def _source(attribution: Attribution) -> list[pl.Expr]:
    """Return the column with the file and line of the module class; none if the profile does not contain them."""
    sources: dict[str, str] = attribution.meta.get("sources", {})
    source = pl.col("module").replace_strict(sources, default=None, return_dtype=pl.String)
    return [pl.when(pl.col("phase").is_in(LAYER_PHASES)).then(source).alias("source")] if sources else []


def by_module(attribution: Attribution) -> pl.DataFrame:
    """Return a row per module class and phase, with `layers`, the number of its distinct layers.

    The last rows are the other ranges, `NO_MODULE`, by phase, and the unattributed GPU time, with self times only, so
    that self times add up to those of the run. A profile without module classes has no rows.
    """
    keys = _name_modules(attribution.forest.layers())
    groups = keys.select("module", "phase").unique(maintain_order=True).with_columns(group=pl.int_range(pl.len()))
    keys = keys.join(groups, on=["module", "phase"], how="left", maintain_order="left")
    rows = _rolled_up(attribution, groups.drop("group"), keys["group"].to_list())
    layers = keys.group_by("group").agg(layers=pl.col("layer").n_unique().cast(pl.Int64))
    rows = rows.join(layers, on="group", how="left").with_columns(rest=pl.col("module").is_in(_REST))
    if rows["rest"].all():
        rows = rows.clear()
    own = (pl.when("rest").then(f"{of}_self_ns").otherwise(f"{of}_ns").alias(f"{of}_ns") for of in ("host", "gpu"))
    rows = rows.with_columns(own).sort(
        "rest", pl.col("module") == UNATTRIBUTED, "start", "module", "phase", nulls_last=True
    )
    rows = rows.select("module", "phase", "layers", "calls", *_TIMES, "kernels", "copies")
    return without_unknown(rows, attribution.meta)


def of_modules(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows by layer in which each has a module: its class, `NO_MODULE`, or `UNATTRIBUTED`, also as its phase.

    Rows without any module class are left out.
    """
    rows = _name_modules(rows)
    return rows.clear() if rows["module"].is_in(_REST).all() else rows


def _name_modules(rows: pl.DataFrame) -> pl.DataFrame:
    lost, word = pl.col("layer") == UNATTRIBUTED, pl.lit(UNATTRIBUTED)
    module = pl.when(lost).then(word).when(pl.col("module") == "").then(pl.lit(NO_MODULE)).otherwise("module")
    return rows.with_columns(module.alias("module"), pl.when(lost).then(word).otherwise("phase").alias("phase"))


def by_phase(attribution: Attribution) -> pl.DataFrame:
    """Return a row per phase with self times, so that the times add up to those of the run.

    A range without a phase counts towards the phase of the range around it. `calls` counts the outermost ranges of a
    phase.

    Returns:
        phase, calls, host_ns, gpu_ns, kernels, copies. The last row is the unattributed GPU time, or without GPU
        activity the time outside ranges.
    """
    nodes = attribution.nodes
    phases = phases_of_nodes(attribution.forest.nodes, attribution.forest.keys.names)
    begins = phases.ne_missing(phases.gather(column_ops.known(nodes["parent"])))
    table = nodes.with_columns(phases, begins.alias("begins"))
    rows = table.group_by("phase", maintain_order=True).agg(
        pl.col("calls").filter("begins").sum(),
        pl.col("host_self_ns").sum().alias("host_ns"),
        pl.col("gpu_self_ns").sum().alias("gpu_ns"),
        pl.col("kernels", "copies").sum(),
        pl.col("start").min(),
    )
    has_any = pl.any_horizontal(pl.col("kernels", "copies", "host_ns") > 0)
    rows = rows.filter((pl.col("phase") != UNATTRIBUTED) | has_any)
    rows = rows.sort(pl.col("phase") == UNATTRIBUTED, "start", nulls_last=True).drop("start")
    return without_unknown(rows, attribution.meta)


def by_kernel(attribution: Attribution) -> pl.DataFrame:
    """Return a row per name of a kernel, copy or memset, by descending GPU time.

    Returns:
        name, kernel (false for copies and memsets), calls, gpu_ns, mean_ns, min_ns, max_ns, and layers, the number of
        distinct layers that launched it.
    """
    layers = attribution.forest.layers_of_nodes().select("layer")[attribution.names["node"]]
    names = attribution.names.hstack(layers.select(pl.when(pl.col("layer") != UNATTRIBUTED).then("layer")))
    rows = names.group_by("name", "kernel").agg(
        pl.col("calls", "gpu_ns").sum(),
        (pl.col("gpu_ns").sum() // pl.col("calls").sum()).alias("mean_ns"),
        pl.col("min_ns").min(),
        pl.col("max_ns").max(),
        pl.col("layer").drop_nulls().n_unique().cast(pl.Int64).alias("layers"),
    )
    return rows.sort("gpu_ns", "name", descending=[True, False])


def by_op(attribution: Attribution) -> pl.DataFrame:
    """Return a row per operation that annot, the framework, `emit_nvtx` or PyProf recorded, by descending GPU time.

    The phase is that of `by_phase`. The last rows are the self times of the other ranges, `NO_OPERATION`, and the
    unattributed GPU time, so that times add up to those of `by_phase`, phase by phase. A profile without operations
    has no rows.

    Returns:
        op, phase, calls, host_self_ns, gpu_self_ns, kernels, copies.
    """
    forest = attribution.forest
    tree, labels = forest.tree, forest.labels
    is_operation = labels["role"].is_in(OPERATIONS)
    if not is_operation.gather(tree["label"]).any():
        return pl.DataFrame(schema=_OF_OPERATIONS)
    names = labels.select(op=pl.when(is_operation).then("layer").otherwise(pl.lit(NO_OPERATION)))["op"]
    names, phases = _as_enum(names, NO_OPERATION), _as_enum(phases_of_nodes(forest.nodes, forest.keys.names), "other")
    op = names.gather(tree["label"])
    first = ~inside_engine_range(tree, labels).alias("calls")  # the others are counted by the engine's range
    phase = phases.gather(column_ops.known(tree["path"])).fill_null("other")
    ranges = pl.DataFrame([op, phase, first, self_times(forest)])
    sums = [block.group_by("op", "phase").agg(pl.all().sum()) for block in ranges.iter_slices(_SLICE)]
    del ranges, phase, first  # may have millions of rows
    for work in attribution.activity_blocks():
        group = op.gather(column_ops.known(work["range"])).fill_null(NO_OPERATION), phases.gather(work["node"])
        rows = work.select(*group, gpu_self_ns="gpu_ns", kernels="kernel", copies=~pl.col("kernel"))
        sums.append(rows.group_by("op", "phase").agg(pl.all().sum()))
    outside = attribution.nodes.select(phases.cast(pl.String), "host_self_ns")
    outside = outside.filter(pl.col("phase") == UNATTRIBUTED, pl.col("host_self_ns") > 0)
    sums = [*(block.with_columns(pl.col("op", "phase").cast(pl.String)) for block in sums), outside]
    table = pl.concat([pl.DataFrame(schema=_OF_OPERATIONS), *sums], how="diagonal_relaxed")
    lost = pl.col("phase") == UNATTRIBUTED
    table = table.with_columns(op=pl.when(lost).then("phase").otherwise("op"))
    table = table.group_by("op", "phase").agg(pl.all().sum().cast(pl.Int64))
    last = pl.col("op").replace_strict({NO_OPERATION: 1, UNATTRIBUTED: 2}, default=0)
    longest = -pl.col("gpu_self_ns", "host_self_ns")
    return without_unknown(table.sort(last, longest, "op", "phase"), attribution.meta)


def _as_enum(texts: pl.Series, other: str) -> pl.Series:
    """Return texts as numbers with names, to which `other` belongs: a text per range takes much memory."""
    return texts.cast(pl.Enum(pl.concat([texts, pl.Series([other])]).unique(maintain_order=True)))


def modules_of_keys(names: Iterable[Key]) -> tuple[list[tuple[str, str]], list[int]]:
    """Return module and phase of each group of layers with a module class, and the group of each key; -1: none."""
    numbers: dict[tuple[str, str], int] = {}
    of_key = [
        numbers.setdefault((module, phase), len(numbers)) if module and layer != UNATTRIBUTED else column_ops.NONE
        for layer, module, phase in names
    ]
    return list(numbers), of_key


def _rolled_up(attribution: Attribution, groups: pl.DataFrame, of_key: Sequence[int]) -> pl.DataFrame:
    """Sum up nodes by group of their key. A layer inside itself counts once.

    The result has the columns of the groups, group (its number), `_OWN`, `_INCLUSIVE` and start.
    """
    nodes = attribution.nodes
    of_node = [of_key[key] for key in attribution.forest.nodes.keys]
    table = nodes.with_columns(
        pl.Series("group", of_node, pl.Int64),
        pl.Series("outermost", attribution.forest.nodes.outermost(of_node), pl.Boolean),
        *(column_ops.fold(nodes["parent"], nodes[own]).alias(name) for name, own in _INCLUSIVE.items()),
    ).with_columns(pl.col("host_ns") - column_ops.fold(nodes["parent"], nodes["host_overlap_ns"]))
    sums = (
        table.filter(pl.col("group") != column_ops.NONE)
        .group_by("group")
        .agg(pl.col(_OWN).sum(), pl.col(*_INCLUSIVE).filter("outermost").sum(), pl.col("start").min())
    )
    sums = _add_crossing(attribution, sums, of_key)
    shown = pl.any_horizontal(pl.col("calls", "kernels_total", "copies", "gpu_ns", "host_ns") > 0)
    numbered = groups.with_columns(group=pl.int_range(pl.len()))
    return sums.filter(shown).join(numbered, on="group", how="left")


def _add_crossing(attribution: Attribution, sums: pl.DataFrame, of_key: Sequence[int]) -> pl.DataFrame:
    """Add the crossing ranges: their calls, their host time and the GPU time launched in them."""
    crossing = attribution.forest.crossing
    keys = attribution.forest.labels["key"].gather(crossing["label"])
    group, gpu_ns = pl.Series("group", of_key, pl.Int64).gather(keys), attribution.crossing_gpu_ns.alias("gpu_ns")
    rows = crossing.select(group, "start", gpu_ns, host_ns=pl.col("end") - pl.col("start"), calls=pl.lit(1, pl.Int64))
    every = pl.concat([sums, rows.filter(pl.col("group") != column_ops.NONE)], how="diagonal").group_by("group")
    return every.agg(pl.col(*_OWN, *_INCLUSIVE).sum(), pl.col("start").min())


def _shapes(attribution: Attribution) -> pl.DataFrame:
    """Return the input shapes of each layer, most frequent first: those of its range, else of its operators."""
    forest = attribution.forest
    row = pl.int_range(pl.len(), dtype=pl.Int32).alias("label")
    labels = forest.labels.select(pl.col("key").cast(pl.Int64).alias("group"), "shapes", row).drop_nulls("shapes")
    seen = labels.join(forest.label_counts(), on="label").select("group", "shapes", "count")
    if forest.labels["call"].count():
        seen = pl.concat([seen, _shapes_of_operators(forest).join(seen, on="group", how="anti")])
    seen = seen.group_by("group", "shapes").agg(pl.col("count").sum())
    seen = seen.sort("count", "shapes", descending=[True, False])
    return seen.group_by("group", maintain_order=True).agg(pl.col("shapes").head(_SHAPES_KEPT))


def _shapes_of_operators(forest: Forest) -> pl.DataFrame:
    """Return group, shapes and count of the operators with recorded inputs that each layer calls directly."""
    operator = (forest.labels["role"] == "operator").gather(forest.tree["label"])
    direct = ~operator.gather(column_ops.known(forest.tree["parent"])).fill_null(False)
    called = forest.labels["call"].is_not_null() & forest.labels["shapes"].str.contains(r"\[\d")
    of_layer = forest.layers_of_nodes()["phase"].is_in(LAYER_PHASES).gather(column_ops.known(forest.tree["path"]))
    shapes = forest.labels["shapes"].gather(forest.tree["label"])
    rows = forest.tree.select("path", shapes).filter(direct & called.gather(forest.tree["label"]) & of_layer)
    group = pl.Series("group", forest.nodes.keys, pl.Int64).gather(rows["path"])
    counts = rows.with_columns(group).group_by("group", "shapes").agg(count=pl.len())
    return counts.select("group", "shapes", "count")


def phases_of_nodes(nodes: Nodes, names: Sequence[Key]) -> pl.Series:
    """Return the phase of each node, inherited from the innermost node around it with a phase, else other.

    `names` has the layers of the keys of the nodes.
    """
    phases: list[str] = []
    for parent, key in zip(nodes.parents, nodes.keys, strict=True):
        layer, _, phase = names[key]
        around = phases[parent] if parent != column_ops.NONE else "other"
        phases.append(UNATTRIBUTED if layer == UNATTRIBUTED else around if phase == "other" else phase)
    return pl.Series("phase", phases, pl.String)


_LATER: Final = ("backward", "recompute")
"""Phases that follow the forward pass to its line."""


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
    phase = phases_of_nodes(attribution.forest.nodes, attribution.forest.keys.names).replace(UNATTRIBUTED, "other")
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
    rows = attribution.nodes.select(*_OWN, "start").hstack(rows_of_nodes(attribution)).hstack(own)
    keys = labels["key"].gather(forest.crossing["label"])
    line = keys.cast(pl.Int64).replace_strict(tree.of_crossing, return_dtype=pl.Int64) if keys.len() else keys
    crossing = forest.crossing.select(
        "start", line.alias("line").cast(pl.Int64), labels["phase"].gather(forest.crossing["label"]), calls=1
    )
    crossing = crossing.with_columns(own="phase", calls=pl.col("calls").cast(pl.Int64))
    used = rows.filter(pl.any_horizontal(pl.col(_OWN) > 0))
    every = pl.concat([used, crossing], how="diagonal_relaxed").group_by("line", "phase", maintain_order=True)
    return every.agg(pl.col(_OWN).sum(), pl.col("start").min(), pl.col("own").first())


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
    return pl.concat(tables, how="diagonal_relaxed").with_columns(pl.col(_OWN).fill_null(0))


def _busy(rows: pl.DataFrame, layers: pl.DataFrame) -> pl.Expr:
    """Return gpu_busy_ns, which is known for lines with the whole time of their layer."""
    named = pl.when((pl.col("layer") != "") | ((pl.col("module") != "") & pl.col("phase").is_in(LAYER_PHASES)))
    whole = layers.group_by(*KEY[:2], named=named.then(pl.lit("")).otherwise("phase")).agg(whole=pl.col("gpu_ns").sum())
    of_layer = rows.join(whole, on=[*KEY[:2], "named"], how="left", maintain_order="left")["whole"]
    return pl.when(pl.col("gpu_ns").sum().over("line") == of_layer).then("gpu_busy_ns").alias("gpu_busy_ns")
