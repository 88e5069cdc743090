"""Crossing ranges of a thread, their precedence, and the order of equal ranges."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from range_tables import ranges_of
from tables import ENGINE, MAIN, Rows

from annot.attribution import column_ops
from annot.attribution.attribute import attribute
from annot.attribution.column_ops import innermost_around, spans_of
from annot.attribution.ingest import overlap
from annot.attribution.layer_tables import by_layer
from annot.attribution.nesting import Nodes, in_order, nest

PUSHED, STARTED = {"started": False}, {"started": True}
OURS, OTHERS = {"ours": True}, {"ours": False}


def _ranges(*rows: dict[str, Any]) -> pl.DataFrame:
    """Ranges of one thread with their numbers."""
    schema = {"thread": pl.Int32, "start": pl.Int64, "end": pl.Int64}
    table = [
        {"thread": 0, "foreign": False, **PUSHED, **OURS, "number": number} | row for number, row in enumerate(rows)
    ]
    return pl.DataFrame(table, schema_overrides=schema)


@pytest.mark.parametrize("weaker_first", [True, False])
@pytest.mark.parametrize(
    ("stronger", "weaker"),
    [
        (PUSHED | OTHERS, STARTED | OURS),
        (PUSHED | OTHERS, STARTED | OTHERS),
        (PUSHED | OURS, PUSHED | OTHERS),
        (STARTED | OURS, STARTED | OTHERS),
        (PUSHED | OURS, STARTED | OURS),
    ],
)
def test_of_two_ranges_that_cross_the_pushed_then_the_own_stays(
    stronger: dict[str, Any], weaker: dict[str, Any], weaker_first: bool
) -> None:
    first, second = (weaker, stronger) if weaker_first else (stronger, weaker)
    tree, crossing = nest(_ranges(first | {"start": 0, "end": 10}, second | {"start": 5, "end": 15}))
    assert (tree["number"].to_list(), crossing["number"].to_list()) == ([int(weaker_first)], [int(not weaker_first)])


def test_of_two_equal_ranges_that_cross_the_earlier_stays() -> None:
    tree, crossing = nest(_ranges({"start": 0, "end": 10}, {"start": 5, "end": 15}))
    assert (tree["number"].to_list(), crossing["number"].to_list()) == ([0], [1])


def test_ranges_that_touch_do_not_cross() -> None:
    tree, crossing = nest(_ranges({"start": 0, "end": 10}, {"start": 10, "end": 15}, {"start": 12, "end": 15}))
    assert crossing.is_empty()
    assert tree["parent"].to_list() == [-1, -1, 1]


def test_a_range_that_crosses_only_crossing_ranges_stays() -> None:
    rows = ({"start": 0, "end": 10}, STARTED | {"start": 5, "end": 20}, STARTED | {"start": 12, "end": 30})
    tree, crossing = nest(_ranges(*rows))
    assert (tree["number"].to_list(), crossing["number"].to_list()) == ([0, 2], [1])


def test_a_range_that_ended_on_another_thread_is_outside_the_tree() -> None:
    tree, crossing = nest(_ranges({"start": 0, "end": 10}, {"start": 2, "end": 8, "foreign": True}))
    assert (tree["number"].to_list(), crossing["number"].to_list()) == ([0], [1])


def test_ranges_are_in_order_of_thread_start_longest_first_and_row() -> None:
    rows = [{"thread": 1, "start": 0, "end": 9}, {"start": 5, "end": 6}, {"start": 0, "end": 3}, {"start": 0, "end": 9}]
    ordered = in_order(_ranges(*rows, {"start": 0, "end": 9}))
    assert ordered["number"].to_list() == [3, 4, 2, 1, 0]
    pieces = pl.concat([ordered[:2], ordered[2:]], rechunk=False)
    assert in_order(pieces).n_chunks("all") == [1] * ordered.width
    assert in_order(pieces).equals(ordered)
    columns = [ordered["number"].rename("copy"), *pieces.get_columns()]
    assert in_order(pl.DataFrame(columns)).n_chunks("all") == [1] * len(columns)


def test_the_innermost_range_of_threads_started_last_then_ends_first() -> None:
    rows = [(0, 0, 100), (0, 20, 40), (1, 10, 30), (2, 20, 25)]
    ranges = pl.DataFrame(rows, schema={"thread": pl.Int32, "start": pl.Int64, "end": pl.Int64}, orient="row")
    parent, _ = column_ops.parents(ranges["thread"], ranges["end"])
    tree = column_ops.Tree(ranges["thread"], ranges["start"], ranges["end"], parent)
    instants = [-1, 0, 10, 19, 20, 25, 26, 40, 41, 100, 101]
    calls = pl.DataFrame({"start": instants, "end": instants})
    spans = spans_of(ranges)
    assert spans == {0: (0, 100), 1: (10, 30), 2: (20, 25)}
    for threads in ((0, 1, 2), (2, 1, 0)):
        rows_around = innermost_around(calls, tree, ranges, spans, threads)
        assert rows_around.to_list() == [-1, 0, 2, 2, 3, 3, 1, 1, 0, 0, -1]
    assert innermost_around(calls, tree, ranges, spans, [1]).to_list() == [-1] * 2 + [2] * 5 + [-1] * 4


def test_children_overlap_from_the_first_nanosecond_on() -> None:
    """Children of one parent count where an earlier one still runs; those of other parents and of threads do not."""
    rows = [(0, 90, -1), (0, 10, 0), (9, 20, 0), (12, 15, 0), (20, 30, 0), (30, 40, 1), (30, 40, 2), (0, 5, -1)]
    tree = pl.DataFrame(rows, schema={"start": pl.Int64, "end": pl.Int64, "parent": pl.Int32}, orient="row")
    assert overlap(tree, 1).rows() == [(0, 1 + 3)]
    assert overlap(tree.filter(pl.col("start") != 12), 1).rows() == [(0, 1)]
    assert overlap(tree.filter(~pl.col("start").is_in([9, 12])), 1).is_empty()
    assert overlap(tree, tree.height).is_empty()


@pytest.mark.parametrize("ids", [(3, 5, 9), (9, 5, 3)])
def test_of_equal_ranges_of_a_process_the_inner_layer_is_the_child(ids: tuple[int, int, int]) -> None:
    """The path decides, then the id: three ranges of the same time whose layers contain each other."""
    rows = Rows()
    for layer, number in zip(("net/a/conv", "net", "net/a"), ids, strict=True):
        rows.range(f"{layer} Layer |fwd", 0, 10, MAIN, end_thread=ENGINE, domain="annot", kind="start", id=number)
    ranges = ranges_of(attribute(rows.build()))
    assert ranges["layer"].to_list() == ["net", "net/a", "net/a/conv"]
    assert ranges["parent"].to_list() == [None, 0, 1]


def test_equal_ranges_of_a_process_are_in_order_of_their_ids() -> None:
    """Of equal calls of the outer layer the last in order is the parent."""
    rows = Rows()
    for layer, number in (("net", 8), ("net", 2), ("net/a", 1), ("net", 5)):
        rows.range(f"{layer} Layer |fwd", 0, 10, MAIN, end_thread=ENGINE, domain="annot", kind="start", id=number)
    rows.range("net Layer |fwd", 0, 11, MAIN, end_thread=ENGINE, domain="annot", kind="start", id=9)
    ranges = ranges_of(attribute(rows.build()))
    assert ranges["id"].to_list() == [9, 2, 5, 8, 1]
    assert ranges["parent"].to_list() == [None, None, None, None, 3]


tries = st.lists(st.tuples(st.integers(0, 8), st.integers(-1, 2)), max_size=9)


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(tries)
def test_nodes_by_brute_force(rows: list[tuple[int, int]]) -> None:
    """Chains, ancestors up to a node, and nodes outside others of their group."""
    nodes = Nodes()
    for above, key in rows:
        nodes.extend(min(above, len(nodes)) - 1, [key, key + 10] if key == 0 else [key])
    assert len(set(zip(nodes.parents, nodes.keys, strict=True))) == len(nodes)
    chains: list[list[int]] = []
    for node, parent in enumerate(nodes.parents):
        assert parent < node
        chains.append([*(chains[parent] if parent >= 0 else []), node])
    groups = [key if key != 10 else -1 for key in nodes.keys]
    outermost = nodes.outermost(groups)
    for node, chain in enumerate(chains):
        assert nodes.chain(node) == [nodes.keys[around] for around in chain]
        assert nodes.up(node, -1) == chain[::-1]
        for number, outer in enumerate(chain):
            assert nodes.up(node, outer) == chain[:number:-1]
        inside = groups[node] in [groups[around] for around in chain[:-1]]
        assert outermost[node] == (groups[node] != -1 and not inside)
        assert nodes.extend(-1, nodes.chain(node)) == node
    assert [column.to_list() for column in nodes.columns()] == [nodes.parents, nodes.keys]
    assert Nodes.of(*nodes.columns()).extend(-1, [77]) == len(nodes)


def layers(rows: Rows) -> dict[tuple[str, str], int]:
    table = by_layer(attribute(rows.build())).filter(pl.col("calls") > 0)
    return {(layer, phase): calls for layer, phase, calls in table.select("layer", "phase", "calls").iter_rows()}


@pytest.mark.parametrize("depth", [31, 32, 33, 40])
def test_plain_ranges_are_layers_down_to_the_32nd(depth: int) -> None:
    rows = Rows()
    for level in range(depth):
        rows.range(f"r{'x' * level}", level, 200 - level)
    deepest = " › ".join(f"r{'x' * level}" for level in range(min(depth, 32)))
    assert max(layers(rows), key=lambda key: len(key[0])) == (deepest, "other")
    rows.range("a Linear |fwd", 90, 91).range("forward", 89, 92)
    assert layers(rows)["a", "forward"] == 1


def test_phases_of_plain_ranges() -> None:
    """A range has its own phase or that around it; step beside forward or backward is the optimizer's."""
    rows = Rows().range("train", 0, 100).range("Step", 1, 9).range("backward", 10, 20).range("x", 11, 19)
    rows.range("step", 12, 13).range("optimizer", 30, 40).range("step", 50, 59).range("y", 51, 52)
    assert layers(rows) == {
        ("train", "other"): 1, ("train › Step", "optimizer"): 1, ("train › backward", "backward"): 1,
        ("train › backward › x", "backward"): 1, ("train › backward › x › step", "backward"): 1,
        ("train › optimizer", "optimizer"): 1, ("train › step", "optimizer"): 1, ("train › step › y", "optimizer"): 1,
    }  # fmt: skip


def test_places_of_plain_ranges_leave_out_layers_in_between() -> None:
    """Numbered siblings are one layer; a range inside a layer is no sibling of one beside it."""
    rows = Rows().range("train", 0, 100).range("a Linear |fwd", 1, 20).range("x 1", 2, 3).range("x 2", 30, 31)
    rows.range("x 3", 32, 33).range("y 1", 40, 41).range("outside", 200, 210).range("y 1", 201, 202)
    assert {key[0]: calls for key, calls in layers(rows).items()} == {
        "train": 1, "a": 1, "train › x 1": 1, "train › x #": 2, "train › y 1": 1, "outside": 1, "outside › y 1": 1,
    }  # fmt: skip
