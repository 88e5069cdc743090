"""Tree of the rows of a layer report: each layer is a child of the layer whose path is a prefix of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from annot.attribution import Attribution, by_layer
from annot.attribution.nested_layers import LayerNesting, nested_layers
from annot.labels import layer_path
from annot.labels.tag import COMPILED, FUSED, MODEL
from annot.report.columns import COLUMNS, Formatted, combined
from annot.report.report import Report
from annot.report.tables import TREE, head
from annot.report.tree_rows import LAYER_PHASES, TITLES, in_tree, is_layer, of_program
from annot.report.units import count, share, unit_for

__all__ = ["MODEL", "Line", "at_depth", "layer_lines", "other_lines", "row_label", "title", "tree_columns"]

_WRAPPERS: Final = (
    "DistributedDataParallel", "DataParallel", "AveragedModel", "DeepSpeedEngine", "FullyShardedDataParallel",
)  # fmt: skip
"""Classes of PyTorch modules that have the path of the module that they wrap."""
_Key = tuple[str, str]
_ROW: Final = ("layer", "module", "phase")
_OF_CALLS: Final = ("calls", "gpu_mean_ns", "gpu_min_ns", "gpu_max_ns")


@dataclass(slots=True)
class Line:
    """Line of the layer table.

    Args:
        label: path relative to the parent line, or a title for a row without a layer.
        module: class name, or a remark on the label; may be empty.
        depth: indentation level.
        phases: rows of the report by phase.
        inside: lines of the ranges directly inside, for a range of a program (see `annot.attribution.containment`).
        place: position among the lines in the order of the rows.
        members: lines of the layers that a fold stands for (see `annot.report.folds`); empty: one layer.
        count: number of these layers in words, such as ``×200``; empty: as many as the fold around it.
    """

    label: str
    module: str
    depth: int = 0
    phases: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    inside: list[Line] = field(default_factory=list)
    place: int = 0
    members: list[Line] = field(default_factory=list)
    count: str = ""

    def get(self, column: str, *phases: str) -> Any:
        """Return the sum of a column over the given phases, or over all phases; None if every value is null.

        The phases of a range without a phase are those of the ranges inside it.
        """
        times = [row[column] for phase, row in self.phases.items() if not phases or phase in phases]
        if phases and self.phases.keys() == {"other"}:
            times = [line.get(column, *phases) for line in self.inside]
        known = [time for time in times if time is not None]
        return sum(known) if known else None

    @property
    def key(self) -> _Key:
        """Layer and module."""
        return next((row["layer"], row["module"]) for row in self.phases.values())

    @property
    def input(self) -> str:
        """The most frequent input shape and the number of others; empty: unknown."""
        shapes: list[str] = next((row["shapes"] for row in self.phases.values() if row["shapes"]), [])
        return "" if not shapes else shapes[0] if len(shapes) == 1 else f"{shapes[0]} (+{len(shapes) - 1})"


def layer_lines(
    rows: pl.DataFrame, every: pl.DataFrame | None = None, nesting: LayerNesting | None = None
) -> list[Line]:
    """Return the lines of layers and ranges in depth-first order; siblings keep the order of the rows.

    Args:
        rows: rows by layer, module and phase.
        every: all rows, for `rows` that lack some: each line keeps its place, inside the nearest line that is there,
            and a range without a phase keeps the phases of the ranges inside it.
        nesting: the layers inside each other by their ranges; None: paths say where a layer is.
    """
    whole = _lines(rows if every is None else every, every)
    parents = _parents(whole, nesting)
    for key, parent in parents.items():
        if parent is not None:
            whole[parent].inside.append(whole[key])
    lines = whole if every is None else _lines(rows, every)
    children: dict[_Key | None, list[_Key]] = {}
    for key, line in lines.items():
        line.inside = whole[key].inside
        above = parents[key]
        while above is not None and above not in lines:
            above = parents[above]
        children.setdefault(above, []).append(key)
    return list(_walk(lines, children))


def other_lines(rows: pl.DataFrame, every: pl.DataFrame | None = None) -> list[Line]:
    """Return the lines of the remaining rows: loops, optimizers, operations, unattributed time.

    `every` has all rows, for `rows` that lack some.
    """
    others = rows.filter(~in_tree(rows, every)).iter_rows(named=True)
    return [Line(*title(row), 0, {row["phase"]: row}) for row in others]


def _lines(rows: pl.DataFrame, every: pl.DataFrame | None) -> dict[_Key, Line]:
    lines: dict[_Key, Line] = {}
    for row in rows.filter(in_tree(rows, every)).iter_rows(named=True):
        key = row["layer"], row["module"]
        line = lines.setdefault(key, Line(row["layer"] or MODEL, row["module"], place=len(lines)))
        line.phases[row["phase"]] = row
    return lines


def tree_columns(report: Report, lines: Sequence[Line]) -> list[Formatted[Line]]:
    """Return the columns of the layer table. Phases that no line has get no column."""
    time, host = report.time, unit_for(report.tree_rows["host_ns"])
    unit = unit_for(report.tree_rows[time])

    def timed(column: str, *phases: str) -> Callable[[Line], str]:
        return lambda line: unit.show(line.get(column, *phases))

    shows: dict[str, Callable[[Line], str]] = {
        phase: timed(time, phase) for phase in LAYER_PHASES if any(line.get(time, phase) is not None for line in lines)
    }
    always = {} if shows else {"total": 0}
    shows |= {
        "total": timed(time),
        "self": timed(time.replace("_ns", "_self_ns")),
        "share": lambda line: share(line.get(time), report.whole or 0),
        # calls of the forward, or all calls of a line without forward rows
        "calls": lambda line: count(line.get("calls", *(line.phases.keys() & {"forward"}))),
    }
    if time == "gpu_ns":
        shows["busy"] = timed("gpu_busy_ns")
        shows["kernels"] = lambda line: count(line.get("kernels") or None)
    if (report.tree_rows["gpu_by_time_ns"] > 0).any():
        shows["by_time"] = lambda line: unit.show(line.get("gpu_by_time_ns") or None)
    columns = [head(TREE[name], show, always.get(name)) for name, show in shows.items()]
    if time == "gpu_ns" and report.meta["host_ns"] is not None:
        named = f"{TREE['host'].title} {host.name}"
        columns.append(head(TREE["host"], lambda line: host.show(line.get("host_ns")), title=named))
    return columns


def at_depth(rows: pl.DataFrame, depth: int, attribution: Attribution) -> pl.DataFrame:
    """Return rows in which each layer below a depth is part of its ancestor at that depth.

    The rows of an ancestor and of the layers below it combine as their columns say. Its calls, the times per call and
    its total times are its own: it contains these layers. Rows without a layer stay.

    Args:
        rows: rows by layer, module and phase, such as those of `annot.attribution.by_layer`.
        depth: number of levels to keep below the outermost layers; 0 keeps these only.
        attribution: the profile of the rows.
    """
    lines: dict[_Key, Line] = {}
    above: list[Line] = []
    layers = by_layer(attribution)
    for line in layer_lines(layers, nesting=nested_layers(attribution)):
        above[line.depth :] = [line]
        lines[line.key] = above[min(line.depth, depth)]
    owners = {key: _owner(key, lines.get(key[:2])) for key in layers.select(_ROW).iter_rows()}
    names = [owners[key] for key in rows.select(_ROW).iter_rows()]
    owner = pl.DataFrame(names, schema=dict.fromkeys(_ROW, pl.String), orient="row")
    is_owner = (rows["layer"] == owner["layer"]) & (rows["module"] == owner["module"])
    table = rows.with_columns(*owner.get_columns(), is_owner.alias("is_owner"))
    keys = [name for name in ("layer", "module", "phase", "batch") if name in rows.columns]
    merged = combined(
        table, keys, [COLUMNS[name] for name in rows.columns if name in COLUMNS and name not in _OF_CALLS]
    )
    own = [pl.col(name).filter("is_owner").first() for name in rows.columns if name not in (*keys, *merged.columns)]
    merged = merged.join(table.group_by(keys, maintain_order=True).agg(own), on=keys, how="left", nulls_equal=True)
    return merged.select(rows.columns)


def _owner(key: tuple[str, str, str], line: Line | None) -> tuple[str, str, str]:
    """Return layer, module and phase of the row that a row becomes part of. A range without a phase has one row."""
    if line is None:
        return key
    return *line.key, "other" if line.phases.keys() == {"other"} else key[2]


def title(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return label and remark of a row: layer and class, or for unattributed time the reason."""
    layer, module, phase = row["layer"], row["module"], row["phase"]
    if layer in TITLES:
        return TITLES[layer], module
    if not layer and phase != "other":
        return phase.capitalize(), module or "(all)"
    return layer, module


def row_label(row: Mapping[str, Any], label: str = "layer") -> tuple[str, str]:
    """Return the label of a row and a remark on it: the layer and its class, or the value of another column."""
    if label == "layer":
        path, module = (row["layer"] or MODEL, row["module"]) if is_layer(row) else title(row)
        return path, f"{module} ×{row['folded']:,}".strip() if row.get("folded") else module
    if label == "group":
        return "  " * row["depth"] + layer_path.last(row["group"]), ""
    if label == "item":
        return f"{row['section']}: {row['item'].replace('_', ' ')}", ""
    if label == "name":
        return row.get("short") or str(row["name"]), ""
    return str(row[label]), ""


def _parents(lines: Mapping[_Key, Line], nesting: LayerNesting | None) -> dict[_Key, _Key | None]:
    """Map each layer to the innermost layer around it; None: outermost.

    A layer is inside the layers that contain all of its calls. Paths say where the other lines are: those of ranges of
    a program and of operations, and those without a known place.
    """
    parents = _parents_by_path(lines)
    if nesting is None:
        return parents
    layers = {key for key, line in lines.items() if _is_of_model(line)}
    for key in layers & nesting.nodes.keys():
        parents[key] = next((one for one in nesting.around(key) if one in layers), None)
    return parents


def _is_of_model(line: Line) -> bool:
    """Return whether a line is a layer of a model rather than a range of a program or an operation."""
    row = next(iter(line.phases.values()))
    return not of_program(row) and "::" not in row["layer"]


def _parents_by_path(lines: Mapping[_Key, Line]) -> dict[_Key, _Key | None]:
    """Map each layer to the layer with the longest path that is a prefix; None: outermost."""
    keys = list(lines)
    first: dict[str, _Key] = {}
    for key in keys:
        if not _is_graph(key) and FUSED not in key[0]:
            first.setdefault(key[0], key)
    roots = [key for key in keys if not key[0] and not _is_graph(key)]
    wrappers = [key for key in roots if key[1] in _WRAPPERS]
    models = [key for key in roots if key not in wrappers]
    if len(wrappers) == len(models) == 1:
        first[""] = models[0]
    parents: dict[_Key, _Key | None] = {}
    for key in keys:
        above = (key[0], *layer_path.above(key[0])) if _is_graph(key) else _around(lines[key])
        parent = next((first[path] for path in above if path in first), None)
        if parent is not None and not parent[0] and len(models) > 1:
            parent = None  # with several models, the path alone does not identify the root
        if [key] == models and len(wrappers) == 1:
            parent = wrappers[0]
        parents[key] = parent
    return parents


def _is_graph(key: _Key) -> bool:
    """Return whether a row describes a compiled graph, which is a child of the layer that runs it."""
    return key[1].startswith(COMPILED)


def _around(line: Line) -> Iterator[str]:
    """Yield the parent paths, longest first. The model does not contain ranges of a program and operations."""
    row = next(iter(line.phases.values()))
    path = row["layer"]
    return layer_path.around(path) if _is_of_model(line) else filter(None, layer_path.above(path))


def _walk(lines: Mapping[_Key, Line], children: Mapping[_Key | None, list[_Key]]) -> Iterator[Line]:
    """Yield the lines depth first, without recursion: models can be deeper than CPython's recursion limit."""
    pending: list[tuple[_Key, _Key | None, int]] = [(key, None, 0) for key in reversed(children.get(None, []))]
    while pending:
        key, above, depth = pending.pop()
        line = lines[key]
        line.depth = depth
        if _is_graph(key):
            line.label = "(graph)"
        elif key[0] and (key[1] or FUSED not in key[0]):
            line.label = layer_path.relative(key[0], "" if above is None or key[0] == above[0] else above[0])
        elif above is not None:
            line.label = "module"
        yield line
        pending += [(child, key, depth + 1) for child in reversed(children.get(key, []))]
