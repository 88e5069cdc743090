"""Tables by layer, module, phase, kernel and operation, and the lines of the layer table."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import ENGINE, Rows

from annot.attribution.attribute import Attribution, attribute
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import (
    NO_MODULE,
    NO_OPERATION,
    LineTree,
    by_kernel,
    by_layer,
    by_line,
    by_module,
    by_op,
    by_phase,
    is_layer,
    line_tree,
    modules_of_keys,
    of_modules,
)


def network(rows: Rows, start: int = 0) -> Rows:
    """A step of a network with two layers of one class, its backward pass, and an operation with a kernel in each."""
    rows.range("Batch 0 |step", start, start + 200).range("net Net |fwd", start, start + 50)
    for place, layer in enumerate(("net.a", "net.b")):
        at = start + 5 + 20 * place
        rows.range(f"{layer} Linear [{place + 1},8]f32 |fwd", at, at + 15)
        rows.range("aten::mm", at + 5, at + 10, role="operator").kernel(at + 6, (at + 7, at + 10 + place), name="mm")
        rows.range(f"{layer} Linear |bwd", start + 100 - 20 * place, start + 110 - 20 * place, ENGINE)
        rows.kernel(start + 101 - 20 * place, (start + 120, start + 130), ENGINE, name="back")
    return rows.range("SGD |opt", start + 150, start + 190).kernel(start + 160, (start + 165, start + 166), name="mm")


def lines(attribution: Attribution) -> list[tuple[Any, ...]]:
    """Depth, layer or class, phase, calls and times of each line."""
    rows, depths = [], {-1: -1}
    for row in by_line(attribution).rows(named=True):
        depths.setdefault(row["line"], depths[row["parent"]] + 1)
        rows.append((
            depths[row["line"]], row["layer"] or row["module"], row["phase"], row["calls"], row["host_ns"],
            row["host_self_ns"], row["gpu_ns"], row["gpu_self_ns"],
        ))  # fmt: skip
    return rows


def test_lines_of_a_network() -> None:
    """The backward pass is on the line of its layer; a line has the times of its lines inside by phase."""
    result = attribute(network(Rows()).build())
    assert lines(result) == [
        (0, "(batch)", "other", 1, 110, 110, 0, 0),
        (0, "(batch)", "forward", 0, 50, 0, 7, 0),
        (0, "(batch)", "optimizer", 0, 40, 0, 1, 0),
        (0, "(batch)", "backward", 0, 20, 0, 20, 0),
        (1, "net", "forward", 1, 50, 20, 7, 0),
        (1, "net", "backward", 0, 20, 0, 20, 0),
        (2, "net.a", "forward", 1, 15, 15, 3, 3),
        (2, "net.a", "backward", 1, 10, 10, 10, 10),
        (2, "net.b", "forward", 1, 15, 15, 4, 4),
        (2, "net.b", "backward", 1, 10, 10, 10, 10),
        (1, "SGD", "optimizer", 1, 40, 40, 1, 1),
    ]
    table = by_line(result)
    assert table.select("line", "is_layer", "level").unique(maintain_order=True).rows() == [
        (0, False, -1), (1, True, 0), (2, True, 1), (3, True, 1), (4, False, 0),
    ]  # fmt: skip
    assert table["shapes"].to_list().count(["[1,8]f32"]) == 1
    assert table.filter(layer="net.a", phase="backward").select("own", "gpu_busy_ns").row(0) == ("backward", 10)
    assert table.filter(layer="net", phase="backward").select("own", "gpu_busy_ns").row(0) == (None, None)


def test_tables_of_a_network() -> None:
    result = attribute(network(Rows()).build())
    columns = ["phase", "calls", "host_ns", "gpu_ns", "kernels"]
    assert by_phase(result).select(columns).rows() == [
        ("other", 1, 110, 0, 0), ("forward", 1, 50, 7, 2), ("backward", 2, 20, 20, 2), ("optimizer", 1, 40, 1, 1),
    ]  # fmt: skip
    assert by_op(result).drop("copies").rows() == [
        ("aten::mm", "forward", 2, 10, 7, 2), (NO_OPERATION, "backward", 2, 20, 20, 2),
        (NO_OPERATION, "optimizer", 1, 40, 1, 1), (NO_OPERATION, "other", 1, 110, 0, 0),
        (NO_OPERATION, "forward", 3, 40, 0, 0),
    ]  # fmt: skip
    modules = by_module(result).select("module", "phase", "calls", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")
    assert modules.rows() == [
        ("Net", "forward", 1, 50, 20, 7, 0), ("Linear", "forward", 2, 30, 30, 7, 7),
        ("Linear", "backward", 2, 20, 20, 20, 20), (NO_MODULE, "other", 1, 110, 110, 0, 0),
        (NO_MODULE, "optimizer", 1, 40, 40, 1, 1),
    ]  # fmt: skip
    assert by_kernel(result).drop("kernel").rows() == [("back", 2, 20, 10, 10, 10, 2), ("mm", 3, 8, 2, 1, 4, 3)]
    busy = by_layer(result).select("layer", "phase", "gpu_busy_ns", "gpu_span_ns", "kernels", "kernels_total")
    assert busy.rows()[:3] == [
        ("(batch)", "other", 8, 154, 0, 3), ("net", "forward", 7, 24, 0, 2), ("net.a", "forward", 3, 3, 1, 1),
    ]  # fmt: skip


def test_unattributed_time_is_the_last_row_of_each_table() -> None:
    rows = network(Rows()).kernel(None, (900, 950)).kernel(None, (900, 930), correlation=None)
    rows._copies.append({"process": 1, "device": 0, "start": 960, "end": 963, "correlation": 99, "kind": "HtoD"})
    result = attribute(rows.build())
    assert by_phase(result).row(-1) == (UNATTRIBUTED, 0, 0, 83, 2, 1)
    assert by_op(result).row(-1) == (UNATTRIBUTED, UNATTRIBUTED, 0, 0, 83, 2, 1)
    assert by_module(result).row(-1)[:2] == (UNATTRIBUTED, UNATTRIBUTED)
    assert by_module(result).select("gpu_ns", "gpu_self_ns", "kernels", "copies").row(-1) == (83, 83, 2, 1)
    assert by_layer(result).select("layer", "module", "gpu_ns").rows()[-2:] == [
        (UNATTRIBUTED, "no launch recorded", 53), (UNATTRIBUTED, "no correlation id", 30),
    ]  # fmt: skip
    assert by_kernel(result).filter(pl.col("name") == "k")["layers"].to_list() == [0]
    groups, of_key = modules_of_keys(result.forest.keys.names)
    assert groups == [("Net", "forward"), ("Linear", "forward"), ("Linear", "backward")]
    named = [groups[group] if group >= 0 else None for group in of_key]
    modules = [
        (module, phase) if module and layer != UNATTRIBUTED else None
        for layer, module, phase in result.forest.keys.names
    ]
    assert named == modules


def test_a_profile_without_classes_or_operations_has_no_rows_of_these() -> None:
    result = attribute(Rows().range("train", 0, 9).kernel(5, (6, 8)).kernel(None, (9, 10)).build())
    assert by_module(result).is_empty()
    assert by_op(result).is_empty()
    assert of_modules(by_layer(result)).is_empty()
    assert of_modules(by_layer(attribute(network(Rows()).build()))).height == 7


def test_engine_ranges_are_counted_once_with_their_operation() -> None:
    rows = Rows().range("a Linear |fwd", 0, 50)
    rows.range("autograd::engine::evaluate_function: Mm", 60, 90, role="backward")
    rows.range("Mm", 65, 85, role="backward").kernel(70, (71, 75))
    assert by_op(attribute(rows.build())).filter(op="Mm").drop("copies").rows() == [("Mm", "backward", 1, 30, 4, 1)]


def test_steps_selected_leave_out_operations_of_others() -> None:
    rows = network(network(Rows()), 300)
    whole, last = attribute(rows.build()), attribute(rows.build(), steps=slice(1, 2))
    for table in (by_op, by_phase, by_kernel):
        assert 2 * table(last)["kernels" if table is not by_kernel else "calls"].sum() == 10
    assert 2 * by_op(last)["gpu_self_ns"].sum() == by_op(whole)["gpu_self_ns"].sum()
    assert line_tree(last).same_lines(line_tree(whole))[:5] == [0, 1, 2, 3, 4]


def test_crossing_ranges_have_calls_and_host_time_and_no_own_time() -> None:
    rows = network(Rows()).range("crossing", 40, 60, kind="start").range("crossing", 45, 65, kind="start")
    rows.range("net Net |fwd", 48, 66, kind="start").kernel(58, (70, 75))
    result = attribute(rows.build())
    table = by_layer(result).filter(layer="crossing")
    assert table.select("calls", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns").row(0) == (2, 40, 0, 10, 0)
    crossing = by_line(result).filter(pl.col("layer") == "crossing")
    assert crossing.select("parent", "calls", "host_ns", "level").row(0) == (-1, 2, 0, 0)
    assert by_line(result).filter(layer="net", phase="forward")["calls"].to_list() == [2]


def test_host_time_counts_ranges_that_overlap_inside_once() -> None:
    """Those of processes, such as layers of a graph that run at the same time."""
    started: dict[str, Any] = {"kind": "start", "domain": "annot"}
    rows = Rows().range("Epoch 0 |epoch", 0, 110).range("Batch 0 |step", 0, 100)
    rows.range("a Linear |fwd", 5, 15, **started).range("a Linear |fwd", 10, 18, **started)
    table = by_layer(attribute(rows.build()))
    assert table.select("layer", "host_ns", "host_self_ns").sort("layer").rows() == [
        ("(batch)", 100, 87), ("(epoch)", 110, 10), ("a", 18, 18),
    ]  # fmt: skip


def test_shapes_of_a_layer_are_the_eight_most_frequent() -> None:
    rows = Rows()
    for size in range(10):
        for call in range(1 + size // 2):
            rows.range(f"a Linear [{size}]f32 |fwd", 100 * size + 10 * call, 100 * size + 10 * call + 9)
    (shapes,) = by_layer(attribute(rows.build())).filter(layer="a")["shapes"]
    assert shapes.to_list() == [f"[{size}]f32" for size in (8, 9, 6, 7, 4, 5, 2, 3)]


def test_shapes_of_operators_are_those_of_a_layer_without_shapes() -> None:
    """Only of those that the layer calls directly, with sizes."""
    rows = Rows().range("a Linear |fwd", 0, 100).range("b Linear [9]f32 |fwd", 200, 300).range("SGD |opt", 400, 500)
    for start in (10, 210, 410):
        rows.range("aten::mm", start, start + 20, role="operator", call="aten mm [2,3]f32 |op")
        rows.range("aten::add", start + 5, start + 10, role="operator", call="aten add [7]f32 |op")
    rows.range("aten::size", 50, 55, role="operator", call="aten size []i64 |op").range(
        "aten::x", 60, 65, role="operator"
    )
    table = by_layer(attribute(rows.build()))
    assert dict(table.select("layer", "shapes").iter_rows()) == {"a": ["[2,3]f32"], "b": ["[9]f32"], "SGD": []} | {
        layer: [] for layer in table["layer"] if layer not in ("a", "b", "SGD")
    }


def test_source_of_classes() -> None:
    rows = Rows().range("a Linear |fwd", 0, 9).range("a Linear |bwd", 9, 10).range("b Conv |fwd", 20, 30)
    rows.range("Linear |opt", 40, 50)
    table = by_layer(attribute(rows.build(sources={"Linear": "net.py:7"})))
    assert table["source"].to_list()[:4] == ["net.py:7", "net.py:7", None, None]
    assert "source" not in by_layer(attribute(rows.build())).columns


def test_layers_that_only_a_capture_names_follow_in_the_order_of_their_gpu_activities() -> None:
    """After those with ranges, before unattributed time."""
    rows = Rows().range("Batch 0 |step", 0, 90).range("b Linear |fwd", 110, 120).range("a Linear |fwd", 120, 130)
    rows.range("Batch 1 |step", 100, 190).kernel(15, (200, 201), origin_thread=101, origin_start=115)
    rows.kernel(16, (210, 212), origin_thread=101, origin_start=125).kernel(
        None, (300, 303), origin_thread=101, origin_start=50
    )
    layers = by_layer(attribute(rows.build(), steps=slice(0, 1)))
    assert layers.select("layer", "calls", "gpu_self_ns").rows() == [("(batch)", 1, 3), ("b", 0, 1), ("a", 0, 2)]


@pytest.mark.parametrize(
    ("layer", "module", "phase", "expected"),
    [
        ("fc", "Linear", "forward", True), ("fc", "", "backward", True), ("", "Net", "recompute", True),
        ("", "", "forward", False), ("", "", "backward", False), ("train › x", "", "forward", False),
        ("forward", "", "forward", False), ("forward", "Net", "forward", True), ("aten::mm", "Net", "forward", False),
        ("fc", "Linear", "other", False), ("", "SGD", "optimizer", False), ("backward", "", "forward", True),
    ],
)  # fmt: skip
def test_rows_that_are_layers(layer: str, module: str, phase: str, expected: bool) -> None:
    assert is_layer(layer, module, phase) is expected


trees = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.booleans()), max_size=10)


def tree_of(rows: list[tuple[int, str, bool]]) -> LineTree:
    parents = [min(above, line) - 1 for line, (above, _, _) in enumerate(rows)]
    names = [(name, "", "") for _, name, _ in rows]
    return LineTree(names, parents, [is_layer for _, _, is_layer in rows], [], {})


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(trees, trees)
def test_levels_and_lines_of_another_tree_by_brute_force(rows: list[Any], others: list[Any]) -> None:
    tree, other = tree_of(rows), tree_of(others)

    def chain(of: LineTree, line: int) -> list[int]:
        return [] if line == -1 else [*chain(of, of.parents[line]), line]

    levels: dict[int, int] = {-1: -1}
    for line, parent in enumerate(tree.parents):
        inside = [below for below in range(len(rows)) if line in chain(tree, below) and below != line]
        around = not tree.layers[line] and levels[parent] < 0 and any(tree.layers[below] for below in inside)
        levels[line] = -1 if around else levels[parent] + 1
    assert tree.levels() == [levels[line] for line in range(len(rows))]
    matches: dict[int, int] = {}
    for line in range(len(rows)):
        above = [matches[around] for around in chain(tree, line)[:-1] if matches[around] != -1]
        parent = above[-1] if above else -1
        same = [
            number
            for number, of in enumerate(other.parents)
            if of == parent and other.names[number] == tree.names[line]
        ]
        matches[line] = same[-1] if same else -1
    assert tree.same_lines(other) == [matches[line] for line in range(len(rows))]


def places(rows: Rows) -> list[tuple[str, ...]]:
    """The layers or classes around each line, outermost first, and its own."""
    paths: dict[int, tuple[str, ...]] = {-1: ()}
    tree = line_tree(attribute(rows.build()))
    for line, (parent, name) in enumerate(zip(tree.parents, tree.names, strict=True)):
        paths[line] = (*paths[parent], name[0] or name[1])
    return [paths[line] for line, name in enumerate(tree.names) if name[0] != UNATTRIBUTED]


def test_the_backward_pass_is_on_the_nearest_line_of_its_layer() -> None:
    """A layer that runs in two ranges has two lines; its backward pass is inside what both share."""
    shared = Rows().range("train", 0, 100).range("x", 1, 20).range("a Linear |fwd", 2, 9).range("y", 21, 40)
    shared.range("a Linear |fwd", 22, 30)
    both = [
        ("train",),
        ("train", "train › x"),
        ("train", "train › x", "a"),
        ("train", "train › y"),
        ("train", "train › y", "a"),
    ]
    assert places(shared) == both
    shared.range("a Linear |bwd", 50, 60)
    assert places(shared) == [*both, ("train", "a")]
    inside = Rows().range("train", 0, 100).range("x", 1, 20).range("a Linear |fwd", 2, 9).range("y", 21, 40)
    inside.range("a Linear |fwd", 22, 30).range("a Linear |bwd", 32, 38)
    assert places(inside) == both
    alone = (
        Rows()
        .range("a Linear |fwd", 2, 9)
        .range("z", 20, 40)
        .range("b Linear |bwd", 25, 30)
        .range("a Linear |bwd", 31, 35)
    )
    assert places(alone) == [("a",), ("z",), ("z", "b")]


def test_a_layer_in_itself_is_one_line() -> None:
    rows = Rows().range("a Linear |fwd", 0, 50).range("a Linear |fwd", 5, 45).range("b Linear |fwd", 10, 20)
    assert places(rows.range("a Linear |fwd", 30, 40)) == [("a",), ("a", "b")]
    result = attribute(rows.kernel(7, (8, 9)).build())
    (row,) = by_layer(result).filter(layer="a").rows(named=True)
    assert (row["calls"], row["host_ns"], row["gpu_ns"]) == (3, 50, 1)
    assert [row[3:5] for row in lines(result)][:2] == [(3, 50), (1, 10)]


def test_models_and_optimizers_without_a_path_are_lines_by_class_and_phase() -> None:
    """The phases of a model are one line, a forward pass and an optimizer of one class are two."""
    rows = Rows().range("Forward Net |fwd", 0, 10).range("Backward Net |bwd", 20, 30)
    tree = line_tree(attribute(rows.range("Optimizer Net |opt", 40, 50).range("Data |data", 60, 70).build()))
    assert tree.names[:3] == [("", "Net", ""), ("", "Net", "optimizer"), ("(data)", "", "")]
