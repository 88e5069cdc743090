"""Repeated layers as one line: ``layers.0`` to ``layers.199`` of one class are the fold ``layers.* Block ×200``.

Folds are found here only. The terminal and notebooks show `shown_lines`, and `folded_rows` in tables with a line per
row, the page takes `every_fold`, files have the
column ``group`` of `with_groups`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Final

import polars as pl

from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import by_line
from annot.labels import layer_path
from annot.labels.tag import COMPILED, FUSED
from annot.report.columns import COLUMNS, Column, Formatted, combined
from annot.report.layer_tree import Line, layer_lines, tree_columns
from annot.report.report import Report
from annot.report.tables import TREE, head
from annot.report.tree_rows import line_class
from annot.report.units import unit_for

__all__ = [
    "Spread",
    "every_fold",
    "folded_rows",
    "index_of",
    "shown_columns",
    "shown_lines",
    "spread_of",
    "with_groups",
]

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
    lines = layer_lines(tree)
    groups = _groups(lines, lambda path, fold: any(_unfolds(text, path, fold) for text in expand))
    _check(expand, lines, groups)
    shown = {
        member.number: number for number, line in enumerate(_folded(lines, groups)) for member in line.members or [line]
    }
    records = [(line.number, *line.key, groups.get(line.number), shown[line.number]) for line in lines]
    schema = {"line": pl.Int64, "layer": pl.String, "module": pl.String, "group": pl.String, "shown": pl.Int64}
    table = pl.DataFrame(records, schema=schema, orient="row")
    kept = rows.drop("group", "shown", strict=False)
    if "line" in rows.columns:
        joined = kept.join(table.select("line", "group", "shown"), on="line", how="left", maintain_order="left")
        joined = joined.with_columns(pl.col("shown").fill_null(pl.col("line") + len(lines)))  # unattributed time
    else:
        layers = table.drop("line", "shown").filter(pl.col("group") != pl.col("layer"))
        layers = layers.unique(["layer", "module"], keep="first")
        joined = kept.join(layers, on=["layer", "module"], how="left", maintain_order="left")
    added = joined.columns[len(kept.columns) :]
    return joined.select(*kept.columns[:-1], *added, kept.columns[-1])  # shapes stay the last column


def folds_of(attribution: Attribution) -> dict[_Key, str]:
    """Return the path of the fold of each repeated layer of a profile, by layer and class."""
    lines = by_line(attribution)
    rows = with_groups(lines, lines).drop_nulls("group")
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


def shown_lines(report: Report) -> list[Line]:
    """Return the lines of the layer table in depth-first order, with folds."""
    lines = layer_lines(report.tree_rows, report.every)
    groups = ((line.number, next(iter(line.phases.values())).get("group")) for line in lines)
    return _folded(lines, {number: group for number, group in groups if group is not None})


def shown_columns(report: Report, lines: Sequence[Line]) -> list[Formatted[Line]]:
    """Return the columns of the layer table. With folds, their spread comes before the self time."""
    columns = tree_columns(report, lines)
    spreads = {id(line): spread_of(line, report.time) for line in lines if line.members}
    valid = [spread for spread in spreads.values() if spread]
    if not valid:
        return columns
    unit, whole = unit_for(spread.slowest for spread in valid), unit_for(report.tree_rows[report.time])

    def spread_column(name: str, show: Callable[[Spread], str]) -> Formatted[Line]:
        def cell(line: Line) -> str:
            spread = spreads.get(id(line))
            return show(spread) if spread else ""

        own = "" if name == "index" or unit.name == whole.name else f" {unit.name}"
        return head(TREE[name], cell, title=f"{TREE[name].title}{own}")

    added = [
        spread_column("median", lambda spread: unit.show(spread.median)),
        spread_column("slowest", lambda spread: unit.show(spread.slowest)),
        spread_column("index", lambda spread: spread.index),
        spread_column("iqr", lambda spread: unit.show(spread.iqr)),
    ]
    titles = [column.title for column in columns]
    own, share = (columns[titles.index(TREE[name].title)] for name in ("self", "share"))
    before, after = columns[: titles.index(own.title)], columns[titles.index(share.title) + 1 :]
    return [*before, share, *added, own, *after]


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
    pending = [_Siblings("", [_Node(line.key[0], line.module, [line]) for line in inner[None]])]
    while pending:
        siblings = pending.pop()
        for node in _fold_siblings(siblings, inner, unfolds):
            repeats = len(node.lines) > 1  # a range of the program has the same name in each layer
            fold_paths.update((line.number, node.path) for line in node.lines if repeats or line.key[0] != node.path)
            pending.append(_Siblings(node.path, _merged(node, inner)))
    return fold_paths


@dataclass(slots=True)
class _Node:
    """A line of the folded tree: its path, and the lines that it stands for."""

    path: str
    module: str
    lines: list[Line]


@dataclass(slots=True)
class _Siblings:
    above: str
    nodes: list[_Node]


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


def _fold_siblings(siblings: _Siblings, inner: _Inner, unfolds: Callable[[str, str], bool]) -> list[_Node]:
    """Return siblings with those that differ only in an index as one node; the pattern of most siblings wins."""
    patterns: dict[_Key, list[_Node]] = {}
    for node in siblings.nodes:
        for pattern in _patterns(node, siblings.above):
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
    return [node for node in siblings.nodes if id(node) not in taken] + folds


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
    if all(text == "" for text in expand):
        return
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
