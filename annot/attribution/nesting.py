"""Nesting of the ranges of a thread, and the layers around each range.

This is the definition of parents and owners for all of annot. The ranges of a thread are ordered by (start, longest
first, id).

    parent of a range    the last range before it in that order that ends no earlier
    owner of a launch    the last range in that order that contains the launch; start and end are inclusive

Pushed ranges of one domain nest by construction. Started ranges, and pushed ranges of different domains, may cross: one
starts inside the other and ends after it. One of the two is then a *crossing range*: it stays outside the tree, owns
nothing, and only its duration and the GPU time launched inside it count. Pushed ranges take precedence over started
ranges, then annot's ranges over those of other domains, then earlier ranges over later ones. A range that crosses only
crossing ranges stays in the tree. A range that ended on another thread is a crossing range, unless it belongs to its
process (see `annot.attribution.ingest`).

A plain range is one in an unknown format that a program opens itself. Its layer is the path of the plain ranges around
it on its thread: ``train › step # › forward``. Ranges of other formats in between are left out of the path. Numbered
siblings have one layer (see `annot.labels.foreign.folded`). A range without a phase of its own has the phase of the
plain range around it. A range named step beside a forward or backward pass is the step of the optimizer.

The GPU time launched inside crossing ranges is summed up beside the tree. The set of open crossing ranges is constant
between two consecutive starts or ends. A call therefore belongs to a *cell*: its thread, the interval in which it
starts and the interval in which it ends. The number of cells depends on the crossing ranges only, not on the number of
calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import NONE, Numbers, high_of, low_of, pair
from annot.labels.foreign import folded
from annot.labels.layer_path import INSIDE

KEY: Final = ("layer", "module", "phase")
"""Key columns of `annot.attribution.by_layer`."""

Key: TypeAlias = tuple[str, str, str]
"""Layer, module class and phase: the key of a row of the layer table."""


class Keys:
    """Dense ids of layers."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self.names: list[Key] = []
        """Layer, module and phase of each id."""

    def number(self, key: Key) -> int:
        """Return the id of a layer. A new layer gets the next id."""
        if key not in self._numbers:
            self._numbers[key] = len(self.names)
            self.names.append(key)
        return self._numbers[key]


class Nodes:
    """Nodes of the trie of layer paths. A node has a larger number than its parent."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.parents: list[int] = []
        """Parent of each node, -1 at the top."""
        self.keys: list[int] = []
        """Key that each node adds to the path of its parent."""

    @classmethod
    def of(cls, parents: pl.Series, keys: pl.Series) -> Nodes:
        """Return the nodes from the parents and keys of `annot.attribution.column_ops.paths`."""
        nodes = cls()
        nodes.parents, nodes.keys = parents.to_list(), keys.to_list()
        nodes._numbers = {pair: node for node, pair in enumerate(zip(nodes.parents, nodes.keys, strict=True))}
        return nodes

    def __len__(self) -> int:
        return len(self.parents)

    def extend(self, node: int, keys: Iterable[int]) -> int:
        """Return the node of the path of `node` (-1 for the empty path) followed by `keys`."""
        for key in keys:
            if (node, key) not in self._numbers:
                self._numbers[node, key] = len(self.parents)
                self.parents.append(node)
                self.keys.append(key)
            node = self._numbers[node, key]
        return node

    def chain(self, node: int) -> list[int]:
        """Return the keys of the path of a node, outermost first."""
        return [self.keys[above] for above in reversed(self.up(node, NONE))]

    def up(self, node: int, outer: int) -> list[int]:
        """Return a node and the nodes around it, up to `outer`, which is left out; -1: all nodes around it."""
        chain = []
        while node not in (outer, NONE):
            chain.append(node)
            node = self.parents[node]
        return chain

    def columns(self) -> tuple[pl.Series, pl.Series]:
        """Return parents and keys as Int32."""
        return pl.Series("parent", self.parents, pl.Int32), pl.Series("key", self.keys, pl.Int32)

    def outermost(self, groups: Sequence[int]) -> list[bool]:
        """Return which nodes are outside other nodes of their group, so that recursive layers count once.

        Group -1 means ungrouped, which is never outermost.
        """
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent].append(node)
        result = [False] * len(self)
        within = [0] * (max(groups, default=NONE) + 2)
        stack = [(node, True) for node in children[NONE]]
        while stack:
            node, enters = stack.pop()
            group = groups[node]
            if not enters:
                within[group] -= 1
                continue
            result[node] = group != NONE and not within[group]
            within[group] += 1
            stack.append((node, False))
            stack += [(child, True) for child in children[node]]
        return result


def nest(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tree of the ranges of threads, and the ranges that cross others or end on another thread.

    The column parent of the tree is a row of this table, -1 at the top (Int32). A parent comes before its children.
    The ranges have thread (Int32), start, end (ns, Int64), foreign (ended on another thread), started (not pushed) and
    ours (in annot's domain). Those of a thread with the same start and end are ordered by id. No end is null or before
    the start. Further columns are kept.
    """
    given = [ranges]
    del ranges  # may have tens of millions of rows; the caller keeps no reference either
    rows = in_order(given.pop())
    weight = rows.select((2 * (~pl.col("started")).cast(pl.Int32) + pl.col("ours").cast(pl.Int32)).alias("weight"))
    columns = (rows["thread"], rows["start"], rows["end"], weight.to_series(), rows["foreign"])
    is_crossing = column_ops.crossing(*columns)
    del columns, weight
    crossing = rows.filter(is_crossing).drop("started", "ours")
    tree = rows.drop("started", "ours", "foreign")
    del rows
    if crossing.height:
        nested = ~is_crossing
        tree = pl.DataFrame([tree.drop_in_place(name).filter(nested) for name in tree.columns])
    parent, _ = column_ops.parents(tree["thread"], tree["end"])
    return tree.with_columns(parent.alias("parent")), crossing


def in_order(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges by thread, start, longest first and row, in one piece of memory per column.

    Each column is dropped once it is copied.
    """
    order = column_ops.order(ranges["thread"], ranges["start"], ranges["end"])
    if order.is_sorted() and max(ranges.n_chunks("all"), default=1) == 1:
        return ranges
    rows = ranges.clone()
    del ranges
    return pl.DataFrame([rows.drop_in_place(name).gather(order) for name in rows.columns])


_DEEPEST: Final = 32
"""Plain ranges around each other that have a layer. Deeper ranges, as in profiles with leaked ranges, have none."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Path and phase of the plain ranges around a node, and their number."""

    path: str = ""
    phase: str = "other"
    depth: int = 0


def contained_keys(parent: pl.Series, key: pl.Series, labels: pl.DataFrame, keys: Keys) -> pl.Series:
    """Return the key of each range, with plain ranges named by their place.

    Args:
        parent: parent of each range in the tree, -1 at the top (Int32).
        key: key that each range adds to the path of its parent, -1: none (Int32).
        labels: label table of `annot.attribution.range_trees.Forest`.
        keys: all keys; those of the places are added.

    Returns:
        The key of each range (Int32). Plain ranges below the deepest level have none.
    """
    plain = frozenset(labels.filter("plain")["key"])
    if not plain:
        return key
    path, parents, node_key = column_ops.paths(parent, key)
    of_node = pl.Series("key", _keys_of_nodes(parents.to_list(), node_key.to_list(), plain, keys), pl.Int32)
    return pl.select(pl.when(key == column_ops.NONE).then(key).otherwise(of_node.gather(path))).to_series()


def _keys_of_nodes(parents: Sequence[int], node_keys: Sequence[int], plain: frozenset[int], keys: Keys) -> list[int]:
    """Return the key of each node. Nodes of one level and one place are siblings."""
    new_keys = list(node_keys)
    places: dict[int, _Place] = {column_ops.NONE: _Place()}
    for level in _levels(parents):
        siblings: dict[_Place, list[int]] = {}
        for node in level:
            around = places[parents[node]]
            if node_keys[node] in plain:
                siblings.setdefault(around, []).append(node)
            else:
                places[node] = around
        for around, nodes in siblings.items():
            named = [keys.names[node_keys[node]] for node in nodes]
            for node, place in zip(nodes, _placed(around, named), strict=True):
                places[node] = place
                deep = place.depth > _DEEPEST
                new_keys[node] = column_ops.NONE if deep else keys.number((place.path, "", place.phase))
    return new_keys


def _levels(parents: Sequence[int]) -> Iterable[list[int]]:
    """Return the nodes by their distance from the top. A parent comes before its children."""
    depths: list[int] = []
    levels: list[list[int]] = []
    for node, parent in enumerate(parents):
        depths.append(0 if parent == column_ops.NONE else depths[parent] + 1)
        if depths[node] == len(levels):
            levels.append([])
        levels[depths[node]].append(node)
    return levels


def _placed(around: _Place, siblings: Sequence[tuple[str, str, str]]) -> list[_Place]:
    """Return the places of plain siblings (layer, module, phase) inside a place."""
    if around.depth >= _DEEPEST:
        return [_Place(around.path, around.phase, _DEEPEST + 1)] * len(siblings)
    names = folded({name for name, _, _ in siblings})
    beside = any(phase in ("forward", "backward") for _, _, phase in siblings)
    return [
        _Place(
            (around.path + INSIDE if around.depth else "") + names.get(name, name),
            "optimizer" if beside and name.lower() == "step" else around.phase if phase == "other" else phase,
            around.depth + 1,
        )
        for name, _, phase in siblings
    ]


class CrossingRanges:
    """GPU time launched inside each crossing range, in addition to the range that owns it.

    `ranges` has thread, start, end and foreign of `annot.attribution.range_trees.Forest.crossing`. Ranges that ended on
    another thread count no launches.
    """

    def __init__(self, ranges: pl.DataFrame) -> None:
        own = ranges.with_row_index("row").filter(~pl.col("foreign")).sort("thread", "start")
        self._height = ranges.height
        self._threads: dict[int, _Bounds] = {}
        for (thread,), thread_ranges in own.partition_by("thread", as_dict=True, maintain_order=True).items():
            before = sum(2 * len(bounds.starts) + 1 for bounds in self._threads.values())
            self._threads[thread] = _Bounds(thread_ranges, before)
        self._cells = Numbers()
        self._sums: column_ops.Sums | None = None

    def cells(self, thread: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series:
        """Return the cell (Int32) of each call, -1 if it starts outside the crossing ranges."""
        cells = pl.Series("cell", [column_ops.NONE], pl.Int32).new_from_index(0, thread.len())
        for code, bounds in self._threads.items():
            mine = (thread == code).arg_true()
            interval = bounds.interval(start.gather(mine))
            inside = (interval != column_ops.NONE).arg_true()
            mine = mine.gather(inside)
            key = pair(interval.gather(inside), bounds.ended(end.gather(mine)))
            cells = cells.scatter(mine, self._cells.of(key))
        return cells

    def add(self, cell: pl.Series, gpu_ns: pl.Series) -> None:
        """Add GPU time (ns) to cells. Cell -1 and null are ignored."""
        if self._cells.known.len():
            self._sums = self._sums or column_ops.Sums(self._cells.known.len())
            self._sums.add(cell.fill_null(column_ops.NONE), gpu_ns)

    def clear(self) -> None:
        """Reset the GPU time. The cells of the calls remain."""
        self._sums = None

    def gpu_ns(self) -> pl.Series:
        """Return the GPU time launched in each range (ns, Int64)."""
        totals = [0] * self._height
        if self._sums is not None:
            cells = pl.DataFrame({"cell": self._cells.known, "gpu_ns": self._sums.result()}).sort("cell")
            for bounds in self._threads.values():
                for row, total in zip(bounds.rows, bounds.totals(cells), strict=True):
                    totals[row] = total
        return pl.Series("gpu_ns", totals, pl.Int64)


class _Bounds:
    """Starts and ends of the crossing ranges (row, start, end, in order of start) of a thread.

    `before` is an offset of the numbers of this thread, so that threads do not share numbers.
    """

    def __init__(self, ranges: pl.DataFrame, before: int) -> None:
        self.rows, self.starts = ranges["row"], ranges["start"]
        self._ranges, self._ends, self._before = ranges, ranges["end"].sort(), before

    def interval(self, instants: pl.Series) -> pl.Series:
        """Return the interval of each instant (Int64), -1 outside the ranges. The number increases with time."""
        starts = self.starts.search_sorted(instants, "right").cast(pl.Int64)
        ends = self.ended(instants)
        inside = starts > ends
        return pl.select(pl.when(inside).then(starts + ends + self._before).otherwise(column_ops.NONE)).to_series()

    def ended(self, instants: pl.Series) -> pl.Series:
        """Return the number of ranges that ended before each instant (Int64)."""
        return self._ends.search_sorted(instants, "left").cast(pl.Int64)

    def totals(self, cells: pl.DataFrame) -> pl.Series:
        """Return the GPU time of the cells inside each range. `cells` is in order of cell."""
        started, ended = high_of(cells["cell"]), low_of(cells["cell"])
        first = started.search_sorted(self.interval(self.starts), "left").cast(pl.Int64)
        last = started.search_sorted(self.interval(self._ranges["end"]), "right").cast(pl.Int64)
        until = pl.concat([pl.Series("gpu_ns", [0], pl.Int64), cells["gpu_ns"].cum_sum()])
        totals = until.gather(last) - until.gather(first)
        reached = pl.concat([pl.Series("cell", [-1], pl.Int64), ended.cum_max()]).gather(last)
        table = pl.DataFrame({"first": first, "last": last, "until": self.ended(self._ranges["end"])})
        for row, (begin, stop, most) in enumerate(table.iter_rows()):
            if reached[row] > most:
                sticks_out = ended.slice(begin, stop - begin) > most
                totals[row] = totals[row] - int(cells["gpu_ns"].slice(begin, stop - begin).filter(sticks_out).sum())
        return totals
