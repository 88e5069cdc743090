"""Containment of calls in ranges that may cross, by sorting and binary search in O(n log n).

A range contains a call of its thread that starts no earlier and ends no later. `Axis` places the threads one after the
other on one axis, so that containment no longer depends on the thread. As points (start, end), the calls inside a range
form a quadrant (`in_quadrant`). Calls that start and end in the same order form a run of consecutive rows
(`minima_of_runs`), which is much faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

__all__ = ["Axis", "in_quadrant", "in_ranges", "minima_of_runs", "runs"]

_LIMIT = 2**62


class Axis:
    """One time axis for all threads with calls.

    Args:
        calls: thread, start, end (ns); Int64 without nulls.
    """

    def __init__(self, calls: pl.DataFrame) -> None:
        self._lanes = calls.select(pl.col("thread").unique().sort()).with_row_index("lane")
        instants = pl.concat([calls["start"], calls["end"]])
        low, high = (instants.min(), instants.max()) if calls.height else (0, 0)
        assert isinstance(low, int)
        assert isinstance(high, int)
        self._ranks: pl.Series | None = None
        if (high - low + 3) * max(1, self._lanes.height) > _LIMIT:  # only with corrupt times
            self._ranks = instants.unique().sort()
            low, high = 0, self._ranks.len() - 1
        self._low, self._high = low, high

    def place(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of threads with calls, with their positions on the axis, `first` and `last`.

        All instants before the first call share one position, as do all instants after the last call.

        Args:
            table: thread, start, end (ns); Int64 without nulls. The order and further columns are kept.
        """
        table = table.join(self._lanes, on="thread", how="inner", maintain_order="left")
        start, end = table["start"], table["end"]
        if self._ranks is not None:
            start = self._ranks.search_sorted(start, "left").cast(pl.Int64)
            end = self._ranks.search_sorted(end, "right").cast(pl.Int64) - 1
        zero = table["lane"].cast(pl.Int64) * (self._high - self._low + 3) - (self._low - 1)
        first, last = (times.clip(self._low - 1, self._high + 1) + zero for times in (start, end))
        return table.drop("lane").with_columns(first.alias("first"), last.alias("last"))


def in_ranges(calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Return which calls lie inside any range (Boolean).

    Args:
        calls: first, last.
        ranges: first, last; `first` ascends.

    Example:
        >>> calls = pl.DataFrame({"first": [1, 3], "last": [2, 9]})
        >>> in_ranges(calls, pl.DataFrame({"first": [0, 2], "last": [4, 5]})).to_list()
        [True, False]
    """
    before = ranges["first"].search_sorted(calls["first"], "right").cast(pl.Int64) - 1
    latest = ranges["last"].cum_max().gather(pl.select(pl.when(before >= 0).then(before)).to_series())
    return (latest >= calls["last"]).fill_null(False)


def runs(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the run of calls inside each range: `begin` (row) and `count`.

    Args:
        ranges: first, last.
        calls: first, last; both columns ascend.

    Example:
        >>> calls = pl.DataFrame({"first": [1, 3, 5], "last": [2, 4, 6]})
        >>> runs(pl.DataFrame({"first": [0, 3], "last": [4, 5]}), calls).rows()
        [(0, 2), (1, 1)]
    """
    begin = calls["first"].search_sorted(ranges["first"], "left").cast(pl.Int64)
    end = calls["last"].search_sorted(ranges["last"], "right").cast(pl.Int64)
    return pl.DataFrame({"begin": begin, "count": (end - begin).clip(0)})


def minima_of_runs(values: pl.Series, found: pl.DataFrame) -> pl.Series:
    """Return the smallest value of each run, null for empty runs.

    Two blocks of 2**k <= n rows cover a run of n rows. The minima of blocks of one size follow from the minima of
    blocks of half that size (sparse table).

    Args:
        values: Int64.
        found: begin and count, as returned by `runs`.

    Example:
        >>> minima_of_runs(pl.Series([7, 5, 6]), pl.DataFrame({"begin": [0, 2, 1], "count": [3, 1, 0]})).to_list()
        [5, 6, None]
    """
    pending = found.with_row_index("row").filter(pl.col("count") > 0)
    done = [pl.DataFrame(schema={"row": pl.UInt32, "smallest": pl.Int64})]
    size = 1
    while pending.height:
        here = pending.filter(pl.col("count") < 2 * size)
        left, right = values.gather(here["begin"]), values.gather(here["begin"] + here["count"] - size)
        done.append(here.select("row", smallest=_smaller(left, right)))
        pending = pending.filter(pl.col("count") >= 2 * size)
        values = _smaller(values.head(max(0, values.len() - size)), values.slice(size))
        size *= 2
    return _in_order(pl.concat(done), found.height)["smallest"]


def _smaller(one: pl.Series, other: pl.Series) -> pl.Series:
    return pl.select(pl.min_horizontal(one, other)).to_series()


def _in_order(rows: pl.DataFrame, height: int) -> pl.DataFrame:
    every = pl.select(pl.arange(height, dtype=pl.UInt32).alias("row"))
    return every.join(rows, on="row", how="left", maintain_order="left")


def in_quadrant(
    points: pl.DataFrame, queries: pl.DataFrame, *, smallest: Sequence[str] = (), total: Sequence[str] = ()
) -> pl.DataFrame:
    """Return minima and sums over all points whose x is at least, and whose y is at most, that of each query.

    In order of y, the points of a query are a prefix. The prefix consists of blocks of 2**k points, one per bit of its
    length. Inside a block in order of x, the points of a query are a suffix (merge sort tree).

    Args:
        points: x, y and the columns named in the other arguments (Int64). Only columns in `smallest` may be null.
        queries: x, y.
        smallest: columns to take the minimum of. The result is null without points.
        total: columns to sum up.

    Example:
        >>> points = pl.DataFrame({"x": [1, 4, 6], "y": [3, 5, 7], "v": [30, 10, 20], "n": [1, 1, 1]})
        >>> in_quadrant(points, pl.DataFrame({"x": [0, 5], "y": [5, 9]}), smallest=["v"], total=["n"]).rows()
        [(10, 2), (20, 1)]
    """
    height = points.height
    points = points.sort("y")
    by_x = points["x"].arg_sort()
    place, rank = pl.arange(height, dtype=pl.Int64, eager=True), by_x.arg_sort().cast(pl.Int64)
    prefix = points["y"].search_sorted(queries["y"], "right").cast(pl.Int64)
    suffix = points["x"].gather(by_x).search_sorted(queries["x"], "left").cast(pl.Int64)
    ranks = {name: points[name].rank("dense").cast(pl.Int64).fill_null(height + 1) for name in smallest}
    least = {name: pl.repeat(height + 1, queries.height, dtype=pl.Int64, eager=True) for name in smallest}
    sums = {name: pl.zeros(queries.height, dtype=pl.Int64, eager=True) for name in total}
    for bit in range(height.bit_length()):
        block, mine = place // 2**bit, prefix // 2**bit - 1
        key = block * height + rank
        order = key.arg_sort()
        begin = key.gather(order).search_sorted(mine * height + suffix, "left").cast(pl.Int64)
        end = (mine + 1) * 2**bit
        counts = (mine % 2 == 0) & (begin < end)
        begin, last = begin.clip(0, height - 1), (end - 1).clip(0, height - 1)
        for name in smallest:
            # An offset per block makes the cumulative minimum start anew in each block.
            raised = (ranks[name] + block * (height + 2)).gather(order).cum_min(reverse=True)
            lowered = raised.gather(begin) - mine * (height + 2)
            least[name] = _smaller(least[name], lowered.zip_with(counts, least[name]))
        for name in total:
            values = points[name].gather(order)
            until = values.cum_sum()
            inside = until.gather(last) - until.gather(begin) + values.gather(begin)
            sums[name] += inside * counts.cast(pl.Int64)
    return pl.DataFrame({name: _unranked(points[name], ranks) for name, ranks in least.items()} | sums)


def _unranked(values: pl.Series, ranks: pl.Series) -> pl.Series:
    distinct = values.drop_nulls().unique().sort()
    known = pl.select(pl.when(ranks <= distinct.len()).then(ranks - 1)).to_series()
    return distinct.gather(known)
