"""At which layers a time changed: each change once, whatever contains it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import Rows

from annot.analyze.compare import compare, regressions
from annot.analyze.regression_places import FLAT, Nesting, Times
from annot.attribution import Attribution, attribute


def slower(times: Times) -> bool:
    return times[1] > 1.1 * times[0]


def test_a_change_is_that_of_the_innermost_layer() -> None:
    """net contains block, which contains two layers; only one became slower."""
    nesting = Nesting((([0, 1, 2, 3], [-1, 0, 1, 1]),))
    times = [(100.0, 140.0), (80.0, 120.0), (20.0, 60.0), (60.0, 60.0)]
    assert nesting.at_their_place([0, 1, 2], times, slower) == {2}
    assert FLAT.at_their_place([0, 1, 2], times, slower) == {0, 1, 2}


def test_a_layer_with_a_change_of_its_own_stays() -> None:
    """What the layers inside do not explain is a second change."""
    nesting = Nesting((([0, 1], [-1, 0]),))
    assert nesting.at_their_place([0, 1], [(100.0, 180.0), (20.0, 60.0)], slower) == {0, 1}


def test_many_small_changes_are_that_of_what_contains_them() -> None:
    """If no layer inside counts by itself, the change stays with the layer around."""
    nesting = Nesting((([0, 1, 2], [-1, 0, 0]),))
    assert nesting.at_their_place([0], [(100.0, 120.0), (50.0, 60.0), (50.0, 60.0)], slower) == {0}


def test_layers_inside_themselves_and_each_other_end() -> None:
    """Recursive layers have no innermost one: the search ends, and keeps one of them."""
    nesting = Nesting((([0, 1, 0, 1], [-1, 0, 1, 2]),))
    assert nesting.at_their_place([0, 1], [(10.0, 20.0), (10.0, 20.0)], slower)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8))
def test_trees_against_the_definition(nodes: list[tuple[int, int, int]]) -> None:
    """In a random tree with own times, a kept row is changed without the kept rows inside; a dropped one is not."""
    parents = [-1, *(parent % number for number, (parent, _, _) in enumerate(nodes[1:], 1))]
    times: list[Times] = [(float(a), float(b)) for _, a, b in nodes]
    for node in range(len(nodes) - 1, 0, -1):
        above = parents[node]
        times[above] = times[above][0] + times[node][0], times[above][1] + times[node][1]
    rows = [row for row, one in enumerate(times) if slower(one)]
    kept = Nesting(((range(len(nodes)), parents),)).at_their_place(rows, times, slower)
    assert kept <= set(rows)

    def inside(row: int) -> Times:
        """Times of the outermost kept rows inside a row."""
        children = [child for child, parent in enumerate(parents) if parent == row]
        parts = [times[child] if child in kept else inside(child) for child in children]
        return sum(a for a, _ in parts), sum(b for _, b in parts)

    for row in rows:
        a, b = inside(row)
        rest = times[row][0] - a, times[row][1] - b
        has_kept = (a, b) != (0, 0) or any(_under(one, row, parents) for one in kept)
        assert (row in kept) == (slower(rest) or not has_kept)


def _under(row: int, above: int, parents: list[int]) -> bool:
    while row != above and row != -1:
        row = parents[row]
        if row == above:
            return True
    return False


def _deep(fast: bool, depth: int = 6) -> Attribution:
    """A step of nested blocks, whose innermost layer is fast or slow."""
    rows = Rows().range("Batch 0 |step", 0, 9000)
    for level in range(depth):
        path = ".".join(["net", *("0" * level)])
        rows.range(f"{path} Block [8,8]f32 |fwd", 10 + 10 * level, 5000 - 10 * level)
    rows.kernel(200, (10_000, 10_100 if fast else 10_200), name="gemm").kernel(25, (11_000, 11_400), name="other")
    return attribute(rows.build())


def test_a_deep_regression_is_one_row() -> None:
    """A regression in the innermost of many nested layers is found in this one, and files say what is explained."""
    comparison = compare(_deep(fast=True), _deep(fast=False))
    assert regressions(comparison, 1.05)["layer"].to_list() == ["net.0.0.0.0.0"]
    explained = comparison.rows.filter("explained")["layer"].to_list()
    assert sorted(explained) == sorted(["(batch)", "net", "net.0", "net.0.0", "net.0.0.0", "net.0.0.0.0"])
