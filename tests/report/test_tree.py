"""The tree of layers: a line is inside another where its ranges are, and the lines inside never exceed its total."""

from __future__ import annotations

import pytest
from shared_data import shared
from tables import Rows

from annot.report.layer_tree import Line, layer_lines
from annot.runs.run import Run

REAL = (
    "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz", "kineto/tracelens_h100_bert_small_nnmodule.json.gz",
    "kineto/hta_cpu_only.json.gz", "kineto/hta_recsys_a100_cudagraph.json.gz",
    "kineto/graph_pairs/sglang_decode/execution.json.gz", "kineto/graph_pairs/vllm_decode_full/execution.json.gz",
)  # fmt: skip


def _lines(run: Run) -> list[Line]:
    report = run.view(total=True, expand=[""])
    lines = layer_lines(report.tree_rows, report.every, report.nesting)
    for line in lines:
        assert sum(one.get(report.time) or 0 for one in line.inside) <= (line.get(report.time) or 0)
    return lines


def _labels(rows: Rows) -> list[str]:
    return [f"{'  ' * line.depth}{line.label} {line.module}" for line in _lines(Run(rows.build()))]


def test_a_loss_outside_the_model_is_beside_it() -> None:
    """The total of the model does not include it. A loss that the model calls is inside."""
    rows = Rows().range("Forward MLP |fwd", 0, 100).range("fc Linear |fwd", 10, 40)
    assert _labels(rows.range("Loss MSELoss |fwd", 110, 120)) == ["(model) MLP", "  fc Linear", "Loss MSELoss"]
    rows = Rows().range("Forward MLP |fwd", 0, 100).range("fc Linear |fwd", 10, 40)
    assert _labels(rows.range("Loss MSELoss |fwd", 50, 60)) == ["(model) MLP", "  fc Linear", "  Loss MSELoss"]


def test_a_layer_that_also_runs_alone_is_beside_its_model() -> None:
    """Only a line that contains all calls of a layer has it inside."""
    rows = Rows().range("Forward Net |fwd", 0, 100).range("encoder Encoder |fwd", 10, 40)
    rows.range("encoder.fc Linear |fwd", 20, 30).range("encoder Encoder |fwd", 200, 290)
    assert _labels(rows) == ["(model) Net", "encoder Encoder", "  fc Linear"]


def test_layers_run_inside_the_layer_that_runs_their_compiled_graph() -> None:
    """The kernels of a graph are beside it, also those that fuse several layers: it has its own time only."""
    rows = Rows().range("Forward Net |fwd", 0, 100).range("Forward CompiledGraph#0 |fwd", 10, 90)
    rows.range("0 Linear |fwd", 20, 30).range("1+0 ReLU+Linear |fwd", 40, 80)
    assert _labels(rows) == ["(model) Net", "  (graph) CompiledGraph#0", "  0 Linear", "  1+0 ReLU+Linear"]


def test_a_model_inside_another_model_keeps_its_whole_path() -> None:
    """A path that is no prefix is written in full."""
    rows = Rows().range("G Net |fwd", 0, 100).range("D.fc Linear |fwd", 10, 40)
    assert _labels(rows) == ["G Net", "  D.fc Linear"]


@pytest.mark.parametrize("name", REAL)
def test_lines_inside_add_up_to_the_total_at_most(name: str) -> None:
    """In traces of training, of compiled programs, and of replayed graphs whose layers a capture names."""
    assert _lines(Run(str(shared(name))))
