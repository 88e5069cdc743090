"""Ranges that were pushed and never popped: a chain of layers as deep as the loop that forgets them is long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaked_ranges import leaked
from random_inputs import examples
from tables import Rows

from annot.analyze.gpu_activities import sums_by_layer
from annot.analyze.layer_details import spans
from annot.attribution import gpu_time
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.gpu_time import Busy

_PEAK = """
import re, sys
from leaked_ranges import leaked
from annot.runs.run import Run
rows = Run(leaked(5000)).view(columns=sys.argv[1], total=True).rows.height
print(rows, int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10)
"""

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize("columns", ["time", "roofline"])
def test_a_loop_that_never_pops_takes_no_memory_by_the_square(columns: str) -> None:
    """5,000 ranges inside each other are 32 rows, advice and all, in less than 400 MiB; pairs take 1.8 GiB."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, columns], cwd=SUPPORT, capture_output=True, text=True, check=True
    )
    rows, peak = map(int, done.stdout.split())
    assert rows >= 32 or columns == "roofline"  # a plain text is no layer of a model
    assert peak < 400


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9), st.integers(0, 9).map(float)),
        max_size=12,
    ),
    st.lists(st.integers(0, 11), max_size=8),
)
def test_sums_of_what_lies_below(ranges: list[tuple[str, int, int, float]], again: list[int]) -> None:
    """Each layer's sum is that of all nodes in it, once, also of a layer inside itself; so for each step."""
    rows = Rows()
    for place, (text, pops, _, _) in enumerate(ranges):
        rows.range(text, place, 100 - place if pops < 3 else place + 1)
    attribution = attribute(rows.build())
    nodes = len(attribution.forest.nodes)
    given_ = [
        (row[2] % nodes, row[1], row[2], row[3])
        for row in (ranges[i] for i in [*range(len(ranges)), *again] if i < len(ranges))
    ]
    schema = {"node": pl.Int32, "step": pl.Int64, "count": pl.Int64, "weight": pl.Float64}
    values = pl.DataFrame(given_, schema=schema, orient="row")
    for also in ((), ("step",)):
        table = values if also else values.drop("step")
        found = {
            row[: 3 + len(also)]: row[3 + len(also) :] for row in sums_by_layer(attribution, table, *also).iter_rows()
        }
        assert found == (expected(attribution, given_, steps=bool(also)))


def expected(
    attribution: Attribution, values: list[tuple[int, int, int, float]], *, steps: bool
) -> dict[tuple[object, ...], tuple[float, ...]]:
    """Node by node, each with all the layers around it."""
    forest = attribution.forest
    sums: dict[tuple[object, ...], tuple[float, ...]] = {}
    for node, step, count, weight in values:
        for key in set(forest.nodes.chain(node)):
            at = (*forest.keys.names[key], *([step] if steps else []))
            before = sums.get(at, (0, 0))
            sums[at] = (before[0] + count, before[1] + weight)
    return sums


def chain(depth: int) -> tuple[pl.Series, pl.Series]:
    """Parents and keys of nodes of which each lies in the one before."""
    return pl.int_range(-1, depth - 1, dtype=pl.Int32, eager=True), pl.int_range(depth, dtype=pl.Int32, eager=True)


@pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_200_000_layers_inside_each_other_did_is_added_up(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of work in each, on two streams that overlap; told to each layer around it, that would be 2 * 10^10."""
    if not native:
        monkeypatch.setenv("ANNOT_DISABLE_NATIVE", "1")
    depth = 200_000
    union = Busy(*chain(depth))
    at = pl.int_range(depth, dtype=pl.Int64, eager=True)
    device = pl.Series([0], dtype=pl.Int32).new_from_index(0, depth)
    assert union.add(at.cast(pl.Int32), device, at * 10, at * 10 + 12)
    found = union.result()
    assert found["key"].to_list() == list(range(depth))
    assert found["busy_ns"].equals((depth - at) * 10 + 2)
    assert found["first_ns"].equals(at * 10)
    assert (found["last_ns"] == depth * 10 + 2).all()


def test_the_twin_moves_an_interval_few_times_however_deep_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOT_DISABLE_NATIVE", "1")
    moved = 0

    def covered(union: Any, begin: int, end: int) -> None:
        nonlocal moved
        moved += 1
        cover(union, begin, end)

    cover = gpu_time._Union._cover
    monkeypatch.setattr(gpu_time._Union, "_cover", covered)
    depth = 3000
    union = Busy(*chain(depth))
    at = pl.int_range(depth, dtype=pl.Int64, eager=True)
    union.add(at.cast(pl.Int32), at.cast(pl.Int32) * 0, at * 10, at * 10 + 5)
    assert union.result().height == depth
    assert moved <= 2 * depth


def test_a_layer_in_itself_200_000_times_is_one_layer() -> None:
    """Recursion that never ends: all nodes are of one key, and of two that take turns."""
    depth = 200_000
    parent, number = chain(depth)
    at = pl.int_range(depth, dtype=pl.Int64, eager=True)
    for keys in (1, 2):
        union = Busy(parent, number % keys)
        union.add(number, number * 0, at * 10, at * 10 + 5)
        assert union.result()["busy_ns"].to_list() == [(depth - key) * 5 for key in range(keys)]


def test_work_in_more_layers_than_a_picture_shows_counts_to_those_around_it() -> None:
    """32 levels, not as many as there are ranges; the innermost one has all that lies deeper."""
    rows = spans(attribute(leaked(3000))).rows
    names = [f"it_{number}" for number in range(32)]
    assert set(rows["layer"]) == {" › ".join(names[: number + 1]) for number in range(32)}
    assert rows.filter(pl.col("layer") == " › ".join(names))["kernels"].sum() == 3000 - 31
    assert rows.filter(pl.col("layer") == "it_0")["kernels"].sum() == 3000
