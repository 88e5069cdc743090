"""Scripts of single layers run by themselves, with the layer of the program and no data of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from forked import python
from measured_layers import measured
from torch import nn

from annot.errors import AnnotError
from annot.live.layer_extract import _expression, write_layer

STANDARD = [
    nn.Linear(3, 4, bias=False),
    nn.Conv2d(4, 6, (3, 5), stride=2, padding=(1, 0), groups=2),
    nn.ConvTranspose1d(2, 3, 4, output_padding=1, stride=2, bias=False),
    nn.BatchNorm2d(3, eps=1e-3, affine=False),
    nn.LayerNorm((3, 4), bias=False),
    nn.GroupNorm(2, 4, affine=False),
    nn.Embedding(10, 3, padding_idx=2),
    nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    nn.GRU(3, 4, bias=False),
    nn.RNN(3, 4),
    nn.Dropout(0.3, inplace=True),
    nn.GELU("tanh"),
    nn.MaxPool2d(3, 2, ceil_mode=True),
    nn.AdaptiveAvgPool2d((1, None)),
    nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1))),
]


@pytest.mark.parametrize("layer", STANDARD, ids=lambda layer: type(layer).__name__)
def test_layers_of_pytorch_are_made_from_their_arguments(layer: nn.Module) -> None:
    source = _expression(layer)
    assert source is not None
    made = eval(source, {"torch": torch})
    assert repr(made) == repr(layer)
    assert [(n, t.shape) for n, t in made.state_dict().items()] == [(n, t.shape) for n, t in layer.state_dict().items()]


class Own(nn.Linear):
    """Class of a program."""


def hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(lambda module, args: None)
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        Own(2, 2),
        nn.MultiheadAttention(4, 2),  # `bias` and `add_bias_kv` are not among its attributes
        nn.TransformerEncoderLayer(4, 2),
        nn.RNN(3, 4, nonlinearity="relu"),
        nn.Sequential(nn.Linear(2, 2), Own(2, 2)),
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        hooked(),
    ],
    ids=["own", "attention", "encoder", "nonlinearity", "own inside", "parametrized", "hook"],
)
def test_other_layers_are_not_made(layer: nn.Module) -> None:
    assert _expression(layer) is None


def test_a_changed_layer_is_not_made() -> None:
    """Its attributes tell another layer than its parameters."""
    layer = nn.Linear(2, 3)
    layer.weight = nn.Parameter(torch.ones(3, 5))
    assert _expression(layer) is None


class Block(nn.Module):
    """Layer of a program, whose class the script does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tensor([True, False] * 4))
        with torch.no_grad():
            self.fc.weight.fill_(1.25)
            self.fc.weight[0] = 1.5

    def forward(self, x: Any, index: Any, *, scale: float, options: Any = None) -> tuple[Any, Any]:
        y = self.drop(self.fc(self.norm(x))).masked_fill(self.mask, 0)
        return scale * y[index], y.detach()


def written(folder: Path, layer: nn.Module, step: Callable[[], object]) -> Path:
    path = folder / "the layer.py"
    write_layer(measured(layer, [""], step)[0], path)
    return path


@pytest.mark.slow
def test_a_layer_of_a_program_runs_by_itself(tmp_path: Path) -> None:
    layer = Block()

    def step() -> None:
        x = torch.full((6, 8), 77.0, requires_grad=True)
        outputs = layer(x, torch.tensor([0, 5]), scale=0.5, options={"a": (None, [True])})
        outputs[0].sum().backward()

    parameters, batches = [p.tolist() for p in layer.parameters()], int(layer.norm.num_batches_tracked)
    path = written(tmp_path, layer, step)
    assert [p.tolist() for p in layer.parameters()] == parameters
    assert int(layer.norm.num_batches_tracked) == batches + 4
    run = python(path)
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(r"eager: \d+\.\d{3} ms, interquartile range \d+\.\d{3} ms, PyTorch \S+\n", run.stdout)
    text = path.read_text()
    assert "REACHED = [0]" in text
    assert "torch.randint(0, 6, (2,)" in text
    assert "77" not in text
    program = torch.export.load(tmp_path / "the layer.pt2")
    assert program.state_dict["fc.weight"].shape == (8, 8)
    assert not (program.state_dict["fc.weight"] == 1.25).any(), "parameters are random"
    assert float(program.state_dict["fc.weight"].detach().mean()) == pytest.approx(1.28, abs=0.1)
    assert program.state_dict["mask"].tolist() == [True, False] * 4


CHECK = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("layer", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
layer, arguments = script.make_layer(), script.make_arguments()
calls = []
original = torch.autograd.grad
def grad(*args, **kwargs):
    calls.append(original(*args, **kwargs))
    return calls[-1]
torch.autograd.grad = grad
for _ in range(2):
    script.step(layer, arguments, [])
print([None if gradient is None else tuple(gradient.shape) for gradient in calls[-1]])
print([(tuple(x.shape), x.stride(), x.dtype, x.requires_grad) for x in script.tensors_in(arguments)])
print(layer.training)
"""


def test_the_script_has_the_gradients_of_the_training(tmp_path: Path) -> None:
    layer = Block()

    def step() -> None:
        x = torch.ones(8, 6, requires_grad=True).t()
        layer(x, torch.tensor([0, 5]), scale=0.5)[0].sum().backward()

    run = python(CHECK, written(tmp_path, layer, step))
    assert run.returncode == 0, run.stderr
    gradients, inputs, _ = map(str.strip, run.stdout.splitlines())
    assert sorted(map(str, ast.literal_eval(gradients))) == sorted(map(str, [(6, 8), (8,), (8,), (8, 8), (8,)]))
    assert inputs == "[((6, 8), (1, 6), torch.float32, True), ((2,), (1,), torch.int64, False)]"


def test_a_standard_layer_that_changes_its_argument(tmp_path: Path) -> None:
    layer = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2).bfloat16()).eval()

    def step() -> None:
        layer((torch.randn(4, 1, 3, requires_grad=True, dtype=torch.bfloat16) * 1).expand(4, 1, 3)).sum().backward()

    path = written(tmp_path, layer, step)
    assert not path.with_suffix(".pt2").exists()
    run = python(CHECK, path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "[(4, 1, 3), (2, 3), (2,)]", "[((4, 1, 3), (3, 3, 1), torch.bfloat16, True)]", "False",
    ]  # fmt: skip


def test_autocast_and_repeated_elements(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            layer(torch.ones(1, 3).expand(5, 3))

    path = written(tmp_path, layer, step)
    text = path.read_text()
    assert "stack.enter_context(torch.autocast('cpu', torch.bfloat16))" in text
    assert "stack.enter_context(torch.no_grad())" in text
    assert "REACHED = None" in text
    check = CHECK.replace("print([None", "0 and print([None")
    assert python(check, path).stdout.splitlines()[0] == "[((5, 3), (0, 1), torch.float32, False)]"


class Odd(nn.Module):
    """Layer whose graph depends on values."""

    def forward(self, x: Any, by: Any = None) -> Any:
        return x + 1 if float(x.sum()) > 0 else x


class Mask:
    """Argument of a class of the program."""


@pytest.mark.parametrize(
    ("by", "reason"),
    [(None, "torch.export cannot save it: "), (Mask(), "an argument of the layer is a Mask, whose source")],
    ids=["graph", "argument"],
)
def test_a_layer_that_cannot_be_written(tmp_path: Path, by: Any, reason: str) -> None:
    layer = Odd()
    with pytest.raises(AnnotError, match=reason):
        written(tmp_path, layer, lambda: layer(torch.ones(2), by))
    assert list(tmp_path.iterdir()) == []
