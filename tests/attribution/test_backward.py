"""Backward work that other threads launch: by sequence number to the forward layer, else by time."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from shared_data import shared
from tables import ENGINE, MAIN, Rows

from annot import correlate
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer, by_op
from annot.attribution.range_trees import forward_rows
from annot.attribution.summary import summarize
from annot.profile import Profile
from annot.read.formats import load

OTHER = 103


def row_of(rows: pl.DataFrame, **key: str) -> dict[str, Any]:
    return rows.row(by_predicate=pl.all_horizontal(pl.col(name) == value for name, value in key.items()), named=True)


def op(rows: Rows, text: str, start: int, end: int, thread: int, **more: Any) -> Rows:
    return rows.range(text, start, end, thread, **more)


@pytest.fixture
def training() -> Profile:
    """A block with a linear layer, annotated by annot and emit_nvtx; its backward runs on the engine's thread."""
    rows = Rows().range("block Block |fwd", 0, 100).range("block.fc Linear |fwd", 10, 60)
    rows.range("aten::linear, seq = 5, op_id = 1", 20, 50).range("aten::addmm, seq = 5, op_id = 2", 25, 45)
    rows.kernel(30, (30, 37), name="gemm")
    rows.range("aten::relu, seq = 6, op_id = 3", 70, 90).kernel(75, (75, 77))
    rows.range("autograd::engine::evaluate_function: AddmmBackward0, op_id = 9", 200, 300, ENGINE)
    rows.range("AddmmBackward0, seq = 5, op_id = 10", 210, 290, ENGINE)
    rows.range("aten::mm, op_id = 11", 220, 280, ENGINE).kernel(230, (230, 241), ENGINE, name="gemm")
    return rows.build()


def test_sequence_number_leads_to_the_layer(training: Profile) -> None:
    """The kernel of AddmmBackward0 belongs to the backward pass of the layer that ran addmm."""
    rows = correlate(training)
    backward = row_of(rows, layer="block.fc", phase="backward")
    columns = ("module", "calls", "host_ns", "gpu_ns", "gpu_by_sequence_ns", "kernels")
    assert [backward[name] for name in columns] == ["Linear", 1, 100, 11, 11, 1]
    assert row_of(rows, layer="block.fc", phase="forward")["gpu_self_ns"] == 7
    assert row_of(rows, layer="block", phase="backward")["gpu_ns"] == 11, "and to the layer around it"
    assert row_of(rows, layer="block", phase="forward")["gpu_ns"] == 9


def test_operations_are_part_of_their_layer(training: Profile) -> None:
    """Where layers are named, operations have no rows. The report by operation has them, in the phase of the layer."""
    assert set(correlate(training)["layer"]) == {"block", "block.fc"}
    operations = by_op(attribute(training)).select("op", "phase", "kernels").rows()
    assert ("aten::addmm", "forward", 1) in operations
    assert ("aten::linear", "forward", 0) in operations
    assert ("aten::mm", "backward", 1) in operations


def test_without_layers_operations_are_the_rows() -> None:
    """A profile of emit_nvtx alone shows the outermost operations, with the time of their backward operations."""
    rows = Rows().range("aten::mm, seq = 5", 0, 10).kernel(5, (5, 7))
    rows.range("MmBackward0, seq = 5", 20, 30, ENGINE).kernel(25, (25, 28), ENGINE)
    table = correlate(rows.build())
    assert row_of(table, layer="aten::mm", phase="other")["gpu_ns"] == 2
    assert row_of(table, layer="aten::mm", phase="backward")["gpu_by_sequence_ns"] == 3
    assert table["gpu_ns"].to_list() == [2, 3]


def operations(*rows: tuple[int, int, str, int, int | None]) -> pl.DataFrame:
    """Operations as thread, start, role, sequence, forward thread."""
    table = [
        {
            "row": number,
            "process": 1,
            "thread": thread,
            "start": start,
            "role": role,
            "sequence": sequence,
            "forward_thread": of,
        }
        for number, (thread, start, role, sequence, of) in enumerate(rows)
    ]
    return pl.DataFrame(table, infer_schema_length=None, schema_overrides={"forward_thread": pl.Int64})


def test_the_last_forward_operation_before_it() -> None:
    """Of operations with one number, also where numbers come again, the last before the backward one counts."""
    table = operations(
        (MAIN, 0, "operator", 5, None),
        (MAIN, 3, "operator", 5, None),
        (ENGINE, 9, "backward", 5, None),
        (MAIN, 20, "operator", 5, None),
        (ENGINE, 29, "backward", 5, None),
        (ENGINE, 30, "backward", 6, None),
    )
    assert forward_rows(table).rows() == [(2, 1), (4, 3)]


def test_numbers_of_two_forward_threads() -> None:
    """Counts are per thread: without knowing the thread there is no telling, with it there is."""
    forward = [(MAIN, 0, "operator", 5, None), (OTHER, 1, "operator", 5, None)]
    assert forward_rows(operations(*forward, (ENGINE, 9, "backward", 5, None))).is_empty()
    assert forward_rows(operations(*forward, (ENGINE, 9, "backward", 5, MAIN))).rows() == [(2, 0)]


def test_by_time_only_where_nothing_else_tells() -> None:
    """A thread without ranges: its launch follows the innermost range of another thread then, in its own column."""
    rows = Rows().range("train", 0, 100).range("Backward", 20, 80).kernel(30, (30, 35), ENGINE).kernel(40, (40, 47))
    table = correlate(rows.build())
    backward = row_of(table, layer="train › Backward")
    assert (backward["gpu_self_ns"], backward["gpu_by_time_ns"], backward["kernels"]) == (12, 5, 2)
    assert row_of(table, layer="train")["gpu_ns"] == 12
    assert summarize(attribute(rows.build()))["gpu_by_time_ns"] == 5


def test_no_range_of_another_process_is_taken() -> None:
    """A launch of another process stays without a range, whatever ran at the time."""
    rows = Rows().range("train", 0, 100).kernel(30, (30, 35), 201)
    assert correlate(rows.build()).select("layer", "module").rows()[1:] == [("(unattributed)", "launched in no range")]


def test_graph_launch_spreads_over_the_captured_layers() -> None:
    """Kernels of a CUDA graph belong to the layers in which they were captured, inside the range of the launch."""
    rows = Rows().range("a Linear |fwd", 0, 10).range("b Linear |fwd", 10, 20).range("Batch 3 |step", 100, 200)
    rows.kernel(150, (150, 152), origin_thread=MAIN, origin_start=5)
    rows.kernel(150, (152, 157), origin_thread=MAIN, origin_start=15)
    table = correlate(rows.build())
    assert row_of(table, layer="a")["gpu_self_ns"] == 2
    assert row_of(table, layer="b")["gpu_self_ns"] == 5
    batch = row_of(table, layer="(batch)")
    assert (batch["gpu_ns"], batch["gpu_self_ns"], batch["gpu_busy_ns"], batch["gpu_span_ns"]) == (7, 0, 7, 7)
    assert row_of(table, layer="a")["gpu_ns"] == 2


def test_origin_of_work_without_a_launch() -> None:
    """Work without a launch row belongs where the file says that it came from."""
    rows = Rows().range("a Linear |fwd", 0, 10).kernel(None, (50, 53), origin_thread=MAIN, origin_start=5)
    result = attribute(rows.build())
    assert by_layer(result).select("layer", "gpu_self_ns").rows() == [("a", 3)]
    assert summarize(result)["unattributed_gpu_ns"] == 0


def test_real_training_with_modules_and_sequence_numbers() -> None:
    """ResNet18 on an MI300: the backward kernels of a profile that nobody annotated reach the modules."""
    result = attribute(load(shared("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz")))
    meta, rows = summarize(result), by_layer(result)
    convolutions = rows.filter((pl.col("module") == "Conv2d") & (pl.col("phase") == "backward"))
    assert convolutions["layer"].n_unique() == 20
    assert convolutions["gpu_by_sequence_ns"].sum() > 0.3 * meta["gpu_ns"]
    assert meta["gpu_ns"] == meta["attributed_gpu_ns"] + meta["unattributed_gpu_ns"]
