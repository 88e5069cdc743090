"""The lines of the layer table: `annot.attribution.layer_tables` says which line is inside which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from annot.attribution.column_ops import NONE
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import LAYER_PHASES
from annot.attribution.nesting import KEY, Key
from annot.labels import layer_path
from annot.labels.tag import COMPILED, FUSED, MODEL
from annot.report.columns import COLUMNS, Formatted, combined
from annot.report.report import Report
from annot.report.tables import TREE, head
from annot.report.tree_rows import TITLES
from annot.report.units import count, share, unit_for

__all__ = [
    "MODEL",
    "Line",
    "at_depth",
    "layer_lines",
    "lines_at_depth",
    "other_lines",
    "row_label",
    "title",
    "tree_columns",
]

_OF_CALLS: Final = ("calls", "gpu_mean_ns", "gpu_min_ns", "gpu_max_ns")


@dataclass(slots=True)
class Line:
    """Line of the layer table.

    Args:
        label: path relative to the parent line, or a title for a row without a layer.
        module: class name, or a remark on the label; may be empty.
        depth: indentation level.
        phases: rows of the report by phase.
        number: number of the line in the rows, -1 for a fold.
        is_layer: whether the line is a layer of a model.
        place: position among the lines in the order of the rows.
        members: lines of the layers that a fold stands for (see `annot.report.folds`); empty: one layer.
        count: number of these layers in words, such as ``×200``; empty: as many as the fold around it.
    """

    label: str
    module: str
    depth: int = 0
    phases: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    number: int = NONE
    is_layer: bool = False
    place: int = 0
    members: list[Line] = field(default_factory=list)
    count: str = ""

    def get(self, column: str, *phases: str) -> Any:
        """Return the sum of a column over the given phases, or over all phases; None if every value is null."""
        values = [row[column] for phase, row in self.phases.items() if not phases or phase in phases]
        numbers = [value for value in values if value is not None]
        return sum(numbers) if numbers else None

    @property
    def key(self) -> tuple[str, str]:
        """Layer and module."""
        return next((row["layer"], row["module"]) for row in self.phases.values())

    @property
    def input(self) -> str:
        """The most frequent input shape and the number of others; empty: unknown."""
        shapes: list[str] = next((row["shapes"] for row in self.phases.values() if row["shapes"]), [])
        return "" if not shapes else shapes[0] if len(shapes) == 1 else f"{shapes[0]} (+{len(shapes) - 1})"


def layer_lines(rows: pl.DataFrame, every: pl.DataFrame | None = None) -> list[Line]:
    """Return the lines of all rows but the unattributed time, depth first; siblings keep the order of the rows.

    Args:
        rows: rows of `annot.attribution.layer_tables.by_line`.
        every: all rows, for `rows` that lack some: each line is inside the nearest line that is there.
    """
    lines = _lines(rows.filter(pl.col("layer") != UNATTRIBUTED))
    parents = dict((rows if every is None else every).select("line", "parent").unique().iter_rows())
    children: dict[int, list[int]] = {}
    for number in lines:
        parent = parents[number]
        while parent != NONE and parent not in lines:
            parent = parents[parent]
        children.setdefault(parent, []).append(number)
    return list(_walk(lines, children))


def other_lines(rows: pl.DataFrame, every: pl.DataFrame | None = None) -> list[Line]:
    """Return the lines of the unattributed time, by reason."""
    return list(_lines(rows.filter(pl.col("layer") == UNATTRIBUTED)).values())


def _lines(rows: pl.DataFrame) -> dict[int, Line]:
    lines: dict[int, Line] = {}
    for row in rows.iter_rows(named=True):
        if (line := lines.get(row["line"])) is None:
            line = Line(*title(row), number=row["line"], is_layer=row["is_layer"], place=len(lines))
            lines[line.number] = line
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
        "calls": lambda line: count(line.get("calls", "forward") or line.get("calls")),  # those of the forward, or all
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


def lines_at_depth(rows: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Return rows of `annot.attribution.layer_tables.by_line` in which each line below a level is part of a line there.

    Args:
        rows: the rows.
        depth: number of levels to keep below the outermost layers; 0 keeps these, and the steps and ranges around them.
    """
    own = [
        pl.col(name).sum()
        for name, column in COLUMNS.items()
        if column.combined == "sum" and name in rows.columns and name not in _OF_CALLS
    ]
    owners = _owners(rows, depth)
    owner = rows["line"].replace_strict(owners, return_dtype=pl.Int64)
    sums = rows.with_columns(line=owner).group_by("line", "phase").agg(own)
    names = [name for name in sums.columns if name not in ("line", "phase")]
    kept = rows.filter(rows["line"] == owner)
    return kept.drop(names).join(sums, on=["line", "phase"], how="left", maintain_order="left").select(rows.columns)


def _owners(rows: pl.DataFrame, depth: int) -> dict[int, int]:
    """Map each line to the innermost line around it at a level up to `depth`, or to itself."""
    owners: dict[int, int] = {}
    for line, parent, level in rows.select("line", "parent", "level").unique().sort("line").iter_rows():
        owners[line] = line if level <= depth else owners[parent]
    return owners


def at_depth(rows: pl.DataFrame, depth: int, lines: pl.DataFrame) -> pl.DataFrame:
    """Return rows in which each layer below a depth is part of the line around it at that depth.

    The rows of a line and of the layers inside combine as their columns say. Calls, times per call and total times
    stay those of the line, which contains these layers. A layer with lines inside several others stays.

    Args:
        rows: rows by layer, module and phase, such as those of `annot.attribution.by_layer`.
        depth: number of levels to keep below the outermost layers; 0 keeps these only.
        lines: result of `annot.attribution.layer_tables.by_line` for the profile of the rows.
    """
    owners = _named_owners(lines, depth)
    names = [owners.get(key, key) for key in rows.select(KEY).iter_rows()]
    owner = pl.DataFrame(names, schema=dict.fromkeys(KEY, pl.String), orient="row")
    is_owner = (rows["layer"] == owner["layer"]) & (rows["module"] == owner["module"])
    table = rows.with_columns(*owner.get_columns(), is_owner.alias("is_owner"))
    keys = [name for name in ("layer", "module", "phase", "batch") if name in rows.columns]
    merged = combined(
        table, keys, [COLUMNS[name] for name in rows.columns if name in COLUMNS and name not in _OF_CALLS]
    )
    own = [pl.col(name).filter("is_owner").first() for name in rows.columns if name not in (*keys, *merged.columns)]
    merged = merged.join(table.group_by(keys, maintain_order=True).agg(own), on=keys, how="left", nulls_equal=True)
    return merged.select(rows.columns)


def _named_owners(lines: pl.DataFrame, depth: int) -> dict[Key, Key]:
    """Map layer, module and phase to those of the line around the layer at a depth, if all its lines agree."""
    owner = lines["line"].replace_strict(_owners(lines, depth), return_dtype=pl.Int64)
    rows = lines.drop_nulls("own").group_by("line", maintain_order=True).agg(pl.col(*KEY[:2]).first(), "own")
    named = {line: (layer, module, own) for line, layer, module, own in rows.iter_rows()}
    candidates: dict[Key, set[Key]] = {}
    for layer, module, phase, line in lines.select(*KEY[:2], "own", owner).drop_nulls("own").iter_rows():
        *name, phases = named.get(line, (layer, module, [phase]))
        candidates.setdefault((layer, module, phase), set()).add((*name, phase if phase in phases else phases[0]))
    return {key: next(iter(owners)) for key, owners in candidates.items() if len(owners) == 1}


def title(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return label and remark of a row: layer and class, or for unattributed time the reason."""
    layer, module, phase = row["layer"], row["module"], row["phase"]
    if layer:
        return TITLES.get(layer, layer), "" if module == layer else module
    if module and phase in LAYER_PHASES:
        return MODEL, module
    return (phase.capitalize(), module or "(all)") if phase != "other" else (MODEL, module)


def row_label(row: Mapping[str, Any], label: str = "layer") -> tuple[str, str]:
    """Return the label of a row and a remark on it: the layer and its class, or the value of another column."""
    if label == "layer":
        path, module = title(row)
        return path, f"{module} ×{row['folded']:,}".strip() if row.get("folded") else module
    if label == "item":
        return f"{row['section']}: {row['item'].replace('_', ' ')}", ""
    if label == "name":
        return row.get("short") or str(row["name"]), ""
    if label == "module" and FUSED in row[label]:
        return f"fused: {', '.join(row[label].split(FUSED))}", ""
    return str(row[label]), ""


def _walk(lines: Mapping[int, Line], children: Mapping[int, list[int]]) -> Iterator[Line]:
    """Yield the lines depth first, without recursion: models can be deeper than CPython's recursion limit."""
    pending: list[tuple[int, tuple[Any, ...]]] = [(number, ()) for number in reversed(children.get(NONE, []))]
    while pending:
        number, around = pending.pop()  # `around` is a linked list of the lines around, innermost first
        line = lines[number]
        line.depth = around[1].depth + 1 if around else 0
        line.label = _label(line, around)
        yield line
        pending += [(child, (around, line)) for child in reversed(children.get(number, []))]


def _label(line: Line, around: tuple[Any, ...]) -> str:
    """Return the label of a line inside others: the path below the layer or range around it."""
    path, module = line.key
    if around and module.startswith(COMPILED):
        return "(graph)"
    if not path or (FUSED in path and not module):
        return "module" if around and line.is_layer and around[1].is_layer else line.label
    if not around:
        return line.label if path in TITLES else layer_path.relative(path, "")
    while layer_path.INSIDE in path and around[0] and not layer_path.is_within(path, around[1].key[0] or "."):
        around = around[0]  # a range inside a layer is named by the range around it
    outer = around[1].key[0]
    return line.label if path in TITLES else layer_path.relative(path, "" if path == outer else outer)
