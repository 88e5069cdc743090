"""Texts that other tools write: what layer, phase and shapes they name."""

from __future__ import annotations

import pytest
from tables import Rows

from annot.correlate import correlate
from annot.correlate.dialects import understand


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
        ("layer:encoder.3", "encoder.3", "forward"),
        (
            "{'Module': 'model.layers.0.mlp', 'Inputs': [[2, 8], [4]], 'StaticParams': {}}",
            "model.layers.0.mlp",
            "forward",
        ),
        ("Thunk:#name=fusion.3,hlo_op=fusion.3#", "Thunk fusion.3", "other"),
        ("XlaModule:#hlo_module=jit_f,program_id=3#", "XlaModule jit_f", "other"),
        ("model/dense/MatMul:MatMul", "model/dense", "forward"),
        ("gradient_tape/model/dense/MatMul_1:MatMul", "model/dense", "backward"),
    ],
)
def test_dialects(text: str, layer: str, phase: str) -> None:
    """Each dialect gives layer and phase."""
    said = understand(text)
    assert said is not None
    assert (said.layer, said.phase) == (layer, phase)


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


def test_pyprof_profile() -> None:
    """Markers of PyProf nest in its layer ranges, and count to them; its own row stands by itself without."""
    rows = Rows().range("layer:fc", 0, 100).range("{'traceMarker': ['a.py:3']}", 10, 90)
    rows.range("{'mod': 'torch', 'op': 'mm', 'args': []}", 20, 80).kernel(30, (30, 37))
    assert correlate(rows.build()).select("layer", "phase", "gpu_self_ns").rows() == [("fc", "forward", 7)]
