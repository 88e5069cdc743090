"""Layers of backward operations, of compiled graphs and between hooks of FSDP, from small trees."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer, by_op
from annot.attribution.range_trees import forward_rows, inside_engine_range, loops

operations = st.tuples(
    st.integers(0, 1), st.integers(0, 2), st.integers(0, 9), st.sampled_from(["operator", "backward"]),
    st.integers(0, 2), st.sampled_from([None, 0, 1, 2]),
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None, database=None, derandomize=True)
@given(st.lists(operations, max_size=12))
def test_forward_operations_by_brute_force(rows: list[Any]) -> None:
    """The last one before it with its number: of the thread that the backward operation names, else of the process.

    Without a thread, only one thread of the process may have used the number.
    """
    names = ("process", "thread", "start", "role", "sequence", "forward_thread")
    types = (pl.Int32, pl.Int32, pl.Int64, pl.String, pl.Int64, pl.Int32)
    rows = [(process, 10 * process + thread, start, role, number, None if of is None else 10 * process + of)
            for process, thread, start, role, number, of in rows]  # fmt: skip
    table = pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
    expected = []
    for row, (process, _, start, role, number, of) in enumerate(rows):
        if role == "backward":
            users = [(other[2], place, other[1]) for place, other in enumerate(rows)
                     if other[0] == process and other[3] == "operator" and other[4] == number]  # fmt: skip
            alone = len({thread for _, _, thread in users}) == 1
            among = [
                (at, place)
                for at, place, thread in users
                if at <= start and (thread == of if of is not None else alone)
            ]
            expected += [(row, max(among)[1])] if among else []
    assert forward_rows(table.with_row_index("row")).rows() == expected


def gpu(rows: Rows, **options: Any) -> dict[tuple[str, str], int]:
    table = by_layer(attribute(rows.build(), **options)).filter(pl.col("gpu_self_ns") > 0)
    return {(layer, phase): ns for layer, phase, ns in table.select("layer", "phase", "gpu_self_ns").iter_rows()}


def trained() -> Rows:
    """Two layers with an operation each, whose numbers are 1 and 2."""
    rows = Rows().range("Batch 0 |step", 0, 500).range("Data |data", 1, 9).range("net Net |fwd", 10, 90)
    for number, layer in ((1, "net.a"), (2, "net.b")):
        rows.range(f"{layer} Linear |fwd", 20 * number, 20 * number + 15)
        rows.range("aten::mm", 20 * number + 1, 20 * number + 9, role="operator", sequence=number)
    return rows


def backward(rows: Rows, name: str, start: int, end: int, number: int | None = None, **more: Any) -> Rows:
    return rows.range(name, start, end, ENGINE, role="backward", sequence=number, **more)


def test_backward_operations_have_the_layers_of_their_forward_without_loops() -> None:
    rows = backward(backward(trained(), "MmBackward0", 100, 110, 2), "MmBackward0", 120, 130, 1)
    rows.kernel(105, (200, 203), ENGINE).kernel(125, (210, 215), ENGINE)
    assert gpu(rows) == {("net.b", "backward"): 3, ("net.a", "backward"): 5}
    table = by_layer(attribute(rows.build())).filter(phase="backward")
    assert table.select("layer", "module", "calls", "gpu_ns", "gpu_by_sequence_ns").sort("layer").rows() == [
        ("net", "Net", 0, 8, 0), ("net.a", "Linear", 1, 5, 5), ("net.b", "Linear", 1, 3, 3),
    ]  # fmt: skip
    assert by_op(attribute(rows.build())).filter(op="MmBackward0").select("phase", "calls", "gpu_self_ns").rows() == [
        ("backward", 2, 8)
    ]


def test_backward_operations_inside_the_first_range_of_the_profile() -> None:
    rows = backward(Rows(), "AutogradNode", 100, 200)
    for number, layer in ((1, "a"), (2, "b")):
        rows.range(f"{layer} Linear |fwd", 20 * number, 20 * number + 15)
        rows.range("aten::mm", 20 * number + 1, 20 * number + 9, role="operator", sequence=number)
        backward(rows, "MmBackward0", 100 + 20 * number, 110 + 20 * number, number)
        rows.kernel(105 + 20 * number, (300 + 20 * number, 302 + 21 * number), ENGINE)
    assert gpu(rows) == {("a", "backward"): 3, ("b", "backward"): 4}


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ([1], {("net.a", "backward"): 7}),
        ([1, 1], {("net.a", "backward"): 7}),
        ([1, 2], {("net.a", "backward"): 3, ("net.b", "backward"): 3, ("AutogradNode", "backward"): 1}),
        ([2, 1, 1], {("net.b", "backward"): 3, ("net.a", "backward"): 3, ("AutogradNode", "backward"): 1}),
        ([None], {("AutogradNode", "backward"): 7}),
    ],
)
def test_a_backward_range_without_a_number_takes_the_layer_of_those_inside_if_they_agree(
    inside: list[int | None], expected: dict[tuple[str, str], int]
) -> None:
    rows = backward(trained(), "AutogradNode", 100, 200)
    rows.kernel(101, (300, 301), ENGINE)
    for place, number in enumerate(inside):
        at = 110 + 20 * place
        backward(rows, f"Mm{place}", at, at + 15, number)
        rows.kernel(at + 5, (310 + 10 * place, 313 + 10 * place if place < 2 else 310 + 10 * place), ENGINE)
    total = sum(expected.values())
    result = gpu(rows)
    assert {key for key in result if key[0].startswith("net")} == {key for key in expected if key[0].startswith("net")}
    assert sum(result.values()) == 1 + 3 * min(2, len(inside)) <= total + 3


def test_engine_ranges_around_their_operation() -> None:
    """Only directly around the operation of the same name."""
    rows = Rows()
    for place, (outer, inner, role) in enumerate(
        [("Mm", "Mm", "backward"), ("Mm", "Mm", "operator"), ("Mm", "Add", "backward"), ("Mm", "Mm", "module")]
    ):
        at = 100 * place
        backward(rows, f"autograd::engine::evaluate_function: {outer}", at, at + 90)
        rows.range(inner, at + 10, at + 20, ENGINE, role=role)
    backward(rows.range("Mm", 500, 590, ENGINE, role="operator"), "Mm", 510, 520)
    forest = attribute(rows.build()).forest
    assert inside_engine_range(forest.tree, forest.labels).to_list() == [False, True] * 2 + [False] * 6
    plain = attribute(Rows().range("x", 0, 9).build()).forest
    assert inside_engine_range(plain.tree, plain.labels).to_list() == [False]


def test_loops_are_epochs_batches_and_waits() -> None:
    rows = Rows().range("Epoch 0 |epoch", 0, 99).range("Batch 0 |step", 1, 90).range("Data |data", 2, 3)
    forest = attribute(rows.range("a Linear |fwd", 5, 9).range("x", 10, 12).build()).forest
    assert {forest.keys.names[key][0] for key in loops(forest.labels)} == {"(epoch)", "(batch)", "(data)"}


def test_backward_of_an_operation_in_no_layer() -> None:
    """It is a row with the phase of the backward pass; one whose forward is unknown is too."""
    rows = Rows().range("aten::mm", 0, 9, role="operator", sequence=1)
    backward(backward(rows, "MmBackward0", 20, 30, 1), "Other", 40, 50, 9)
    rows.kernel(25, (60, 62), ENGINE).kernel(45, (70, 73), ENGINE)
    assert gpu(rows) == {("aten::mm", "backward"): 2, ("Other", "backward"): 3}


def compiled() -> Rows:
    """A graph with kernels of two layers of a block and of the model, twice."""
    rows = Rows()
    for run in range(2):
        at = 100 * run
        rows.range("Forward GPT |fwd", at, at + 90).range("Forward CompiledGraph#0 |fwd", at + 5, at + 80)
        for place, kernel in enumerate(("h.0.a+h.0.b", "h.0.a", "ln")):
            rows.range(f"{kernel} |fwd", at + 10 + 20 * place, at + 20 + 20 * place)
            rows.kernel(at + 12 + 20 * place, (at + 12, at + 13 + place))
    return rows.range("h.0 Block |fwd", 300, 310)


def test_layers_of_a_compiled_graph_are_called_once_in_each_run() -> None:
    result = attribute(compiled().build())
    table = by_layer(result).filter(pl.col("layer").is_in(["h.0", "h.0.a", "ln"]))
    columns = table.select("layer", "calls", "gpu_ns", "gpu_self_ns", "host_ns").sort("layer")
    assert columns.rows() == [("h.0", 3, 6, 0, 50), ("h.0.a", 2, 4, 4, 20), ("ln", 2, 6, 6, 20)]
    names, nodes = result.forest.keys.names, result.nodes
    starts = [start for key, start in nodes.select("key", "start").iter_rows() if names[key][0] == "h.0"]
    assert sorted(starts) == [10, 300]


def test_a_layer_in_a_compiled_graph_starts_with_its_first_kernel() -> None:
    rows = Rows().range("Forward CompiledGraph#0 |fwd", 0, 90).range("h.0 Block |fwd", 100, 110)
    for start in (10, 30, 50):
        rows.range("h.0.a |fwd", start, start + 10)
    result = attribute(rows.build())
    places = result.nodes.select("key", "start").iter_rows()
    assert sorted(start for key, start in places if result.forest.keys.names[key][0] == "h.0") == [10]


@pytest.mark.parametrize(("other", "calls"), [("h.0 |fwd", 1), ("h.0 CompiledGraph#1 |fwd", 1), ("h.0 Block |fwd", 2)])
def test_layers_around_a_kernel_of_a_compiled_graph_have_a_class(other: str, calls: int) -> None:
    """Elsewhere in the profile, other than that of a graph."""
    rows = Rows().range("Forward CompiledGraph#0 |fwd", 0, 90).range("h.0.a |fwd", 10, 20).range(other, 100, 110)
    assert by_layer(attribute(rows.build())).filter(layer="h.0")["calls"].to_list() == [calls]


def test_started_ranges_of_processes_come_after_those_of_threads() -> None:
    rows = Rows().range("x", 5, 50, MAIN)
    rows.range("net Net |fwd", 0, 40, kind="start", domain="annot", end_thread=ENGINE)
    rows.range("net/a Linear |fwd", 1, 30, ENGINE, kind="start", domain="annot").range("y", 60, 61)
    forest = attribute(rows.build()).forest
    assert (forest.thread_range_count, forest.tree["parent"].to_list()) == (2, [-1, -1, -1, 2])
    assert forest.every_range().height == 4
    assert forest.label_counts()["count"].sum() == 4
