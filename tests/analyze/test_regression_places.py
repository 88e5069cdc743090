"""At which layers a time changed: each change once, whatever contains it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from comparisons import compare, regressions
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import Rows

from annot.analyze.comparison.nesting import Nesting, Times
from annot.attribution.attribute import Attribution, attribute

US = 1000


def slower(_: int, times: Times) -> bool:
    return times[1] > 1.1 * times[0]


def places(rows: list[int], parents: list[int], times: Sequence[Times], among: Sequence[int]) -> dict[int, Times]:
    """The rows at which time grew by more than a tenth."""
    return Nesting(rows, parents).at_their_place(among, times, slower)


def test_a_change_is_that_of_the_innermost_layer() -> None:
    """net contains block, which contains two layers; only one became slower."""
    times = [(20, 20), (0, 0), (20, 60), (60, 60)]
    assert places([0, 1, 2, 3], [-1, 0, 1, 1], times, [0, 1, 2]) == {2: (20, 60)}


def test_a_layer_with_a_change_of_its_own_stays() -> None:
    """What the layers inside do not explain is a second change."""
    assert places([0, 1], [-1, 0], [(80, 120), (20, 60)], [0, 1]) == {1: (20, 60), 0: (80, 120)}


def test_many_small_changes_are_that_of_what_contains_them() -> None:
    """If no layer inside counts by itself, the change stays with the layer around."""
    assert places([0, 1, 2], [-1, 0, 0], [(0, 0), (50, 60), (50, 60)], [0]) == {0: (100, 120)}


def test_a_shared_layer_counts_once_for_each_layer_around() -> None:
    """Two blocks call the same layer, which became slower in one of them: neither block has its change."""
    times = [(10, 10), (30, 90), (10, 10), (70, 70)]
    assert places([0, 2, 1, 2], [-1, 0, -1, 2], times, [0, 1, 2]) == {2: (100, 160)}


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(-1, 4), st.integers(0, 9)), min_size=1, max_size=12))
def test_each_time_counts_once(nodes: list[tuple[int, int, int]]) -> None:
    """Whatever layers contain each other, a time counts to one row: with a row around all, sums are exact."""
    parents = [-1, *(parent % number for number, (parent, _, _) in enumerate(nodes[1:], 1))]
    rows = [max(nodes[0][1], 0), *(row for _, row, _ in nodes[1:])]
    own = [0 if row == -1 else ns for row, (_, _, ns) in zip(rows, nodes, strict=True)]
    times = [(ns, 2 * ns) for ns in own]
    kept = Nesting(rows, parents).at_their_place(
        rows, times, lambda row, times: row == rows[0] or (times[0] + row) % 2 == 0
    )
    assert sum(a for a, _ in kept.values()) == sum(own)
    assert all(b == 2 * a for a, b in kept.values())


Node = tuple[int, int, int]
"""A layer: the layer around it (any number), and its self time in each of two runs."""


def _trained(nodes: list[Node], side: int) -> tuple[Attribution, list[str]]:
    """A step in which each layer launches one kernel, and the paths of the layers."""
    parents = [-1, *(parent % number for number, (parent, _, _) in enumerate(nodes[1:], 1))]
    paths: list[str] = []
    for number, parent in enumerate(parents):
        paths.append(f"{paths[parent]}.{number}" if number else "net")
    rows, clock = Rows(), 10

    def enter(node: int) -> None:
        nonlocal clock
        start, at = clock, clock + 1
        clock += 10
        for child, parent in enumerate(parents):
            if parent == node:
                enter(child)
        rows.range(f"{paths[node]} Block [8,8]f32 |fwd", start, clock)
        if length := nodes[node][side]:
            rows.kernel(at, (US * (1000 + 100 * node), US * (1000 + 100 * node) + length), name="gemm")
        clock += 1

    enter(0)
    rows.range("Batch 0 |step", 0, clock + 10)
    return attribute(rows.build()), paths


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 7), st.sampled_from([0, 1, 400, 20_000]), st.sampled_from([0, 1, 3, 430, 500, 30_000])
        ),
        min_size=2, max_size=9,
    )
)  # fmt: skip
def test_rows_at_their_place_against_the_definition(nodes: list[Node]) -> None:
    """No nanosecond of a change is in two rows, and no row has a change that the rows inside explain."""
    if not any(a for _, a, _ in nodes) or not any(b for _, _, b in nodes):  # host times are compared
        return
    (a, paths), (b, _) = (_trained(nodes, side) for side in (1, 2))
    comparison = compare(a, b)
    changes = {row["layer"]: row for row in comparison.rows.to_dicts()}
    shown = {layer for layer, row in changes.items() if not row["explained"]}
    longer = max(comparison.whole["a_ns"] or 0, comparison.whole["b_ns"] or 0)
    around = {path: path.rpartition(".")[0] for path in paths}
    own = {path: after - before for path, (_, before, after) in zip(paths, nodes, strict=True)}
    around["net"] = "(batch)"

    @cache
    def rest(path: str) -> float:
        """The change of a row without the shown rows inside."""
        inside = [child for child, parent in around.items() if parent == path and child not in shown]
        return own.get(path, 0) + sum(map(rest, inside))

    def above(path: str) -> list[str]:
        return [around[path], *above(around[path])] if path in around else []

    assert comparison.rows["own_difference_ns"].sum() == pytest.approx(comparison.whole["difference_ns"])
    tops = [layer for layer in shown if not shown.intersection(above(layer))]
    assert sum(map(rest, shown)) == pytest.approx(sum(changes[layer]["difference_ns"] for layer in tops))
    for layer, row in changes.items():
        change, left = row["difference_ns"], rest(layer)
        if layer in shown:
            assert row["own_difference_ns"] == pytest.approx(left)
            assert abs(left) + 0.01 >= abs(change) / 4
            continue
        assert row["own_difference_ns"] == (pytest.approx(left) if layer == "(batch)" else None)
        assert abs(left) < 0.001 * longer or abs(left) < abs(change) / 4
        assert shown.intersection(above(layer)) or any(layer in above(one) for one in shown)


def _deep(fast: bool, depth: int = 6) -> Attribution:
    """Steps of nested blocks, whose innermost layer is fast or slow."""
    rows = Rows()
    for step in range(3):
        start = 20_000 * step
        rows.range(f"Batch {step} |step", start, start + 9000)
        for level in range(depth):
            path = ".".join(["net", *("0" * level)])
            rows.range(f"{path} Block [8,8]f32 |fwd", start + 10 + 10 * level, start + 5000 - 10 * level)
        rows.kernel(start + 200, (start + 10_000, start + 10_100 + (0 if fast else 100)), name="gemm")
        rows.kernel(start + 25, (start + 11_000, start + 11_400), name="other")
    return attribute(rows.build())


def test_a_deep_regression_is_one_row() -> None:
    """A regression in the innermost of many nested layers is found in this one, and files say what is explained."""
    comparison = compare(_deep(fast=True), _deep(fast=False))
    assert regressions(comparison, 1.05)["layer"].to_list() == ["net.0.0.0.0.0"]
    explained = comparison.rows.filter("explained")["layer"].to_list()
    assert sorted(explained) == sorted(["(batch)", "net", "net.0", "net.0.0", "net.0.0.0", "net.0.0.0.0"])
