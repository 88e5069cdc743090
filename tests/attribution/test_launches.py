"""Owners, steps and cells of launches."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.launches import Launches
from annot.attribution.nesting import CrossingRanges
from annot.attribution.steps import Steps, without_steps

OURS: dict[str, Any] = {"kind": "start", "domain": "annot"}
LAUNCHES = {
    "process": pl.Int64, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64, "correlation": pl.Int64,
}  # fmt: skip


def calls(*rows: tuple[int | None, ...]) -> pl.DataFrame:
    """API calls as thread, start, end and correlation id."""
    table = [(None if row[0] is None else row[0] // 100, *row) for row in rows]
    return pl.DataFrame(table, schema=LAUNCHES, orient="row")


def launched(rows: Rows, *blocks: pl.DataFrame, steps: Steps | None = None) -> Launches:
    result = attribute(rows.build())
    return Launches(result.forest, steps or result.steps, blocks)


def owners(launches: Launches, *correlations: int | None, process: int = 1) -> list[tuple[int | None, ...]]:
    """Owner, step and cell of the launches with some ids."""
    code = launches.process_codes(pl.Series([process] * len(correlations), dtype=pl.Int64))
    columns = launches.get(code, pl.Series(correlations, dtype=pl.Int64))
    return [*zip(*(column.to_list() for column in columns), strict=True)]


def nested() -> Rows:
    rows = Rows().range("Batch 0 |step", 0, 100).range("a Linear |fwd", 10, 20).range("b Linear |fwd", 30, 40, 201)
    return rows.range("crossing", 50, 150, kind="start")


def test_owner_step_and_cell() -> None:
    table = calls((MAIN, 15, 16, 1), (MAIN, 18, 22, 2), (MAIN, 60, 61, 3), (MAIN, 120, 121, 4), (201, 35, 36, 1))
    launches = launched(nested(), table)
    assert owners(launches, 1, 2, 3, 4, 5, None) == [
        (1, 0, -1), (0, 0, -1), (0, 0, 0), (-1, -1, 0), (None,) * 3, (None,) * 3,
    ]  # fmt: skip
    assert owners(launches, 1, 2, process=2) == [(2, -1, -1), (None,) * 3]
    assert owners(launches, 1, process=9) == [(None,) * 3]
    assert launches.processes(launches.process_codes(pl.Series([2, 1, 9, None, 2]))).to_list() == [2, 1, 9, None, 2]


def test_calls_without_an_id_or_a_start_are_ignored_and_others_end_no_earlier_than_they_start() -> None:
    launches = launched(
        nested(), calls((MAIN, 15, 16, None), (MAIN, None, 16, 1)), calls((MAIN, 15, 3, 2), (MAIN, 15, None, 3))
    )
    assert owners(launches, None, 1, 2, 3) == [(None,) * 3, (None,) * 3, (1, 0, -1), (1, 0, -1)]
    assert launched(nested()).in_order


@pytest.mark.parametrize(
    ("blocks", "in_order"),
    [
        ([[(15, 1)], [(35, 1)]], True),
        ([[(35, 1)], [(15, 1)]], False),
        ([[(35, 1)], [(15, 1), (40, 2)]], False),
        ([[(35, 1)], [(15, 2)]], True),  # ids that come once
        ([[(15, 2), (35, 1)], [(35, 1)]], True),
        ([[(15, 2), (35, 1)], [(34, 1)]], False),
        ([[(35, 1), (15, 1)]], True),  # sorted in the block
        ([[(15, 1), (80, 2)], [(60, 3)], [(70, 1)]], False),
        ([[], [(15, 1)], []], True),
    ],
)
def test_the_earliest_call_with_an_id_comes_first(blocks: list[list[tuple[int, int]]], in_order: bool) -> None:
    launches = launched(nested(), *(calls(*((MAIN, at, at + 1, number) for at, number in rows)) for rows in blocks))
    assert launches.in_order is in_order
    if in_order:
        assert owners(launches, 1)[0][0] == (
            1 if min(at for rows in blocks for at, number in rows if number == 1) == 15 else 0
        )


def test_of_calls_with_one_start_the_first_row_counts() -> None:
    table = calls((ENGINE, 60, 60, 9), (MAIN, 30, 30, 2), *((thread, 15, 15, 1) for thread in (MAIN, 201, ENGINE)))
    launches = launched(Rows().range("a", 0, 20).range("b", 10, 20, ENGINE), table)
    assert owners(launches, 1)[0][0] == 0


def test_launches_outside_the_selected_steps_are_left_out() -> None:
    rows = nested().range("Batch 1 |step", 200, 300)
    steps = attribute(rows.build(), steps=slice(1, 2)).steps
    launches = launched(rows, calls((MAIN, 15, 16, 1), (MAIN, 250, 251, 2), (MAIN, 350, 351, 3)), steps=steps)
    assert [owner for owner, _, _ in owners(launches, 1, 2, 3)] == [-2, 2, -2]


segments = st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 9), st.integers(1, 9), st.booleans()), max_size=6)


@settings(max_examples=examples(1000), deadline=None, database=None, derandomize=True)
@given(segments, st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 20), st.integers(0, 5)), max_size=10))
def test_time_in_crossing_ranges_by_brute_force(ranges: list[Any], rows: list[Any]) -> None:
    """A range has all calls of its thread that start and end in it, bounds included, unless it ended elsewhere."""
    schema = {"thread": pl.Int32, "start": pl.Int64, "end": pl.Int64, "foreign": pl.Boolean}
    table = [(thread, start, start + length, foreign) for thread, start, length, foreign in ranges]
    crossing = CrossingRanges(pl.DataFrame(table, schema=schema, orient="row"))
    starts, ends = [start for _, start, _ in rows], [start + length for _, start, length in rows]
    thread = pl.Series([thread for thread, _, _ in rows], dtype=pl.Int32)
    half = len(rows) // 2
    cells = [
        crossing.cells(thread[part], pl.Series(starts, dtype=pl.Int64)[part], pl.Series(ends, dtype=pl.Int64)[part])
        for part in (slice(0, half), slice(half, None))
    ]
    gpu = pl.Series([10**number for number in range(len(rows))], dtype=pl.Int64)
    for _ in range(2):
        crossing.clear()
        crossing.add(pl.concat(cells), gpu)
        crossing.add(pl.Series([None, -1], dtype=pl.Int32), pl.Series([10**12, 10**12]))
        assert crossing.gpu_ns().to_list() == [
            0 if foreign else sum(
                ns for ns, (of, at, length) in zip(gpu, rows, strict=True)
                if of == thread and start <= at and at + length <= end
            )
            for thread, start, end, foreign in table
        ]  # fmt: skip


def test_ranges_of_the_own_domain_come_before_others_of_a_process() -> None:
    """Also before a range of the thread that is no layer, unless that started later; a layer of the thread stays."""
    rows = Rows().range("a Linear |fwd", 0, 100, **OURS).range("a Linear |fwd", 50, 150, **OURS)
    rows.range("x", 10, 15, domain="Forward", kind="start").range("y", 12, 20, domain="Forward", kind="start")
    rows.range("plain", 20, 40, ENGINE).range("b Linear |fwd", 25, 30, ENGINE).range("early", -10, 15, 103)
    launches = launched(
        rows, calls((ENGINE, 5, 5, 1), (ENGINE, 13, 13, 2), (ENGINE, 22, 22, 3), (ENGINE, 27, 27, 4), (103, 5, 5, 5),
                    (103, -5, -5, 6), (MAIN, 60, 60, 7), (ENGINE, 170, 170, 8)),
    )  # fmt: skip
    forest = launches._forest
    texts = forest.labels["text"].gather(forest.tree["label"])
    codes = [owner for owner, _, _ in owners(launches, *range(1, 9))]
    guess = 1 << 29
    named = [(texts[(code or 0) % guess], bool((code or 0) & guess)) if code != -1 else None for code in codes]
    assert named == [
        ("a Linear |fwd", False), ("a Linear |fwd", False), ("plain", False), ("b Linear |fwd", False),
        ("a Linear |fwd", False), ("early", False), ("a Linear |fwd", True), None,
    ]  # fmt: skip
    assert forest.tree["start"][(codes[6] or 0) % guess] == 50


def test_without_steps_no_launch_is_in_one() -> None:
    launches = launched(nested(), calls((MAIN, 15, 16, 1)), steps=without_steps("why"))
    assert owners(launches, 1) == [(1, -1, -1)]
