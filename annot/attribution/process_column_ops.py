"""Loops over ranges of processes, with a Python fallback.

This file is the reference implementation of `annot/native/tables/process_ranges.c`. The conventions are those of
`annot.attribution.column_ops`.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import Final

import polars as pl

from annot.attribution.column_ops import NONE, one_chunk
from annot.native import tables

__all__ = ["ANY", "enclosing", "innermost"]

ANY: Final = -1
"""Thread code that stands for any thread."""


def enclosing(start: pl.Series, end: pl.Series, key: pl.Series, above: pl.Series) -> pl.Series:
    """Return the row of the shortest range around each range whose key is above its own (Int32), -1 without one.

    Of equally short ranges, the last one is returned. A range comes after the ranges around it. `key` is a row of
    `above` (Int32), which has the next key above each key, smaller than the key itself, -1 at the top.
    """
    native = tables()
    if native is not None:
        return pl.Series(native.enclosing(*one_chunk(start, end, key, above))).alias("parent")
    starts, ends, higher = start.to_list(), end.to_list(), above.to_list()
    running: defaultdict[int, list[int]] = defaultdict(list)
    parents = []
    for row, of_key in enumerate(key.to_list()):
        best, around = NONE, higher[of_key]
        while around != NONE:
            others = running[around]
            others[:] = [other for other in others if ends[other] >= starts[row]]
            for other in others:
                # Of equally short ranges, the last one is innermost.
                if ends[other] >= ends[row] and (
                    best == NONE or (ends[other] - starts[other], -other) < (ends[best] - starts[best], -best)
                ):
                    best = other
            around = higher[around]
        parents.append(best)
        running[of_key].append(row)
    return pl.Series("parent", parents, pl.Int32)


def innermost(start: pl.Series, end: pl.Series, thread: pl.Series, parent: pl.Series) -> tuple[pl.Series, pl.DataFrame]:
    """Return the innermost ranges at each moment. An open range is innermost if no range inside it is open.

    A moment is the time between two consecutive starts or ends. Moment 0 is before the first start. Start and end of a
    range are inclusive. `start` ascends, thread codes start at 0, and the parent of a row is smaller than the row, -1
    at the top.

    The result is the number of innermost ranges at each moment (Int32), and a table of changes: from moment (Int64) on,
    range (Int32) is the innermost range of thread (Int32, or `ANY`) that started last, -1 without one. Moments ascend.
    """
    by_end = pl.DataFrame({"end": end, "row": pl.int_range(len(end), dtype=pl.Int32, eager=True)})
    by_end = by_end.sort("end", "row", descending=[False, True])
    native = tables()
    if native is not None:
        counts, *changes = map(pl.Series, native.innermost(*one_chunk(start, end, thread, parent, by_end["row"])))
        return counts.alias("count"), pl.DataFrame(dict(zip(("thread", "moment", "range"), changes, strict=True)))
    threads, above = thread.to_list(), parent.to_list()
    instants = [(at, False, row) for row, at in enumerate(start)] + [(at, True, row) for at, row in by_end.iter_rows()]
    innermost_rows, inside, last = set[int](), [0] * len(threads), dict[int, int]()
    numbers, noted = [0], list[tuple[int, int, int]]()
    for _, ends, row in sorted(instants, key=itemgetter(0, 1)):
        around = above[row]
        (innermost_rows.discard if ends else innermost_rows.add)(row)
        if around != NONE:
            inside[around] += -1 if ends else 1
            (innermost_rows.discard if inside[around] else innermost_rows.add)(around)
        for of_thread in (ANY, threads[row], *([threads[around]] if around != NONE else [])):
            best = max((other for other in innermost_rows if of_thread in (ANY, threads[other])), default=NONE)
            if last.get(of_thread, NONE) != best:
                last[of_thread] = best
                noted.append((of_thread, len(numbers), best))
        numbers.append(len(innermost_rows))
    schema = {"thread": pl.Int32, "moment": pl.Int64, "range": pl.Int32}
    return pl.Series("count", numbers, pl.Int32), pl.DataFrame(noted, schema=schema, orient="row")
