"""Host time outside ranges: a row that makes the tables of a profile without GPU activity add up to 100 %."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import MAIN, Rows

from annot.attribution.attribute import Attribution, attribute
from annot.attribution.gpu_time import OUTSIDE_RANGES, UNATTRIBUTED
from annot.attribution.layer_tables import by_layer, by_module, by_op, by_phase
from annot.attribution.summary import summarize


def _outside(attribution: Attribution) -> int:
    """The host time of the row, 0 without it."""
    rows = by_layer(attribution).filter(pl.col("layer") == UNATTRIBUTED)
    assert set(rows["module"]) <= {OUTSIDE_RANGES}
    return int(rows["host_self_ns"].sum())


def test_gaps_between_ranges() -> None:
    """Two ranges with a gap of 30 ns; a range on another thread covers 10 ns of it."""
    rows = Rows().range("a Linear |fwd", 0, 50).range("b Linear |fwd", 80, 100)
    assert _outside(attribute(rows.build())) == 30
    assert _outside(attribute(rows.range("c", 70, 90, thread=MAIN + 1).build())) == 20


def test_every_table_has_it() -> None:
    """By layer, module, phase and operation, the rows add up to the run, and the phase is unattributed."""
    rows = Rows().range("a Linear |fwd", 0, 50).range("aten::mm, op_id = 1", 10, 40).range("b Linear |bwd", 80, 100)
    attribution = attribute(rows.build())
    meta = summarize(attribution)
    assert (meta["host_ns"], meta["wall_ns"], meta["whole_ns"]) == (70, 100, 100)
    for table, name in ((by_layer, "layer"), (by_module, "module"), (by_phase, "phase"), (by_op, "op")):
        times = table(attribution).select(name, pl.col("^host_(self_ns|ns)$").alias("ns") if name == "phase" else
                                          pl.col("host_self_ns").alias("ns"))  # fmt: skip
        assert (times["ns"].sum(), times.filter(pl.col(name) == UNATTRIBUTED)["ns"].to_list()) == (100, [30]), name


def test_a_profile_with_gpu_activity_has_none() -> None:
    """Shares are of the GPU time there."""
    rows = Rows().range("a Linear |fwd", 0, 50).range("b Linear |fwd", 80, 100).kernel(10, (20, 30))
    assert _outside(attribute(rows.build())) == 0


def test_time_in_selected_steps_counts() -> None:
    """Steps named by a program contain 20 of 100 ns outside ranges; the time between steps is that of the run."""
    rows = Rows()
    for step in range(4):
        zero = 150 * step
        rows.range("Data |data", zero, zero + 20).range(f"Batch {step} |step", zero + 40, zero + 100)
    profile = rows.build()
    assert _outside(attribute(profile, steps=slice(1, 3))) == 2 * 20
    assert _outside(attribute(profile)) == 4 * 20 + 3 * 50


spans = st.tuples(st.sampled_from((MAIN, MAIN + 1, 201)), st.integers(0, 40), st.integers(1, 15))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(spans, min_size=1, max_size=10))
def test_rows_add_up_to_the_run(ranges: list[tuple[int, int, int]]) -> None:
    """Brute force over instants: those without a range, from the first to the last range of each process."""
    rows, instants = Rows(), dict[int, set[int]]()
    for number, (thread, start, length) in enumerate(ranges):
        rows.range(f"r{number}", start, start + length, thread=thread)
        instants.setdefault(thread // 100, set()).update(range(start, start + length))
    attribution = attribute(rows.build())
    if attribution.forest.crossing.height:
        return  # the time of ranges that cross others is that of the others
    assert _outside(attribution) == sum(max(busy) + 1 - min(busy) - len(busy) for busy in instants.values())
    meta = summarize(attribution)
    assert by_layer(attribution)["host_self_ns"].sum() == meta["whole_ns"] >= meta["wall_ns"]
    assert by_phase(attribution)["host_ns"].sum() == meta["whole_ns"]


@pytest.mark.parametrize("thread", [MAIN, MAIN + 1])
def test_overlapping_threads_make_the_whole_longer_than_the_run(thread: int) -> None:
    """100 % is the sum of the rows: the run only if no ranges overlap."""
    rows = Rows().range("a", 0, 60).range("b", 20 if thread != MAIN else 60, 100, thread=thread)
    meta = summarize(attribute(rows.build()))
    assert (meta["whole_ns"], meta["wall_ns"]) == (100 if thread == MAIN else 140, 100)
