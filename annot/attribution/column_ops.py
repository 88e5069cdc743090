"""Operations on all ranges, launches or kernels: in polars where it is fast, otherwise in C with a Python fallback.

The fallbacks are the reference implementation of `annot.native._tables`, and the tests compare the two. Row numbers
start at 0, and -1 stands for a missing row. Times are integers in ns between -2^62 and 2^62.

The loops take one integer column where attribution needs several values per row. Grouping and searching one integer
column is also faster than grouping and searching two. The layouts of these integers:

    owner code   Int32   range that owns a launch (`by_time`, `guessed`, `owner_columns`)
                         bit 30       BY_TIME: the range is of another thread than the launch
                         bit 29       GUESSED: several ranges of the process were innermost at the launch
                         bits 0-28    row of the range in `Forest.tree`
                         -1           NONE: the launch is outside any range
                         -2           LEFT_OUT: the launch is in a step that was not requested
                         GUESSED occurs only with ranges of processes. Without them, rows take bits 0-29.

    pair         Int64   two numbers that sort as (high, low) (`pair`, `high_of`, `low_of`)
                         bits 32-63   high number, at least -1
                         bits 0-31    low number, at least 0
                         Sums of pairs are pairs of sums, as long as the low sums stay below 2^32.

    layer key    Int32   key of a layer, or of a chain of layers while `annot.attribution.range_trees` builds paths
                         bit 30       CHAIN: bits 0-29 are the number of a chain
                         bits 0-29    key in `Keys`, or number of a chain
                         -1           NONE: the range adds nothing to its path

    text key     Int64   domain, text, call and role of a range within one block (`annot.attribution.ingest`)
                         bits 24-63   code of the text; with calls: text · (calls + 1) + code of the call
                         bits 4-23    code of the domain
                         bits 0-3     code of the role
                         Code 0 is null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final, TypeVar

import polars as pl

from annot.native import tables

NONE: Final = -1
_ABSENT: Final = -1 << 31
"""Value and step of unknown launches in `annot.native._tables`."""


def _named(name: str, array: Any) -> pl.Series:
    """Return an Arrow array as a named series. The arrays of the extension are unnamed."""
    return pl.Series(array).alias(name)


def one_chunk(*columns: pl.Series) -> list[pl.Series]:
    """Return the columns as the extension expects them, each in one chunk of memory."""
    return [column.rechunk() for column in columns]


def known(rows: pl.Series) -> pl.Series:
    """Return rows to gather, with null for -1."""
    return pl.select(pl.when(rows != NONE).then(rows)).to_series()


def inside(marked: pl.Series, parent: pl.Series) -> pl.Series:
    """Return whether each row has a marked ancestor. Each iteration doubles the distance (pointer jumping)."""
    if not marked.any():
        return marked
    above = known(parent)
    is_inside = marked.gather(above).fill_null(False)
    while above.null_count() < above.len():
        is_inside |= is_inside.gather(above).fill_null(False)
        above = above.gather(above)
    return is_inside


def outermost(parent: pl.Series, goes_up: pl.Series) -> pl.Series:
    """Return the first row (Int32) from each row upwards, itself included, that does not go up (Boolean)."""
    rows = pl.int_range(parent.len(), dtype=pl.Int32, eager=True)
    top = pl.select(pl.when(goes_up).then(parent).otherwise(rows).cast(pl.Int32)).to_series()
    while not (further := top.gather(top)).equals(top):  # each round doubles the distance
        top = further
    return top


def codes(values: pl.Series, among: pl.Series) -> pl.Series:
    """Return the row (Int32) of each value (Int64) in `among` (Int64, without nulls), -1 for other values.

    Of equal values in `among`, the first one counts.
    """
    first = among.arg_unique()
    row = first.cast(pl.Int32)
    return values.replace_strict(among.gather(first), row, default=NONE, return_dtype=pl.Int32).alias("code")


def order(thread: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series:
    """Return the row numbers (UInt32) in the order (thread, start, longest first, row)."""
    ranges = pl.DataFrame({"thread": thread, "start": start, "end": end}).with_row_index("row")
    if ranges.select(_follows_the_previous_row()).to_series().all():  # the common case
        return ranges["row"]
    rows = [
        of_thread.sort("start", "end", descending=[False, True], maintain_order=True)["row"]
        for _, of_thread in sorted(ranges.partition_by("thread", maintain_order=True, as_dict=True).items())
    ]
    return pl.concat(rows)


def _follows_the_previous_row() -> pl.Expr:
    """Return whether a row comes after the row above it in the order (thread, start, longest first)."""
    thread, start, end = (pl.col(name) for name in ("thread", "start", "end"))
    later = (start > start.shift()) | ((start == start.shift()) & (end <= end.shift()))
    return (thread > thread.shift()) | ((thread == thread.shift()) & later)


def crossing(thread: pl.Series, start: pl.Series, end: pl.Series, weight: pl.Series, foreign: pl.Series) -> pl.Series:
    """Return the crossing ranges (Boolean). The other ranges nest.

    A range nests if it crosses no nested range of higher weight, and no earlier nested range of the same weight. Ranges
    that ended on another thread (`foreign`, Boolean) always count as crossing, and do not affect other ranges. The
    other columns are Int32, Int64, Int64 and Int32 in the order of `order`, with few distinct weights.
    """
    native = tables()
    if native is not None:
        return _named("crossing", native.crossing(*one_chunk(thread, start, end, weight, foreign)))
    aside = foreign.to_list()
    rows = pl.DataFrame({"thread": thread, "start": start, "end": end, "weight": weight}).with_row_index("row")
    rows = rows.filter(~foreign)
    for least in rows["weight"].unique().sort(descending=True):
        for ranges in rows.filter(pl.col("weight") >= least).partition_by("thread", maintain_order=True):
            there = [row for row in ranges.select("row", "start", "end", "weight").iter_rows() if not aside[row[0]]]
            for row in _crossing_heavier(there, least):
                aside[row] = True
            lightest = [row for row in there if row[3] == least and not aside[row[0]]]
            for row in _crossing_earlier(lightest):
                aside[row] = True
    return pl.Series("crossing", aside, pl.Boolean)


def _crossing_heavier(ranges: list[tuple[int, int, int, int]], weight: int) -> list[int]:
    """Return the rows of the ranges of a weight that cross heavier ranges. The heavier ranges nest."""
    crossing_rows: list[int] = []
    heavier: list[int] = []  # ends of the open heavier ranges, innermost last
    open_: list[tuple[int, int]] = []  # heap of ends and rows of the open ranges of this weight
    for row, start, end, mine in ranges:
        if mine > weight:
            while open_ and open_[0][0] < end:
                reached, crossed = heappop(open_)
                crossing_rows += [crossed] if reached > start else []
            while heavier and heavier[-1] < end:
                heavier.pop()
            heavier.append(end)
            continue
        while heavier and heavier[-1] <= start:
            heavier.pop()
        if heavier and heavier[-1] < end:
            crossing_rows.append(row)
        else:
            heappush(open_, (end, row))
    return crossing_rows


def _crossing_earlier(ranges: list[tuple[int, int, int, int]]) -> list[int]:
    """Return the rows of the ranges that cross an earlier nested range. All have the same weight."""
    crossing_rows: list[int] = []
    stack: list[int] = []
    for row, start, end, _ in ranges:
        while stack and stack[-1] <= start and stack[-1] < end:
            stack.pop()
        if stack and stack[-1] < end:
            crossing_rows.append(row)
        else:
            stack.append(end)
    return crossing_rows


def parents(thread: pl.Series, end: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return the row of the parent and the depth (Int32) of nested ranges in the order of `order`."""
    native = tables()
    if native is not None:
        parent, depth = native.parents(*one_chunk(thread, end))
        return _named("parent", parent), _named("depth", depth)
    ends = end.to_list()
    above: list[int] = []
    depths: list[int] = []
    stack: list[int] = []
    here = None
    for row, of_thread in enumerate(thread.to_list()):
        if of_thread != here:
            here = of_thread
            stack.clear()
        while stack and ends[stack[-1]] < ends[row]:
            stack.pop()
        above.append(stack[-1] if stack else NONE)
        depths.append(len(stack))
        stack.append(row)
    return pl.Series("parent", above, pl.Int32), pl.Series("depth", depths, pl.Int32)


def paths(parent: pl.Series, key: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Return the trie of the key paths from the top to each row.

    The parent (row, -1 at the top) is smaller than the own row. The key -1 adds nothing to the path of the parent. The
    result is the node of each row (-1 for an empty path), and the parent and the key of each node; all Int32. Nodes are
    numbered in the order of their first row, so a parent has a smaller number than its children.
    """
    native = tables()
    if native is not None:
        path, node_parent, node_key = native.paths(*one_chunk(parent.cast(pl.Int32), key.cast(pl.Int32)))
        return _named("path", path), _named("parent", node_parent), _named("key", node_key)
    numbers: dict[tuple[int, int], int] = {}
    nodes: list[int] = []
    for above, mine in zip(parent.to_list(), key.to_list(), strict=True):
        around = NONE if above == NONE else nodes[above]
        nodes.append(around if mine == NONE else numbers.setdefault((around, mine), len(numbers)))
    return (
        pl.Series("path", nodes, pl.Int32),
        pl.Series("parent", [above for above, _ in numbers], pl.Int32),
        pl.Series("key", [mine for _, mine in numbers], pl.Int32),
    )


class Tree:
    """Lookup of the innermost of nested ranges (Int32, Int64, Int64, Int32, in the order of `order`) around a call."""

    def __init__(self, thread: pl.Series, start: pl.Series, end: pl.Series, parent: pl.Series) -> None:
        native = tables()
        self._native: Any = native and native.Tree(*one_chunk(thread, start, end, parent))
        if self._native is None:
            self._rows = pl.DataFrame({"thread": thread, "start": start}).with_row_index("range")
            self._end, self._parent = end, parent

    def owners(self, thread: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series:
        """Return the row of the innermost range around each call (Int32), -1 outside any range and on thread -1.

        Start and end of a range are inclusive. The columns are Int32, Int64 and Int64.
        """
        if self._native is not None:
            return _named("range", self._native.owners(*one_chunk(thread, start, end)))
        calls = pl.DataFrame({"thread": thread, "start": start, "end": end}).with_row_index("call")
        rows = self._rows.sort("start", maintain_order=True)
        latest = calls.sort("start").join_asof(rows, on="start", by="thread", check_sortedness=False)
        latest = latest.select("call", "end", pl.col("range").cast(pl.Int32).fill_null(NONE))
        return self._ascend(latest)

    def _ascend(self, pending: pl.DataFrame) -> pl.Series:
        """Ascend from the last range that started before each call to the first one that contains the call."""
        done = [pending.filter(pl.col("range") == NONE)]
        pending = pending.filter(pl.col("range") != NONE)
        while not pending.is_empty():
            around = self._end.gather(pending["range"]) >= pending["end"]
            done.append(pending.filter(around))
            pending = pending.filter(~around)
            pending = pending.with_columns(self._parent.gather(pending["range"]).alias("range"))
            done.append(pending.filter(pl.col("range") == NONE))
            pending = pending.filter(pl.col("range") != NONE)
        return pl.concat(done).sort("call")["range"].cast(pl.Int32)


class LaunchTable:
    """Table of launches by process and correlation id. Correlation ids are unique within a process only."""

    def __init__(self) -> None:
        native = tables()
        self._native: Any = native and native.LaunchTable()
        self._blocks: list[pl.DataFrame] = []

    def put(self, process: pl.Series, correlation: pl.Series, value: pl.Series, step: pl.Series) -> int:
        """Add calls (Int32, Int64, Int32, Int32). Return the number of known ids, whose first call is kept."""
        if self._native is not None:
            return int(self._native.put(*one_chunk(process, correlation, value, step)))
        names = ("process", "correlation", "value", "step")
        block = pl.DataFrame(dict(zip(names, (process, correlation, value, step), strict=True)))
        every = pl.concat([*self._blocks, block.drop_nulls("correlation")])
        self._blocks = [every.unique(["process", "correlation"], keep="first", maintain_order=True)]
        return every.height - self._blocks[0].height

    def get(self, process: pl.Series, correlation: pl.Series) -> tuple[pl.Series, pl.Series]:
        """Return value and step (Int32) of each process (Int32) and id (Int64), null for unknown or null ids."""
        if self._native is not None:
            launches = map(pl.Series, self._native.get(*one_chunk(process, correlation)))
            launch = pl.when(pl.col("value") != _ABSENT).then(pl.all())
            value, step = pl.DataFrame(dict(zip(("value", "step"), launches, strict=True))).select(launch)
            return value, step
        ids = pl.DataFrame({"process": process, "correlation": correlation})
        if not self._blocks:
            nothing = pl.Series([None] * ids.height, dtype=pl.Int32)
            return nothing.alias("value"), nothing.alias("step")
        joined = ids.join(self._blocks[0], on=["process", "correlation"], how="left", maintain_order="left")
        return joined["value"], joined["step"]


class Sums:
    """Sums per row, for `count` rows, added block by block."""

    def __init__(self, count: int) -> None:
        self._sums = pl.Series("sum", [0], pl.Int64).new_from_index(0, count)

    def add(self, row: pl.Series, value: pl.Series) -> None:
        """Add values (Int64) to rows (Int32). Row -1 is ignored."""
        added = pl.DataFrame({"row": row, "value": value}).filter(pl.col("row") != NONE)
        added = added.group_by("row").agg(pl.col("value").sum())
        self._sums = self._sums.scatter(added["row"], self._sums.gather(added["row"]) + added["value"])

    def result(self) -> pl.Series:
        """Return the sums (Int64)."""
        return self._sums


def fold(parent: pl.Series, values: pl.Series) -> pl.Series:
    """Return the sum of the values of each row and of all rows below it (Int64). A parent comes before its children."""
    totals = values.to_list()
    above = parent.to_list()
    for row in range(len(totals) - 1, -1, -1):
        if above[row] != NONE:
            totals[above[row]] += totals[row]
    return pl.Series(values.name, totals, pl.Int64)


BY_TIME: Final = 1 << 30
GUESSED: Final = 1 << 29
LEFT_OUT: Final = -2
CHAIN: Final = 1 << 30
TEXT_KEY_UNITS: Final = {"text": 1 << 24, "domain": 1 << 4, "role": 1}
"""Value of the lowest bit of each part of a text key."""

_LOW_BITS: Final = 32
_HIGH_UNIT: Final = 1 << _LOW_BITS

_Column = TypeVar("_Column", pl.Series, pl.Expr)


def by_time(rows: pl.Series) -> pl.Series:
    """Return the owner codes of launches that belong to ranges (rows, Int32) of other threads."""
    return rows + BY_TIME


def guessed(rows: pl.Series, several: pl.Series) -> pl.Series:
    """Return owner codes of ranges (rows, Int32, may be null) with GUESSED set where several ranges were innermost."""
    return rows + several.cast(pl.Int32) * GUESSED


def owner_columns(code: str, *, guesses: bool) -> list[pl.Expr]:
    """Return the columns by_time, guessed (Boolean) and range (row, Int32; NONE outside any range) of owner codes.

    Without `guesses`, bit 29 is part of the row.

    Example:
        >>> codes = {"code": [7, by_time(pl.Series([7]))[0], guessed(pl.Series([7]), pl.Series([True]))[0], -1, -2]}
        >>> pl.DataFrame(codes).select(owner_columns("code", guesses=True)).rows()
        [(False, False, 7), (True, False, 7), (False, True, 7), (False, False, -1), (False, False, -1)]
    """
    value = pl.col(code)
    late = (value >= BY_TIME).fill_null(False)
    row, guess = value - late * BY_TIME, pl.lit(False)
    if guesses:
        guess = ~late & (value >= GUESSED).fill_null(False)
        row -= guess * GUESSED
    row = pl.when(value >= 0).then(row).otherwise(NONE).cast(pl.Int32)
    return [late.alias("by_time"), guess.alias("guessed"), row.alias("range")]


def pair(high: _Column, low: _Column) -> _Column:
    """Return pairs (Int64) of integers."""
    return high.cast(pl.Int64) * _HIGH_UNIT + low.cast(pl.Int64)


def high_of(pairs: pl.Series) -> pl.Series:
    """Return the high numbers of pairs (Int64)."""
    return pairs // _HIGH_UNIT


def low_of(pairs: pl.Series) -> pl.Series:
    """Return the low numbers of pairs (Int64). Polars' ``%`` rounds down, so a high number of -1 is fine."""
    return pairs % _HIGH_UNIT


class Numbers:
    """Dense ids of 64-bit values, from 0 in order of appearance."""

    def __init__(self) -> None:
        self.known = pl.Series("value", [], pl.Int64)
        """The values (Int64). The row is the id."""

    def of(self, values: pl.Series) -> pl.Series:
        """Return the id (Int32) of each value (Int64), -1 for null."""
        ids = codes(values, self.known)
        new = ((ids == NONE) & values.is_not_null()).arg_true()
        if new.is_empty():
            return ids
        added = values.gather(new)
        first = added.unique(maintain_order=True)
        ids = ids.scatter(new, codes(added, first) + len(self.known))
        self.known = pl.concat([self.known, first.alias("value")])
        return ids


@dataclass(frozen=True, slots=True)
class Threads:
    """Codes of threads and processes.

    `table` has thread and process as numbered in the profile (Int64), and process_code (Int32). The row is the code of
    the thread.
    """

    table: pl.DataFrame

    @classmethod
    def of(cls, table: pl.DataFrame) -> Threads:
        """Return the codes for a table of thread and process with a row per thread."""
        return cls(table.sort("thread").with_columns(process_code=pl.col("process").rank("dense").cast(pl.Int32) - 1))

    def codes(self, threads: pl.Series) -> pl.Series:
        """Return the code of each thread (Int32), -1 for null and for threads without ranges."""
        return codes(threads, self.table["thread"])

    def of_process(self, code: int) -> list[int]:
        """Return the codes of the threads of a process."""
        rows = self.table.select((pl.col("process_code") == code).arg_true())
        return rows.to_series().to_list()


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


def spans_of(ranges: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return the first start and the last end (ns) of the ranges of each thread (code)."""
    spans = ranges.group_by("thread").agg(pl.col("start").min(), pl.col("end").max())
    return {thread: (start, end) for thread, start, end in spans.iter_rows()}


def innermost_around(
    calls: pl.DataFrame,
    tree: Tree,
    ranges: pl.DataFrame,
    spans: Mapping[int, tuple[int, int]],
    threads: Iterable[int],
) -> pl.Series:
    """Return the row (Int32) of the innermost range of some threads around each call, -1 outside any range.

    The innermost range is the last one to start, then the first one to end. The calls have start and end (ns), in order
    of start; `ranges` has start and end of each row of the tree; `spans` is the result of `spans_of`.
    """
    starts, ends = ranges["start"], ranges["end"]
    best = pl.Series("range", [NONE], pl.Int32).new_from_index(0, calls.height)
    for thread in threads:
        first, last = spans[thread]
        begin = int(calls["start"].search_sorted(first, "left"))
        covered_calls = calls[begin : int(calls["start"].search_sorted(last, "right"))]
        there = pl.Series([thread], dtype=pl.Int32).new_from_index(0, covered_calls.height)
        owners = tree.owners(there, covered_calls["start"], covered_calls["end"])
        hit = (owners != NONE).arg_true()
        new, old = owners.gather(hit), best.gather(hit + begin)
        current = known(old)
        later, same = starts.gather(new) > starts.gather(current), starts.gather(new) == starts.gather(current)
        takes = (later | (same & (ends.gather(new) < ends.gather(current)))).fill_null(True)
        best = best.scatter((hit + begin).filter(takes), new.filter(takes))
    return best
