"""The layer tree: its lines, and repeated layers as one line.

`annot.attribution.layer_tables` says which line is inside which. A line has a row per phase of a layer, or of all
layers of a fold: ``layers.0`` to ``layers.199`` of one class are the fold ``layers.* Block ×200``. Folds are made here
only: `folded_lines` of a tree, `folded_rows` of tables with a line per row, `every_fold` for the page, and the column
``group`` of `with_groups` for files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

import polars as pl

from annot.attribution.attribute import Attribution
from annot.attribution.column_ops import NONE
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.ingest import EPOCH
from annot.attribution.layer_tables import LAYER_PHASES, by_line
from annot.attribution.nesting import KEY, Key
from annot.labels import layer_path
from annot.labels.foreign import BATCH, DATA
from annot.labels.tag import COMPILED, FUSED, MODEL
from annot.report.columns import COLUMNS, Column, combined
from annot.util.weak_keys import once_for_each

TITLES: Final = {EPOCH: "Epoch", BATCH: "Batch", DATA: "Data wait", UNATTRIBUTED: "(unattributed)"}
"""Rows without a layer, and how tables call them."""


def line_class(module: str) -> str:
    """Return the class of a line. Compiled graphs are numbered over the model, so that their numbers do not count."""
    return COMPILED if module.startswith(COMPILED) else module


def lines_of(rows: pl.DataFrame) -> pl.Series:
    """Return the number of the line of each row: of the tree, or of a file, where the phases of a layer are a line."""
    if "shown" in rows.columns:
        return rows["shown"]
    is_layer = (pl.col("layer") != "") | ((pl.col("module") != "") & pl.col("phase").is_in(LAYER_PHASES))
    phase = pl.when(~is_layer).then("phase")
    return rows.select(pl.struct("layer", "module", phase).rank("dense")).to_series()


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
        members: lines of the layers that a fold stands for (see `annot.report.tree`); empty: one layer.
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


def _lines(rows: pl.DataFrame) -> dict[int, Line]:
    lines: dict[int, Line] = {}
    for row in rows.iter_rows(named=True):
        if (line := lines.get(row["line"])) is None:
            line = Line(*title(row), number=row["line"], is_layer=row["is_layer"], place=len(lines))
            lines[line.number] = line
        line.phases[row["phase"]] = row
    return lines


def other_lines(rows: pl.DataFrame) -> list[Line]:
    """Return the lines of the unattributed time, by reason."""
    return list(_lines(rows.filter(pl.col("layer") == UNATTRIBUTED)).values())


def folded_lines(rows: pl.DataFrame, every: pl.DataFrame | None = None) -> list[Line]:
    """Return the lines of rows with the column ``group`` in depth-first order, with folds.

    `every` is that of `layer_lines`.
    """
    lines = layer_lines(rows, every)
    groups = ((line.number, next(iter(line.phases.values())).get("group")) for line in lines)
    return _folded(lines, {number: group for number, group in groups if group is not None})


def cut(lines: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Return rows of `annot.attribution.layer_tables.by_line` in which each line below a level is part of a line there.

    Args:
        lines: the rows.
        depth: number of levels to keep below the outermost layers; 0 keeps these, and the steps and ranges around them.
    """
    owner = lines["line"].replace_strict(_owners(lines, depth), return_dtype=pl.Int64)
    kept = lines.filter(lines["line"] == owner).select("line", "phase")
    merged = _of_owners(lines, pl.DataFrame([owner]), ("line", "phase"))
    return kept.join(merged, on=["line", "phase"], how="left", maintain_order="left").select(lines.columns)


def cut_layers(rows: pl.DataFrame, depth: int, lines: pl.DataFrame) -> pl.DataFrame:
    """Return rows in which each layer below a depth is part of the line around it at that depth.

    A layer with lines inside several others stays.

    Args:
        rows: rows by layer, module and phase, such as those of `annot.attribution.by_layer`.
        depth: number of levels to keep below the outermost layers; 0 keeps these only.
        lines: result of `annot.attribution.layer_tables.by_line` for the profile of the rows.
    """
    owners = _named_owners(lines, depth)
    names = [owners.get(key, key) for key in rows.select(KEY).iter_rows()]
    keys = [name for name in (*KEY, "batch") if name in rows.columns]
    return _of_owners(rows, pl.DataFrame(names, schema=dict.fromkeys(KEY, pl.String), orient="row"), keys)


def _of_owners(rows: pl.DataFrame, owners: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return rows with those of a line and of the lines inside as one. Values combine as their columns say.

    Calls, times per call and total times stay those of the line, which contains the others.

    Args:
        rows: the rows.
        owners: names of the line of which each row becomes part.
        keys: columns that identify a row.
    """
    is_owner = pl.all_horizontal(*(rows[name] == owners[name] for name in owners.columns if name != "phase"))
    table = rows.with_columns(*owners.get_columns(), is_owner=is_owner)
    merged = combined(
        table, keys, [COLUMNS[name] for name in rows.columns if name in COLUMNS and name not in _OF_CALLS]
    )
    own = [pl.col(name).filter("is_owner").first() for name in rows.columns if name not in (*keys, *merged.columns)]
    merged = merged.join(
        table.group_by(keys, maintain_order=True).agg(own), on=list(keys), how="left", nulls_equal=True
    )
    return merged.select(rows.columns)


def _owners(lines: pl.DataFrame, depth: int) -> dict[int, int]:
    """Map each line to the innermost line around it at a level up to `depth`, or to itself."""
    owners: dict[int, int] = {}
    for line, parent, level in lines.select("line", "parent", "level").unique().sort("line").iter_rows():
        owners[line] = line if level <= depth else owners[parent]
    return owners


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


_LEAST: Final = 5
"""Number of equal siblings that fold. Image models (ResNet, Swin, ConvNeXt) have four stages, which differ in
resolution, so each keeps its row; stacks of blocks are longer."""
_CONTAINERS: Final = ("Sequential", "ModuleList", "ModuleDict")
"""Classes that do not tell layers apart: `layer1` to `layer5` of a class of their own are blocks, of these they may be
stages."""
_INDEX: Final = re.compile(r"(.*?)(\d+)")
_NUMBER: Final = re.compile(r"(?<![^./+])\d+(?![^./+])")
_Key = tuple[str, str]
_Inner = Mapping[int | None, list[Line]]


@dataclass(frozen=True, slots=True)
class Spread:
    """How the times of the layers in a fold differ (ns).

    Args:
        median: the median.
        slowest: the longest.
        index: index of the slowest.
        iqr: interquartile range.
    """

    median: float
    slowest: float
    index: str
    iqr: float


def with_groups(rows: pl.DataFrame, tree: pl.DataFrame, expand: Sequence[str] = ()) -> pl.DataFrame:
    """Return rows with the column ``group``: the fold of the layer, such as ``layers.*.attn``; null outside folds.

    Args:
        rows: rows by layer, module and phase, or those of `tree`, which also get ``shown``: the number of the line in
            the table with folds.
        tree: the result of `annot.attribution.layer_tables.by_line`.
        expand: paths of layers that stay out of folds, with all layers inside; ``""``: all layers.

    Raises:
        ValueError: the profile has no layer at a path of `expand`.
    """
    table = _line_groups(tree, expand) if expand else _folded_groups(tree)
    kept = rows.drop("group", "shown", strict=False)
    if "line" in rows.columns:
        joined = kept.join(table.select("line", "group", "shown"), on="line", how="left", maintain_order="left")
        joined = joined.with_columns(pl.col("shown").fill_null(pl.col("line") + table.height))  # unattributed time
    else:
        layers = table.drop("line", "shown").filter(pl.col("group") != pl.col("layer"))
        layers = layers.unique(["layer", "module"], keep="first")
        joined = kept.join(layers, on=["layer", "module"], how="left", maintain_order="left")
    added = joined.columns[len(kept.columns) :]
    return joined.select(*kept.columns[:-1], *added, kept.columns[-1])  # shapes stay the last column


def _line_groups(tree: pl.DataFrame, expand: Sequence[str] = ()) -> pl.DataFrame:
    """Return a row per line but those of unattributed time: line, layer, module, group and shown; see `with_groups`."""
    lines = layer_lines(tree)
    groups = _groups(lines, lambda path, fold: any(_unfolds(text, path, fold) for text in expand))
    if any(expand):
        _check(expand, lines, groups)
    shown = {
        member.number: number for number, line in enumerate(_folded(lines, groups)) for member in line.members or [line]
    }
    records = [(line.number, *line.key, groups.get(line.number), shown[line.number]) for line in lines]
    schema = {"line": pl.Int64, "layer": pl.String, "module": pl.String, "group": pl.String, "shown": pl.Int64}
    return pl.DataFrame(records, schema=schema, orient="row")


_folded_groups: Final = once_for_each(_line_groups)


def folds_of(attribution: Attribution, expand: Sequence[str] = ()) -> dict[_Key, str]:
    """Return the path of the fold of each repeated layer of a profile, by layer and class; see `with_groups`."""
    lines = by_line(attribution)
    rows = with_groups(lines, lines, expand).drop_nulls("group")
    return {(layer, module): group for layer, module, group in rows.select("layer", "module", "group").iter_rows()}


def folded_rows(rows: pl.DataFrame, columns: Iterable[Column]) -> pl.DataFrame:
    """Return rows with those of each fold and phase as one row, whose values combine as their columns say.

    Args:
        rows: the result of `with_groups`.
        columns: the columns to combine; others are null for folds.

    Returns:
        The rows in order of first appearance, with the column ``folded``: the number of layers of a fold, else null.
    """
    is_fold, module = pl.col("group").is_not_null(), pl.col("module").str.replace(f"^{COMPILED}.*", COMPILED)
    keys = [name for name in ("layer", "module", "phase", "batch", "batch_steps") if name in rows.columns]
    table = rows.with_columns(
        layer=pl.coalesce("group", "layer"),
        module=pl.when(is_fold).then(module).otherwise("module"),
        folded=pl.when(is_fold).then("layer"),
    ).with_row_index(_PLACE)
    members = table.filter(is_fold)
    folds = combined(members, keys, columns, beside=True)
    counts = members.group_by(keys).agg(pl.col(_PLACE).min(), pl.col("folded").n_unique().cast(pl.Int64))
    folds = folds.join(counts, on=keys, nulls_equal=True)
    others = table.filter(~is_fold).with_columns(folded=pl.lit(None, pl.Int64))
    return pl.concat([others, folds], how="diagonal_relaxed").sort(_PLACE).drop(_PLACE)


_PLACE: Final = "(place)"


def spread_of(fold: Line, time: str) -> Spread | None:
    """Return how the times of the layers in a fold differ; None: fewer than two are known."""
    times = [(total, line) for line in fold.members if (total := line.get(time)) is not None]
    if len(times) < 2:
        return None
    slowest, line = max(times, key=lambda pair: pair[0])
    values = [total for total, _ in times]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return Spread(median(values), slowest, index_of(line, fold), third - first)


def index_of(line: Line, fold: Line) -> str:
    """Return what the stars of a fold stand for in one of its layers: ``17``, or ``17.5`` for two."""
    layers = zip(*(layer.key[0].split(FUSED) for layer in (fold, line)), strict=False)
    first = next((pair for pair in layers if "*" in pair[0]), ("", ""))
    names = zip(*(re.split("[./]", path) for path in first), strict=False)
    matches = [_INDEX.fullmatch(name) for pattern, name in names if pattern.endswith("*")]
    return ".".join(match[2] if match else "0" for match in matches)


def every_fold(lines: Sequence[Line]) -> Iterator[tuple[Line, Line | None]]:
    """Yield each fold and the line or fold around it (None: outermost), also the folds inside each single layer.

    A reader who opens `layers.*` sees `layers.7`, and in it the fold `layers.7.experts.*`, which is no line of the
    folded table.
    """
    seen: set[str] = set()
    while True:
        opened = set(seen)
        above: list[Line] = []
        for line in _unfolded_lines(opened, lines):
            around = above[line.depth - 1] if line.depth else None
            above[line.depth :] = [line]
            if line.members:
                yield line, around
                if around is None or not around.members:
                    seen.add(line.key[0])
        if len(seen) == len(opened):
            return


def _unfolded_lines(opened: Set[str], lines: Sequence[Line]) -> list[Line]:
    """Return the lines with folds, except the folds in `opened`, whose layers are separate lines."""
    return _folded(lines, _groups(lines, lambda _, fold: fold in opened))


def _groups(lines: Sequence[Line], unfolds: Callable[[str, str], bool]) -> dict[int, str]:
    """Map the number of each line in a fold to the path of the fold. `unfolds` says which paths stay out of a fold."""
    inner = _inner(lines)
    fold_paths: dict[int, str] = {}
    pending = [("", [_Node(line.key[0], line.module, [line]) for line in inner[None]])]
    while pending:
        above, siblings = pending.pop()
        for node in _fold_siblings(siblings, above, inner, unfolds):
            repeats = len(node.lines) > 1  # a range of the program has the same name in each layer
            fold_paths.update((line.number, node.path) for line in node.lines if repeats or line.key[0] != node.path)
            pending.append((node.path, _merged(node, inner)))
    return fold_paths


@dataclass(slots=True)
class _Node:
    """A line of the folded tree: its path, and the lines that it stands for."""

    path: str
    module: str
    lines: list[Line]


def _inner(lines: Iterable[Line]) -> _Inner:
    """Map each line, by its identity, to the lines directly inside; None: the outermost."""
    inner: dict[int | None, list[Line]] = {None: []}
    above: list[Line] = []
    for line in lines:
        inner[id(above[line.depth - 1]) if line.depth else None].append(line)
        above[line.depth :] = [line]
        inner[id(line)] = []
    return inner


def _merged(node: _Node, inner: _Inner) -> list[_Node]:
    """The nodes inside a node: the same layer inside each of its lines is one node."""
    nodes: dict[_Key, _Node] = {}
    names = _names(node, inner)
    for line in node.lines:
        for child in inner[id(line)]:
            path, module = _moved(child.key[0], line.key[0], node.path), line_class(child.module)
            if name := names.get(id(child)):
                path = path.removesuffix(layer_path.last(path)) + name
            nodes.setdefault((path, module), _Node(path, module, [])).lines.append(child)
    return list(nodes.values())


def _names(node: _Node, inner: _Inner) -> dict[int, str]:
    """Return the names of layers in the first line, for layers that torch.profiler or Keras number over the model.

    `Linear_0` and `Linear_1` of the first block are `Linear_6` and `Linear_7` of the second: the order counts.
    """
    numbered: dict[_Key, list[list[tuple[int, str, Line]]]] = {}
    for place, line in enumerate(node.lines):
        for child in inner[id(line)]:
            stem, number = _numbered(layer_path.last(child.key[0]))
            occurrences = numbered.setdefault((stem, child.module), [[] for _ in node.lines])
            occurrences[place].append((number, layer_path.last(child.key[0]), child))
    renamed: dict[int, str] = {}
    for occurrences in numbered.values():
        names = [name for siblings in occurrences for _, name, _ in siblings]
        if len(set(names)) < len(names) or all(number < 0 for siblings in occurrences for number, _, _ in siblings):
            continue
        names_by_place: list[str] = []
        for siblings in occurrences:
            for place, (_, name, child) in enumerate(sorted(siblings, key=lambda each: each[0])):
                names_by_place += [name] if place == len(names_by_place) else []
                renamed[id(child)] = names_by_place[place]
    return renamed


def _numbered(name: str) -> tuple[str, int]:
    """Split the name of a layer into its stem and its number; -1: without one."""
    stem, _, number = name.rpartition("_")
    return (stem, int(number)) if stem and number.isdecimal() else (name, -1)


def _moved(path: str, old: str, new: str) -> str:
    """Replace the beginning of a path, of each layer of a fused kernel."""
    if FUSED in path:
        return FUSED.join(_moved(layer, old, new) for layer in path.split(FUSED))
    return new + path[len(old) :] if old and layer_path.is_within(path, old) else path


def _fold_siblings(
    siblings: Sequence[_Node], above: str, inner: _Inner, unfolds: Callable[[str, str], bool]
) -> list[_Node]:
    """Return the nodes inside `above` with those that differ only in an index as one; the pattern of most wins."""
    patterns: dict[_Key, list[_Node]] = {}
    for node in siblings:
        for pattern in _patterns(node, above):
            patterns.setdefault((pattern, node.module), []).append(node)
    taken: set[int] = set()
    folds: list[_Node] = []
    for (pattern, module), nodes in sorted(patterns.items(), key=lambda candidate: -len(candidate[1])):
        equal = _equal([node for node in nodes if id(node) not in taken], pattern, inner)
        if len(equal) < _LEAST:
            continue
        taken.update(map(id, equal))
        kept = [node for node in equal if not unfolds(node.path, pattern)]
        if len(kept) == 1:
            kept = []
        if kept:
            folds.append(_Node(pattern, module, [line for node in kept for line in node.lines]))
        folds += [node for node in equal if not any(node is other for other in kept)]
    return [node for node in siblings if id(node) not in taken] + folds


def _patterns(node: _Node, above: str) -> Iterator[str]:
    """Yield the path with a star for each index below the parent layer, the innermost first."""
    line = node.lines[0]
    if node.module == COMPILED or layer_path.INSIDE in node.path or not line.is_layer:
        return
    if FUSED in node.path:
        yield _NUMBER.sub("*", node.path)
        return
    begin = len(above) + 1 if above and layer_path.is_within(node.path, above) else 0
    tokens = re.split(r"([./])", node.path[begin:])
    for place in range(len(tokens) - 1, -1, -2):
        match = _INDEX.fullmatch(tokens[place])
        stem = match[1] if match else f"{tokens[place]}_"  # Keras numbers the second layer of a class first
        if not stem or stem.endswith("_") or node.module not in _CONTAINERS:
            yield node.path[:begin] + "".join([*tokens[:place], f"{stem}*", *tokens[place + 1 :]])


def _equal(nodes: list[_Node], pattern: str, inner: _Inner) -> list[_Node]:
    """Return the nodes that repeat each other.

    Blocks do by their class, also if one of them has a layer more. Layers without inner layers whose index is their
    name, such as the convolutions of VGG's `features`, repeat each other if most of them have the same input, or if
    neither a class nor an input of any is known, as between the hooks of FSDP2.
    """
    if not pattern.endswith("*") or FUSED in pattern or any(inner[id(line)] for node in nodes for line in node.lines):
        return nodes
    if not any(node.module or line.input for node in nodes for line in node.lines):
        return nodes
    inputs = Counter(node.lines[0].input for node in nodes)
    most, number = inputs.most_common(1)[0]
    return [node for node in nodes if node.lines[0].input == most] if most and 2 * number > len(nodes) else []


def _unfolds(text: str, path: str, fold: str) -> bool:
    """Whether a path of the user names a layer, one around it or inside it, or its fold."""
    return text in ("", fold) or layer_path.is_within(path, text) or layer_path.is_within(text, path)


def _check(expand: Sequence[str], lines: Sequence[Line], groups: Mapping[int, str]) -> None:
    """Raise an error if a path of the user names no layer."""
    folds = list(dict.fromkeys(_groups(lines, lambda *_: False).values()))
    paths = [*(line.key[0] for line in lines), *folds, *groups.values()]
    for text in expand:
        if text and not any(layer_path.is_within(path, text) for path in paths):
            repeated = ", ".join(folds[:5]) or "none"
            raise ValueError(f"expand must be the path of a layer, got {text!r}; repeated layers: {repeated}")


def _folded(lines: Sequence[Line], groups: Mapping[int, str]) -> list[Line]:
    """Return lines in depth-first order with those of a group as one."""
    inner = _inner(lines)
    shown: list[Line] = []
    pending: list[tuple[list[Line], Line | None]] = [(block, None) for block in reversed(_grouped(inner[None], groups))]
    while pending:
        members, above = pending.pop()
        group = groups.get(members[0].number)
        line = members[0] if group is None else _fold(group, members, above)
        shown.append(line)
        inside = [child for member in members for child in inner[id(member)]]
        pending += [(block, line) for block in reversed(_grouped(inside, groups))]
    return shown


def _grouped(lines: Iterable[Line], groups: Mapping[int, str]) -> list[list[Line]]:
    """Return the lines of each fold, and each other line alone, in the order of the rows."""
    grouped: dict[Any, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.place):
        group = groups.get(line.number)
        grouped.setdefault(line.number if group is None else (group, line_class(line.module)), []).append(line)
    return list(grouped.values())


def _fold(path: str, members: list[Line], above: Line | None) -> Line:
    """Return the line of a fold. It says how many layers it has, unless they are as many as those around it."""
    first = members[0]
    label = first.label if first.label == "(graph)" else layer_path.relative(path, above.key[0] if above else "")
    count = "" if above is not None and len(above.members) == len(members) else f"×{len(members):,}"
    phases = dict.fromkeys(phase for line in members for phase in line.phases)
    rows: dict[str, Mapping[str, Any]] = {
        phase: _sum([line.phases[phase] for line in members if phase in line.phases], path) for phase in phases
    }
    module = first.module if len({line.module for line in members}) == 1 else line_class(first.module)
    return Line(
        label, module, first.depth, rows, is_layer=first.is_layer, members=members, count=count, place=first.place
    )


def _sum(rows: Sequence[Mapping[str, Any]], path: str) -> dict[str, Any]:
    """The row of a fold. Its busy time is unknown, because its layers can overlap."""
    sums: dict[str, Any] = dict.fromkeys(rows[0])
    for name in sums:
        if name in COLUMNS and COLUMNS[name].combined in ("sum", "inclusive") and name != "gpu_busy_ns":
            values = [row[name] for row in rows if row[name] is not None]
            sums[name] = sum(values) if values else None
    shapes = list(dict.fromkeys(shape for row in rows for shape in row["shapes"]))
    return sums | {"layer": path, "group": path, "shapes": shapes, **{name: rows[0][name] for name in _SAME}}


_SAME: Final = ("module", "phase")
