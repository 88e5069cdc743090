"""Which range of a process a launch belongs to, when several are open at once.

Between two neighbouring starts and ends all instants are alike, so everything is found once for each such *moment*.
Of the open ranges those with no open one inside them are *innermost*. A launch belongs to the innermost range that
began last on its own thread, else to the one that began last on any. Where there are several, that is a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from annot.correlate import sweep, sweep_shared
from annot.correlate.forest import Forest
from annot.correlate.shared_ranges import LAYER_PHASES
from annot.tag import DOMAIN

__all__ = ["GUESSED", "Innermost", "SharedOwners"]

GUESSED: Final = 2**29
"""Added to the row of a range that is one of several that were innermost in the process when the call began."""


class SharedOwners:
    """Gives launches to the ranges of their process.

    Args:
        forest: all ranges.
    """

    def __init__(self, forest: Forest) -> None:
        self._tree = forest.tree
        self._layers = _in_layers(forest)
        self._groups = [(code, rows, Innermost(ranges)) for code, rows, ranges in _groups(forest)]

    def owners(self, own: pl.Series, process: pl.Series, thread: pl.Series, start: pl.Series) -> pl.Series:
        """Return the row of the range of each call, or what `own` says.

        A call in a layer of its own thread stays there, and so does one in a range that began after the innermost one
        of the process. Where annot's own ranges and those of others are open, annot's count.

        Args:
            own: row of the innermost range of the call's own thread (Int32; -1: none).
            process, thread: their codes (Int32).
            start: when the call began.
        """
        path = self._tree["path"].gather(_row(own))
        open_to = ~self._layers.gather(_row(path.fill_null(sweep.NONE))).fill_null(False)
        for code, rows, innermost in self._groups:
            asked = (open_to & (process == code)).arg_true()
            found, several = innermost.at(thread.gather(asked), start.gather(asked))
            found = rows.gather(_row(found))
            begun = self._tree["start"]
            inside = begun.gather(_row(own.gather(asked))) > begun.gather(found)
            takes = (found.is_not_null() & ~inside.fill_null(False)).arg_true()
            given = asked.gather(takes)
            own = own.scatter(given, (found + several.cast(pl.Int32) * GUESSED).gather(takes))
            open_to = open_to.scatter(given, False)
        return own


def _row(rows: pl.Series) -> pl.Series:
    """Rows to gather, null in the place of none."""
    return pl.select(pl.when(rows != sweep.NONE).then(rows)).to_series()


def _in_layers(forest: Forest) -> pl.Series:
    """Which nodes are a layer or a phase, or lie in one."""
    says = forest.says
    keys = set(says["key"].filter(says["layered"] | says["phase"].is_in(LAYER_PHASES)))
    inside: list[bool] = []
    for parent, key in zip(forest.nodes.parents, forest.nodes.keys, strict=True):
        inside.append(key in keys or (parent != sweep.NONE and inside[parent]))
    return pl.Series("inside", inside, pl.Boolean)


def _groups(forest: Forest) -> Iterator[tuple[int, pl.Series, pl.DataFrame]]:
    """The ranges of each process, annot's before those of others: code, rows in the tree, and the ranges."""
    shared = forest.tree.select("thread", "start", "end", "parent", "says").with_row_index("row").slice(forest.trunk)
    ours = (forest.says["domain"] == DOMAIN).gather(shared["says"]).alias("ours")
    process = forest.threads.table["process_code"].gather(shared["thread"]).alias("process")
    parts = shared.with_columns(process, ours).sort("process", ~pl.col("ours"), maintain_order=True)
    for (code, _), part in parts.partition_by("process", "ours", as_dict=True, maintain_order=True).items():
        rows = part["row"].cast(pl.Int32)
        parent = sweep.codes(part["parent"].cast(pl.Int64), rows.cast(pl.Int64))
        yield code, rows, part.select("thread", "start", "end", parent.alias("parent"))


class Innermost:
    """The innermost ranges of one process at every moment.

    Args:
        ranges: thread (Int32), start, end (Int64) and parent (row in this table, -1: none) in order of start, a
            parent before its children; both ends belong to a range.

    Example:
        >>> ranges = {"thread": [1, 2], "start": [0, 5], "end": [20, 30], "parent": [-1, -1]}
        >>> innermost = Innermost(pl.DataFrame(ranges, schema_overrides={"thread": pl.Int32}))
        >>> [part.to_list() for part in innermost.at(pl.Series([3, 1, 9], dtype=pl.Int32), pl.Series([4, 6, 31]))]
        [[0, 0, -1], [False, True, False]]
    """

    def __init__(self, ranges: pl.DataFrame) -> None:
        self._starts, self._ends = ranges["start"], ranges["end"].sort()
        self._threads = ranges["thread"].unique(maintain_order=True).cast(pl.Int64)
        thread = sweep.codes(ranges["thread"].cast(pl.Int64), self._threads)
        parent = ranges["parent"].cast(pl.Int32)
        self._count, changes = sweep_shared.innermost(ranges["start"], ranges["end"], thread, parent)
        self._changes = changes.sort("moment", maintain_order=True)

    def at(self, thread: pl.Series, instant: pl.Series) -> tuple[pl.Series, pl.Series]:
        """Return the range (row, Int32; -1: none) of calls, and whether several were innermost (Boolean).

        Args:
            thread: code of the thread of each call (Int32).
            instant: when each began.
        """
        moment = self._starts.search_sorted(instant, "right").cast(pl.Int64)
        moment += self._ends.search_sorted(instant, "left").cast(pl.Int64)
        calls = pl.DataFrame({"thread": sweep.codes(thread.cast(pl.Int64), self._threads), "moment": moment})
        calls = calls.with_row_index("call").sort("moment")
        own = self._joined(calls)
        last = self._joined(calls.with_columns(thread=pl.lit(sweep_shared.ANY, pl.Int32)))
        row = pl.select(pl.when(own != sweep.NONE).then(own).otherwise(last)).to_series()
        return row.gather(calls["call"].arg_sort()).alias("range"), (self._count.gather(moment) > 1).alias("several")

    def _joined(self, calls: pl.DataFrame) -> pl.Series:
        found = calls.join_asof(self._changes, on="moment", by="thread", strategy="backward", check_sortedness=False)
        return found["range"].fill_null(sweep.NONE)
