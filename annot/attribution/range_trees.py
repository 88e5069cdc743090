"""Trees of the ranges of a run, per thread and per process, with the parsed label and the layer path of each range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.compiled_layers import with_layers_around
from annot.attribution.dense_ids import Threads
from annot.attribution.hooked_layers import hooked_labels, with_layers
from annot.attribution.ingest import IngestedRanges
from annot.attribution.layer_chains import KEY, Keys, Nodes
from annot.attribution.nesting import in_order, nest
from annot.attribution.process_ranges import are_shared, placed
from annot.attribution.sequence_numbers import paths_of

__all__ = ["Forest", "grow"]

_OPERATIONS: Final = ("operator", "backward")


@dataclass(frozen=True, slots=True)
class Forest:
    """The tree of nested ranges, and the crossing ranges outside it.

    Args:
        tree: id, thread (code, Int32), start, end (ns), label (row in `labels`, Int32), parent (row in this table or
            -1, Int32), path (node in `nodes` or -1, Int32). The ranges of threads come first, in the order of
            `annot.attribution.column_ops.order`. The ranges of processes follow by start (see
            `annot.attribution.process_ranges`). A parent comes before its children.
        thread_range_count: number of rows of `tree` that are ranges of threads.
        crossing: id, thread, start, end, label, foreign (ended on another thread).
        threads: the threads with ranges.
        labels: domain, text (without the suffix of emit_nvtx), call (as in `annot.profile.RANGES`), the columns of
            `annot.labels.foreign.Label`, key (Int32, number in `keys`) and folded (whether the label is an operation
            that counts towards the range around it).
        keys: layer, module and phase of each key. Attribution adds backward layers.
        nodes: the layer paths. Attribution adds the paths of GPU activity in CUDA graphs.
        matched: nodes of backward layers that were found by sequence number, and the nodes below them.
        pairs: maps the row in `tree` of the outermost range of each backward operation to the row of its forward
            operation.
        open_ranges: number of ranges without an end. They end with the capture.
    """

    tree: pl.DataFrame
    thread_range_count: int
    crossing: pl.DataFrame
    threads: Threads
    labels: pl.DataFrame
    keys: Keys
    nodes: Nodes
    matched: frozenset[int]
    pairs: dict[int, int]
    open_ranges: int

    def of_threads(self) -> column_ops.Tree:
        """Return a lookup of the innermost range of its thread around a call."""
        tree = self.tree.head(self.thread_range_count)
        return column_ops.Tree(tree["thread"], tree["start"], tree["end"], tree["parent"])

    def every_range(self) -> pl.DataFrame:
        """Return thread, start, end and label of the ranges of the tree and of the crossing ranges."""
        columns = ["thread", "start", "end", "label"]
        return pl.concat([self.tree.select(columns), self.crossing.select(columns)])

    def label_counts(self) -> pl.DataFrame:
        """Return label (row in `labels`, Int32) and count of the labels with ranges."""
        return pl.concat([self.tree["label"], self.crossing["label"]]).value_counts(name="count")

    def layers(self) -> pl.DataFrame:
        """Return layer, module and phase of each key."""
        return pl.DataFrame(self.keys.names, schema=dict.fromkeys(KEY, pl.String), orient="row")

    def layers_of_nodes(self) -> pl.DataFrame:
        """Return layer, module and phase that each node adds to its path."""
        return self.layers()[pl.Series(self.nodes.keys, dtype=pl.Int64)]


def grow(ingested: IngestedRanges, last: int, marks: Iterable[str] = ()) -> Forest:
    """Nest ranges, parse their labels and put backward operations into the layers of their forward operations.

    The ingested ranges are empty afterwards. Open ranges end at `last`, the last known host timestamp (ns). `marks` are
    the texts of the marks of name scopes (see `annot.labels.marks`).
    """
    labels, hooks = hooked_labels(ingested.labels(marks))
    keys = Keys()
    numbers = [keys.number(key) for key in labels.select(KEY).iter_rows()]
    folded = labels["role"].is_in(_OPERATIONS)
    labels = labels.with_columns(pl.Series("key", numbers, pl.Int32), folded.alias("folded"))
    threads = ingested.threads()
    tables = [ingested.pop_ranges(last)]
    if (shared := are_shared(tables[0], labels, threads)) is not None:
        tables = [tables[0].filter(shared), tables[0].filter(~shared)]
    if hooks.height:
        tables.append(in_order(tables.pop()))  # the tree shares its columns
        marked = nest(tables[-1].drop("sequence", "forward_thread", strict=False))[0]
        tables.append(with_layers(tables.pop(), marked, hooks))
        del marked
    tree, crossing = nest(tables.pop())
    thread_range_count = tree.height
    if tables:
        tree = pl.concat([tree, placed(tables.pop(), tree, labels, threads)], how="diagonal")
    path, nodes, matched, pairs = paths_of(tree, labels, keys, threads)
    if (moved := with_layers_around(nodes, keys, labels["text"])) is not None:
        nodes, final = moved
        path, matched = pl.Series("path", final, pl.Int32).gather(path), frozenset(final[node] for node in matched)
    columns = ["id", "thread", "start", "end", "label"]
    tree = tree.select(*columns, "parent", path)
    crossing = crossing.select(*columns, "foreign")
    open_ranges = ingested.open_ranges
    return Forest(tree, thread_range_count, crossing, threads, labels, keys, nodes, matched, pairs, open_ranges)
