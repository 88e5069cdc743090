"""The column operations in C match their Python fallbacks and reject invalid rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_twins import i32, i64, same_both_ways
from random_inputs import examples

from annot.attribution import column_ops
from annot.native import tables

native = tables()
pytestmark = pytest.mark.skipif(native is None, reason="annot.native._tables is not built")

SEEDS = st.integers(0, 2**32)
TIME = 2**62


def chunked(series: pl.Series, chance: random.Random) -> pl.Series:
    """The same values, as a slice that does not begin with a byte of its bitmaps, or as two."""
    padded = pl.concat([series[:3], series], rechunk=True)[min(3, len(series)) :]
    cut = chance.randrange(len(series) + 1)
    return chance.choice([series, padded, pl.concat([padded[:cut], padded[cut:]], rechunk=False)])


class Ranges:
    """Random ranges: a few threads, with ties, and ranges without length."""

    def __init__(self, chance: random.Random) -> None:
        count, span = chance.choice([0, 1, 3, 20, 90]), chance.choice([4, 20, 1000])
        far = chance.choice([0, 0, TIME - 3 * span, 3 * span - TIME])
        starts = [far + chance.randrange(-5, span) for _ in range(count)]
        self.thread = chunked(i32([chance.choice([-1, 0, 2]) for _ in range(count)]), chance)
        self.start = chunked(i64(starts), chance)
        self.end = chunked(i64([start + chance.choice([0, 1, chance.randrange(span)]) for start in starts]), chance)
        self.far, self.span = far, span

    def at(self, rows: pl.Series) -> Ranges:
        for name in ("thread", "start", "end"):
            setattr(self, name, getattr(self, name).gather(rows))
        return self

    def nesting(self, chance: random.Random) -> tuple[pl.Series, pl.Series, pl.Series, pl.Series]:
        """Thread, start, end and parent of those that nest, in order."""
        self.at(column_ops.order(self.thread, self.start, self.end))
        count = len(self.thread)
        weight, foreign = (
            i32([chance.randrange(3) for _ in range(count)]),
            [chance.random() < 0.1 for _ in range(count)],
        )
        loose = column_ops.crossing(self.thread, self.start, self.end, weight, pl.Series(foreign, dtype=pl.Boolean))
        self.at((~loose).arg_true())
        return self.thread, self.start, self.end, column_ops.parents(self.thread, self.end)[0]


def cross(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    (thread, _, reached), (of_thread, start, end) = sorted((one, other), key=lambda row: (row[1], -row[2]))
    return thread == of_thread and start < reached < end


def standing_aside(ranges: Ranges, weight: list[int], foreign: list[bool]) -> list[bool]:
    """Pair by pair: heavier ranges first, then earlier ones; each stays that crosses none that stays."""
    rows = list(zip(ranges.thread, ranges.start, ranges.end, strict=True))
    stays: list[int] = []
    for row in sorted(range(len(rows)), key=lambda row: (-weight[row], row)):
        if not foreign[row] and not any(cross(rows[row], rows[other]) for other in stays):
            stays.append(row)
    return [row not in stays for row in range(len(rows))]


@settings(max_examples=examples(300), deadline=None)
@given(SEEDS)
def test_order_crossing_and_parents(seed: int) -> None:
    chance = random.Random(seed)
    ranges = Ranges(chance)
    rows = same_both_ways(lambda: column_ops.order(ranges.thread, ranges.start, ranges.end))
    key = [(t, s, -e) for t, s, e in zip(ranges.thread, ranges.start, ranges.end, strict=True)]
    assert rows.to_list() == sorted(range(len(key)), key=lambda row: (key[row], row))
    ranges.at(rows)
    weight = chunked(i32([chance.randrange(3) for _ in key]), chance)
    foreign = chunked(pl.Series([chance.random() < 0.1 for _ in key], dtype=pl.Boolean), chance)
    loose = same_both_ways(lambda: column_ops.crossing(ranges.thread, ranges.start, ranges.end, weight, foreign))
    assert loose.to_list() == standing_aside(ranges, weight.to_list(), foreign.to_list())
    same_both_ways(lambda: column_ops.parents(ranges.thread, ranges.end))  # crossing or not, the order decides


def test_order_of_threads_with_any_number_and_of_long_unsorted_columns() -> None:
    chance = random.Random(5)
    wild = i32([chance.choice([-(2**31), 7, 2**31 - 1]) for _ in range(5000)])
    start, end = (i64([chance.randrange(-9000, 9000) for _ in range(5000)]) for _ in range(2))
    same_both_ways(lambda: column_ops.order(wild, start, end))
    same_both_ways(lambda: column_ops.order(wild % 5, start, end))


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS)
def test_paths_and_fold(seed: int) -> None:
    chance = random.Random(seed)
    *_, parent = Ranges(chance).nesting(chance)
    key = chunked(i32([chance.choice([-1, 0, 1, 2, 2**31 - 1]) for _ in parent]), chance)
    same_both_ways(lambda: column_ops.paths(chunked(parent, chance), key))
    values = i64([chance.choice([-(2**40), 5, 2**50]) for _ in parent])
    same_both_ways(lambda: column_ops.fold(parent, values))


@settings(max_examples=examples(300), deadline=None)
@given(SEEDS)
def test_owners(seed: int) -> None:
    chance = random.Random(seed)
    ranges = Ranges(chance)
    thread, start, end, parent = ranges.nesting(chance)
    begins = [ranges.far + chance.randrange(-6, 2 * ranges.span) for _ in range(60)]
    begins = sorted(begins) if chance.random() < 0.6 else begins
    call_thread = chunked(i32([chance.choice([-1, 0, 1, 2]) for _ in begins]), chance)
    call_end = i64([begin + chance.choice([0, 1, 10]) for begin in begins])
    call_start = chunked(i64(begins), chance)
    owners = same_both_ways(
        lambda: column_ops.Tree(thread, start, end, parent).owners(call_thread, call_start, call_end)
    )
    rows = list(zip(thread, start, end, strict=True))
    for owner, *call in zip(owners, call_thread, call_start, call_end, strict=True):
        around = [n for n, (t, s, e) in enumerate(rows) if t == call[0] and s <= call[1] and e >= call[2]]
        assert owner == (around[-1] if around else -1)


def test_owners_of_unknown_calls_are_none() -> None:
    tree = native.Tree(i32([0]), i64([0]), i64([10]), i32([-1]))
    calls = i32([0, None, 0, 0]), i64([1, 1, None, 1]), i64([2, 2, 2, None])
    assert pl.Series(tree.owners(*calls)).to_list() == [0, -1, -1, -1]


def launches(chance: random.Random) -> tuple[Any, ...]:
    table, found = column_ops.LaunchTable(), []
    wide = chance.random() < 0.3

    def ids(count: int) -> tuple[pl.Series, pl.Series]:
        pool = [None, chance.randrange(30), chance.randrange(-300, 900)]
        pool += [chance.randrange(-(2**63), 2**63)] if wide else []
        made = [chance.choice([*pool, chance.randrange(20)]) for _ in range(count)]
        return chunked(i32([chance.choice([0, 1, -5]) for _ in made]), chance), chunked(i64(made), chance)

    found += table.get(*ids(5))
    for _ in range(3):
        process, correlation = ids(chance.choice([0, 1, 40]))
        numbers = i32(list(range(len(process))))
        found.append(table.put(process, correlation, numbers, numbers - 7))
        found += table.get(*ids(chance.choice([0, 1, 40])))
    return tuple(found)


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS)
def test_launches_are_found_again(seed: int) -> None:
    same_both_ways(lambda: launches(random.Random(seed)))


def test_scattered_ids_take_little_memory_and_are_found_again() -> None:
    chance = random.Random(3)
    ids = [chance.randrange(-(2**63), 2**63) for _ in range(60000)] + list(range(5000))
    correlation, process = i64(ids), i32([0] * len(ids))
    value = i32(list(range(len(ids))))

    def ask() -> tuple[Any, ...]:
        table = column_ops.LaunchTable()
        first = table.put(process, correlation, value, value)
        return first, table.put(process, correlation.reverse(), value, value), *table.get(process, correlation)

    first, again, found, _ = same_both_ways(ask)
    assert (first, again) == (0, len(ids))
    assert found.to_list() == value.to_list()


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_sums(seed: int) -> None:
    def ask() -> pl.Series:
        chance = random.Random(seed)
        sums = column_ops.Sums(7)
        for _ in range(3):
            rows = [chance.randrange(-1, 7) for _ in range(chance.randrange(30))]
            sums.add(i32(rows), i64([chance.randrange(-(2**50), 2**50) for _ in rows]))
        return sums.result()

    same_both_ways(ask)


WRONG = {
    "count": (TypeError, "takes 2 columns, got 1", lambda: native.parents(i32([1]))),
    "kind": (TypeError, "thread must be a column of 32-bit integers", lambda: native.parents(i64([1]), i64([1]))),
    "no column": (TypeError, "thread must be an Arrow column such as pl.Series", lambda: native.parents([1], i64([1]))),
    "lengths": (ValueError, "the same length, got 1 and 2 rows", lambda: native.parents(i32([1]), i64([1, 2]))),
    "null": (ValueError, "end must not contain nulls", lambda: native.parents(i32([1]), i64([None]))),
    "paths": (ValueError, "before its row or -1, got 0 at row 0", lambda: native.paths(i32([0]), i32([0]))),
    "Tree": (ValueError, "row 1 is out", lambda: native.Tree(i32([0, 0]), i64([2, 1]), i64([3, 3]), i32([-1, -1]))),
    "parent": (ValueError, "row 1 is out", lambda: native.Tree(i32([0, 1]), i64([1, 1]), i64([3, 3]), i32([-1, 0]))),
    "Busy": (ValueError, "node_key must be from 0 to 2, got 3", lambda: native.Busy(i32([-1]), i32([3]), 3)),
    "node": (
        ValueError, "node must be from -1 to 0, got 1",
        lambda: native.Busy(i32([-1]), i32([0]), 1).add(i32([1]), i32([0]), i64([0]), i64([0])),
    ),
    "value": (
        ValueError, "value must be from -2147483647 to 2147483647, got -2147483648",
        lambda: native.LaunchTable().put(i32([0]), i64([0]), i32([-(2**31)]), i32([0])),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("error", "message", "call"), WRONG.values(), ids=WRONG.keys())
def test_what_is_out_of_place_is_refused(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        call()


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(SEEDS)
def test_codes(seed: int) -> None:
    """Each value has the place where it first stands among the known ones; null and unknown values have none."""
    chance = random.Random(seed)
    pool = [chance.choice([0, 1, -1, 7, 2**62, -(2**63), chance.randrange(-9, 9)]) for _ in range(12)]
    known = [chance.choice(pool) for _ in range(chance.randrange(9))]
    values = [chance.choice([*pool, None]) for _ in range(chance.randrange(40))]
    found = same_both_ways(lambda: column_ops.codes(chunked(i64(values), chance), i64(known)))
    assert found.to_list() == [known.index(value) if value in known else -1 for value in values]


def test_a_column_of_several_chunks_is_refused() -> None:
    with pytest.raises(ValueError, match="end must be one chunk of memory"):
        native.parents(i32([0, 0]), pl.concat([i64([1]), i64([2])], rechunk=False))


def shared(chance: random.Random) -> tuple[pl.Series, ...]:
    """Start, end and thread of ranges in order of start, longest first: many at once, many that never end."""
    count, span = chance.choice([0, 1, 3, 20, 90]), chance.choice([4, 20, 300])
    far = chance.choice([0, 0, TIME - 3 * span, 3 * span - TIME])
    times = []
    for _ in range(count):
        start = far + chance.randrange(span)
        times.append((start, chance.choice([far + 2 * span, start, start + chance.randrange(span)])))
    times.sort(key=lambda time: (time[0], -time[1]))
    threads = [chance.randrange(min(3, count)) for _ in times]
    return i64([start for start, _ in times]), i64([end for _, end in times]), i32(threads)


@settings(max_examples=examples(300), deadline=None)
@given(SEEDS)
def test_enclosing_and_innermost(seed: int) -> None:
    chance = random.Random(seed)
    start, end, thread = (chunked(column, chance) for column in shared(chance))
    above = [chance.randrange(-1, key) for key in range(chance.choice([1, 2, 6]))]
    key = chunked(i32([chance.randrange(len(above)) for _ in range(len(start))]), chance)
    parent = same_both_ways(lambda: column_ops.enclosing(start, end, key, chunked(i32(above), chance)))
    for row, found in enumerate(parent):
        keys = [above[key[row]]]
        while keys[-1] != -1:
            keys.append(above[keys[-1]])
        those = [n for n in range(row) if key[n] in keys and end[n] >= end[row]]
        assert found == min(those, key=lambda n: (end[n] - start[n], -n), default=-1)
    same_both_ways(lambda: column_ops.innermost(start, end, thread, parent))


def test_a_range_is_innermost_again_when_those_inside_it_have_ended() -> None:
    """Two ranges inside a third one, the second on another thread."""
    columns = (i64([0, 1, 3]), i64([10, 5, 8]), i32([0, 0, 1]), i32([-1, 0, 0]))
    counts, changes = same_both_ways(lambda: column_ops.innermost(*columns))
    assert counts.to_list() == [0, 1, 1, 2, 1, 1, 0]
    of_thread = changes.filter(thread=0)
    assert of_thread.select("moment", "range").rows() == [(1, 0), (2, 1), (4, -1), (5, 0), (6, -1)]
    assert changes.filter(thread=column_ops.ANY).select("moment", "range").rows() == [
        (1, 0), (2, 1), (3, 2), (5, 0), (6, -1),
    ]  # fmt: skip


def test_owner_codes_of_the_first_and_the_last_row() -> None:
    """With guesses, rows have 29 bits, else 30."""
    for guesses, last in ((True, column_ops.GUESSED - 1), (False, column_ops.BY_TIME - 1)):
        rows, no = i32([0, 1, last]), pl.Series([False] * 3)
        expected = [*((row, False, False) for row in rows), *((row, True, False) for row in rows)]
        codes = [*rows, *column_ops.by_time(rows), column_ops.NONE, column_ops.LEFT_OUT, None]
        expected += [(column_ops.NONE, False, False)] * 3
        if guesses:
            codes += [*column_ops.guessed(rows, ~no), *column_ops.guessed(rows, no)]
            expected += [*((row, False, True) for row in rows), *((row, False, False) for row in rows)]
        owners = pl.DataFrame({"code": i32(codes)}).select(column_ops.owner_columns("code", guesses=guesses))
        assert owners.select("range", "by_time", "guessed").rows() == expected


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("enclosing", (i64([0]), i64([1]), i32([1]), i32([-1]))),
        ("enclosing", (i64([0]), i64([1]), i32([0]), i32([0]))),
        ("enclosing", (i64([1, 0]), i64([2, 2]), i32([0, 0]), i32([-1]))),
        ("innermost", (i64([0]), i64([1]), i32([1]), i32([-1]), i32([0]))),
        ("innermost", (i64([0]), i64([1]), i32([0]), i32([0]), i32([0]))),
        ("innermost", (i64([0]), i64([-1]), i32([0]), i32([-1]), i32([0]))),
        ("innermost", (i64([0, 0]), i64([1, 1]), i32([0, 0]), i32([-1, -1]), i32([1, 1]))),
        ("innermost", (i64([0]), i64([1]), i32([-1]), i32([-1]), i32([0]))),
        ("innermost", (i64([1, 0]), i64([2, 2]), i32([0, 0]), i32([-1, -1]), i32([0, 1]))),
    ],
)
def test_ranges_of_processes_out_of_place(name: str, columns: tuple[pl.Series, ...]) -> None:
    with pytest.raises(ValueError, match=r"order|ascend|must be from|before"):
        getattr(native, name)(*columns)


@settings(max_examples=examples(50), deadline=None)
@given(SEEDS)
def test_outermost_goes_up_one_row_at_a_time(seed: int) -> None:
    """The row reached by pointer jumping is that of a walk from parent to parent."""
    chance = random.Random(seed)
    parent = [chance.randrange(-1, row) if row else -1 for row in range(chance.randrange(1, 60))]
    goes_up = [above >= 0 and chance.random() < 0.8 for above in parent]
    expected = []
    for row in range(len(parent)):
        while goes_up[row]:
            row = parent[row]
        expected.append(row)
    assert column_ops.outermost(i32(parent), pl.Series(goes_up, dtype=pl.Boolean)).to_list() == expected
