"""The ranges of a run as trees, of threads and of processes, with what they say and the chain of layers they lie in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.intake import Intake
from annot.correlate.nesting import nest
from annot.correlate.nodes import Keys, Nodes
from annot.correlate.sequence import paths_of
from annot.correlate.shared_ranges import are_shared, placed
from annot.correlate.threads import Threads

__all__ = ["Forest", "grow"]

_OPERATIONS: Final = ("operator", "backward")


@dataclass(frozen=True, slots=True)
class Forest:
    """Ranges that nest and ranges that do not.

    Args:
        tree: id, thread (code, Int32), start, end (ns), says (row in `says`, Int32), parent (row in this table or
            -1, Int32), path (node in `nodes` or -1, Int32); those of threads in the order of `sweep.order`, then those
            of processes (see `annot.correlate.shared_ranges`) by start, a parent before its children.
        trunk: how many rows of `tree` are of threads.
        loose: id, thread, start, end, says, foreign (ended on another thread).
        threads: the threads with ranges.
        says: domain, text (without the suffix of emit_nvtx), the columns of
            `annot.correlate.dialects.Said`, key (Int32): its number in `keys`, and folded: whether it is an
            operation that counts to the layer around it.
        keys: layer, module, phase of each key; grows with backward layers.
        nodes: the chains of keys; grows with the chains that work in CUDA graphs has.
        matched: the nodes that stand for backward layers found by sequence number, and what lies in them.
        pairs: rows in `tree`: of the outermost range of each backward operation that of its forward one.
        open_ranges: how many ranges had no end; they count to the end of the capture.
    """

    tree: pl.DataFrame
    trunk: int
    loose: pl.DataFrame
    threads: Threads
    says: pl.DataFrame
    keys: Keys
    nodes: Nodes
    matched: frozenset[int]
    pairs: dict[int, int]
    open_ranges: int

    def of_threads(self) -> sweep.Tree:
        """Return the ranges of threads, ready to be asked which of them is innermost around a call."""
        tree = self.tree.head(self.trunk)
        return sweep.Tree(tree["thread"], tree["start"], tree["end"], tree["parent"])


def grow(intake: Intake, last: int, marks: Iterable[str] = ()) -> Forest:
    """Nest ranges, read their texts and lead backward operations to the layers of their forward ones.

    Args:
        intake: the ranges; it has none afterwards.
        last: the last instant that the host is known to have reached (ns); open ranges end there.
        marks: what marks say of name scopes; see `annot.scope_text`.
    """
    says, keys = _keyed(intake.says(marks))
    threads = intake.threads()
    parts = _told_apart(intake.give(last), says, threads)
    nested = nest(parts.pop())
    tree, trunk = nested.tree, nested.tree.height
    if parts:
        tree = pl.concat([tree, placed(parts.pop(), tree, says, threads)], how="diagonal")
    path, nodes, matched, pairs = paths_of(tree, says, keys, threads)
    columns = ["id", "thread", "start", "end", "says"]
    tree = tree.select(*columns, "parent", path)
    loose = nested.loose.select(*columns, "foreign")
    return Forest(tree, trunk, loose, threads, says, keys, nodes, matched, pairs, intake.open_ranges)


def _told_apart(ranges: pl.DataFrame, says: pl.DataFrame, threads: Threads) -> list[pl.DataFrame]:
    """Return the ranges of processes, if there are any, and those of threads."""
    shared = are_shared(ranges, says, threads)
    return [ranges] if shared is None else [ranges.filter(shared), ranges.filter(~shared)]


def _keyed(says: pl.DataFrame) -> tuple[pl.DataFrame, Keys]:
    """Number the layers; where layers are named, operations are part of the layer around them."""
    keys = Keys()
    numbers = [keys.number(key) for key in says.select("layer", "module", "phase").iter_rows()]
    folded = says["role"].is_in(_OPERATIONS) & bool(says["layered"].any())
    return says.with_columns(pl.Series("key", numbers, pl.Int32), folded.alias("folded")), keys
