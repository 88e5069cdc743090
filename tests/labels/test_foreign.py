"""Texts that other tools write: what layer, phase and shapes they name."""

from __future__ import annotations

import polars as pl
import pytest
from tables import Rows

from annot import correlate
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import NO_OPERATION, by_op
from annot.labels.foreign import Label, understand


@pytest.mark.parametrize(
    ("text", "layer", "phase"),
    [
        ("Optimizer.step#SGD.step", "", "optimizer"),
        ("Optimizer.zero_grad#AdamW.zero_grad", "", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "(data)", "data"),
        (
            "{'mod': 'torch.nn.functional', 'op': 'conv2d', 'args': [{'name': ''}]}",
            "torch.nn.functional.conv2d",
            "other",
        ),
        ("{'mod': 'LSTM', 'strRepr': '10, 20'}", "LSTM", "other"),
        ("""{'mod': 'GRU', 'strRepr': "10, mode='x'"}""", "GRU", "other"),
        ("{'mod': 'torch.utils.data.dataloader', 'op': 'DataLoader', 'callid': -1}", "(data)", "data"),
        ("{'traceMarker': ['/a/train.py:3', '/a/net.py:7']}", "traceMarker", "other"),
        (
            "{'traceMarker': ['/a/t.py:3'], 'funcStack': '/Net::forward/Block::forward(2)/Linear::forward/linear'}",
            "Net/Block(2)/Linear",
            "forward",
        ),
        ("{'traceMarker': ['/a/t.py:3'], 'funcStack': '/main/train/Optimizer::step/add_'}", "traceMarker", "other"),
        ('{"model_config": {"num_workers": 2, "pin_memory": false}}', "model_config", "other"),
        ("layer:encoder.3", "encoder.3", "forward"),
        (
            "{'Module': 'model.layers.0.mlp', 'Inputs': [[2, 8], [4]], 'StaticParams': {}}",
            "model.layers.0.mlp",
            "forward",
        ),
        ("[pl][module]torch.nn.modules.linear.Linear: layer.0", "layer.0", "forward"),
        ("[pl][module]net.Block: module._fsdp_wrapped_module.h.1._orig_mod", "h.1", "forward"),
        ("Thunk:#name=fusion.3,hlo_op=fusion.3#", "Thunk fusion.3", "other"),
        ("XlaModule:#hlo_module=jit_f,program_id=3#", "XlaModule jit_f", "other"),
    ],
)
def test_dialects(text: str, layer: str, phase: str) -> None:
    """Each dialect gives layer and phase."""
    said = understand(text)
    assert said is not None
    assert (said.layer, said.phase) == (layer, phase)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("ProfilerStep# 12", Label("(batch)", number=12, loop=True)),
        ("Optimizer.step#SGD.step", Label("", "SGD.step", "optimizer")),
        ("[pl][module]torch.nn.Linear: layer.0", Label("layer.0", "Linear", "forward", layered=True)),
        ("layer:encoder.3", Label("encoder.3", phase="forward", layered=True)),
        ("{'mod': 'LSTM', 'strRepr': '10, 20'}", Label("LSTM", role="operator")),
        ("{'traceMarker': ['/a/train.py:3']}", Label("traceMarker", role="operator")),
        (
            "{'traceMarker': ['/a/t.py:3'], 'funcStack': '/Net::forward/Linear::forward(1)/linear'}",
            Label("Net/Linear(1)", "Linear", "forward", layered=True),
        ),
        ("{'Module': 'mlp', 'Inputs': [[2, 8], [4]]}", Label("mlp", "", "forward", "[2,8] [4]", layered=True)),
        ("{'Module': 'mlp'}", Label("mlp", "", "forward", layered=True)),
        ("Thunk:#flow=3#", Label("Thunk")),
        ("attention.linear_qkv", None),
    ],
)
def test_labels_of_other_tools(text: str, label: Label | None) -> None:
    """Loops, layers and operators are told apart."""
    assert understand(text) == label


def test_texts_of_emit_nvtx() -> None:
    """What PyTorch 2.13 writes: name, then sequence number, number of the operation, sizes, and inputs' numbers."""
    rows = Rows().range(
        "aten::linear, seq = 7, op_id = 3, sizes = [[8, 4], [16, 4], []], input_op_ids = [(2,0)]", 0, 30
    )
    rows.range("aten::addmm, seq = 7, op_id = 5, sizes = [[16], [8, 4], [4, 16], [], []]", 5, 25).kernel(8, (10, 17))
    rows.range("aten::relu, seq = 8, sizes = [[]]", 30, 40)
    rows.range("aten::empty, op_id = 9", 40, 50)
    rows.range("autograd::engine::evaluate_function: AddmmBackward0, seq = 7, op_id = 11", 60, 90)
    rows.range("AddmmBackward0, seq = 7, op_id = 12, sizes = [[8, 16]], input_op_ids = [(11,0)]", 62, 88)
    rows.kernel(70, (72, 79))
    profile = rows.build()
    shapes = dict(correlate(profile).filter(phase="other").select("layer", "shapes").rows())
    assert shapes["aten::linear"] == ["[8,4] [16,4]"]
    assert "aten::addmm" not in shapes, "it is part of aten::linear"
    assert shapes["aten::relu"] == []
    operations = {(op, phase): work for op, phase, _, _, work, *_ in by_op(attribute(profile)).iter_rows()}
    assert operations["aten::addmm", "other"] == 7
    assert operations["AddmmBackward0", "backward"] == 7
    assert operations["aten::empty", "other"] == 0


def test_operations_of_annot() -> None:
    """annot's ranges of operations count to the layer around them, and have rows of their own by operation."""
    rows = Rows().range("fc Linear [4,8]f32 |fwd", 0, 100, domain="annot")
    rows.range("fc Linear linear [4,8]f32 [2,8]f32 bias=None |op", 10, 90, domain="annot").kernel(30, (30, 37))
    rows.range("fc Linear relu [4,2]f32 inplace=True |op", 91, 99, domain="annot").kernel(92, (93, 95))
    profile = rows.build()
    columns = ["layer", "module", "phase", "calls", "host_self_ns", "gpu_self_ns", "shapes"]
    assert correlate(profile).select(columns).rows() == [("fc", "Linear", "forward", 1, 100, 9, ["[4,8]f32"])]
    found = by_op(attribute(profile)).select("op", "phase", "calls", "host_self_ns", "gpu_self_ns").rows()
    rest = (NO_OPERATION, "forward", 1, 12, 0)
    assert found == [("linear", "forward", 1, 80, 7), ("relu", "forward", 1, 8, 2), rest]


def test_shapes_of_layerwise_texts() -> None:
    """vLLM's texts carry the shapes of the inputs."""
    said = understand("{'Module': 'm', 'Inputs': [[2, 8], [4]], 'Outputs': [[1]]}")
    assert said is not None
    assert said.shapes == "[2,8] [4]"


@pytest.mark.parametrize(
    "text",
    ["attention.linear_qkv", "a/b", "12:30", "{'x': 1}", "#", "http://host/path", "Batch: 3", "a # b", "## forward ##"],
)
def test_plain_texts(text: str) -> None:
    """What no tool writes is nobody's dialect: the range is a layer named by its text."""
    assert understand(text) is None
    assert correlate(Rows().range(text, 0, 5).build())["layer"].to_list() == [text]


def test_dlprof_profile() -> None:
    """DLProf's markers name the modules around each operation, and numbers lead its backward to the same layer."""
    marker = "{{'traceMarker': ['a.py:3'], 'funcStack': '/main/Net::forward/Linear::forward{}/linear'}}"
    rows = Rows().range('{"model_config": {"num_workers": 0}}', 0, 5)
    for number, again in enumerate(("", "(2)"), 1):
        at = 100 * number
        rows.range(marker.format(again), at, at + 40)
        rows.range(f"{{'mod': 'torch.nn.functional', 'op': 'linear', 'callid': {number}}}", at + 5, at + 35)
        rows.range(f"aten::linear, seq = {number}, op_id = {number}", at + 10, at + 30).kernel(at + 20, (at, at + 7))
    rows.range("AddmmBackward0, seq = 2, op_id = 12", 400, 420).kernel(410, (410, 413))
    found = correlate(rows.build()).filter(pl.col("gpu_self_ns") > 0)
    assert found.select("layer", "module", "phase", "gpu_self_ns").rows() == [
        ("Net/Linear", "Linear", "forward", 7), ("Net/Linear(2)", "Linear", "forward", 7),
        ("Net/Linear(2)", "Linear", "backward", 3),
    ]  # fmt: skip


def test_pyprof_profile() -> None:
    """Markers of PyProf nest in its layer ranges, and count to them; its own row stands by itself without."""
    rows = Rows().range("layer:fc", 0, 100).range("{'traceMarker': ['a.py:3']}", 10, 90)
    rows.range("{'mod': 'torch', 'op': 'mm', 'args': []}", 20, 80).kernel(30, (30, 37))
    assert correlate(rows.build()).select("layer", "phase", "gpu_self_ns").rows() == [("fc", "forward", 7)]
