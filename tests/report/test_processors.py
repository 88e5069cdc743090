"""The processors of a table: each does what its option says, and without options the table stays as it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared

from annot.report.table import PROCESSORS, Options, Table, process, select
from annot.report.views import find_view
from annot.runs.run import Run

PROFILE = "kineto/tracelens_h100_bert_small_nnmodule.json.gz"


@pytest.fixture(scope="module")
def run() -> Run:
    """A network with repeated blocks and a GPU."""
    return Run(shared(PROFILE))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 9))), max_size=20),
    st.one_of(st.none(), st.integers(0, 30)),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_select_keeps_lines_whole(
    pairs: list[tuple[int, int | None]], least: int | None, longest: bool, number: int | None
) -> None:
    """`select` agrees with sums over lists: lines with enough time, the longest first, the first of these."""
    rows = pl.DataFrame([(*pair, place) for place, pair in enumerate(pairs)], ("line", "ns", "place"), orient="row")
    rows = rows.cast({"line": pl.Int64, "ns": pl.Int64})
    times = {line: sum(ns or 0 for other, ns in pairs if other == line) for line, _ in pairs}
    lines = [line for line in times if least is None or times[line] >= least]
    if longest:
        lines.sort(key=lambda line: -times[line])
    kept = [(line, place) for place, (line, _) in enumerate(pairs) if line in lines[:number]]
    if longest:
        kept.sort(key=lambda pair: -times[pair[0]])
    selected = select(rows, "ns", rows["line"], least=least, longest=longest, number=number)
    assert selected["place"].to_list() == [place for _, place in kept]


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: str(processor.__name__))
def test_processors_without_options_change_nothing(processor: Any, run: Run) -> None:
    """Only repeated layers fold without an option."""
    table = run.view("kernel", total=True)
    assert processor(table, Options()) is table


@pytest.mark.parametrize(("by", "columns"), [("layer", "time"), ("layer", "work"), ("kernel", "time")])
@pytest.mark.parametrize("wanted", [{}, {"top": 3}, {"min_share": 0.05}, {"sort": "time"}, {"depth": 1, "top": 2}])
def test_files_have_the_rows_of_tables(by: str, columns: str, wanted: dict[str, Any], run: Run) -> None:
    """A table that is not drawn has the same rows and meta, and no folds."""
    if "depth" in wanted and by != "layer":
        pytest.skip("only layers have a depth")
    drawn, file = (run.view(by, columns, draw=draw, **wanted) for draw in (True, False))
    assert file.rows.equals(drawn.rows)
    assert file.meta == drawn.meta
    assert file.drawn is None
    assert (drawn.drawn is None) == (by == "kernel")


def test_the_longest_are_those_of_the_mean_step() -> None:
    """Shares are of the mean step: dividing comes before selecting. The last processor selects the longest."""
    rows = pl.DataFrame({"phase": ["a", "b", "c"], "calls": [4, 4, 4], "gpu_ns": [10, 30, 60], "host_ns": [None] * 3})
    meta: dict[str, Any] = {"kernels": 4, "copies": 0, "gpu_ns": 100, "whole_ns": 100, "host_ns": None, "notes": []}
    table = Table(find_view("phase"), rows.cast({"host_ns": pl.Int64}), meta)
    for steps, (least, kept) in product((0, 2), ((0.1, ["a", "b", "c"]), (0.1001, ["b", "c"]))):
        result = process(table, Options(steps=steps, min_share=least))
        assert result.rows["phase"].to_list() == kept
        assert result.rows["gpu_ns"].sum() == sum(table.rows["gpu_ns"][-len(kept) :]) / (steps or 1)
        assert result.least == least
    both = process(replace(table), Options(steps=2, sort="time", top=2))
    assert both.rows["gpu_ns"].to_list() == [30, 15]
    assert both.meta["per_step"] == 2
