"""Layers that are timed alone in a run of a program, which goes on as if they were not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from forked import python

from annot.live.request import LayerRequest, Request, Result

START = """
import sys
from annot.live.start import measure_when_imported
if sys.argv[1]:
    measure_when_imported(sys.argv[1])
"""
MODEL = """
import random, torch
from torch import nn
torch.manual_seed(0)
random.seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc, self.drop, self.calls = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.2), 0
    def forward(self, x):
        self.calls += 1
        return x + self.drop(self.fc(self.norm(x))) * random.random()
model = nn.Sequential(nn.Linear(4, 8), Block(), Block(), nn.Linear(8, 1))
"""
TRAINING = (
    MODEL
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for step in range(8):
    if step == 1:
        with torch.no_grad():
            model.eval()(torch.ones(3, 4))
            model.train()
    loss = model(torch.randn(6, 4)).square().mean()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(loss.item(), [p.grad.sum().item() for p in model.parameters()])
print([t.tolist() for t in model.state_dict().values()], model[1].calls, random.random(), torch.rand(1).item())
print([state["momentum_buffer"].tolist() for state in optimizer.state.values()])
"""
)
INFERENCE = (
    MODEL
    + """
model.eval()
for step in range(8):
    with torch.inference_mode():
        print(model(torch.randn(6, 4)).sum().item())
"""
)
EVALUATES_FIRST = (
    MODEL
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    with torch.no_grad():
        model(torch.randn(6, 4))
for step in range(8):
    loss = model(torch.randn(6, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
)
COMPILED = (
    MODEL
    + """
model = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.randn(6, 4)).square().mean()
    loss.backward()
    optimizer.step()
"""
)


def run(folder: Path, program: str, layer: LayerRequest | None, **options: bool | int) -> tuple[str, Result]:
    """Return what a program prints, and what it measured."""
    request = Request(result=str(folder / "result"), layer=layer, warmup=3, steps=3, **options)  # type: ignore[arg-type]
    run = python(START + program, msgspec.json.encode(request).decode())
    assert run.returncode == 0, run.stderr
    return run.stdout, msgspec.json.decode((folder / "result").read_bytes(), type=Result)


def layers(*patterns: str, extract: str = "") -> LayerRequest:
    names = ["bf16", "sdpa-math"]
    return LayerRequest(patterns=list(patterns), alternatives=names, rounds=2, block_ms=0.01, extract=extract)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(TRAINING, marks=pytest.mark.slow, id="training"),
        pytest.param(INFERENCE, id="inference"),
        pytest.param(EVALUATES_FIRST, marks=pytest.mark.slow, id="both"),
    ],
)
def test_the_program_goes_on_as_before(tmp_path: Path, program: str) -> None:
    without = python(START + program, "").stdout
    printed, result = run(tmp_path, program, layers("1", "2"), keep_going=True)
    assert printed == without
    assert [(times.path, times.kind, times.layers, times.calls) for times in result.layers] == [("1", "Block", 2, 2)]
    times = result.layers[0]
    assert times.skipped == ""
    assert times.backward == (program is not INFERENCE)
    assert times.inputs == "[6,8]f32"
    assert [len(alternative.times_ns) for alternative in times.alternatives] == [2, 2]
    assert result.window_ns is not None
    assert len(result.step_ns) == 6


def test_the_whole_model_is_a_layer(tmp_path: Path) -> None:
    """Its calls between two steps are no steps, also where calls of the model are the steps."""
    without = python(START + INFERENCE, "").stdout
    printed, result = run(tmp_path, INFERENCE, layers(""), keep_going=True)
    assert printed == without
    assert [(times.path, times.kind) for times in result.layers] == [("Sequential", "Sequential")]
    assert result.layers[0].skipped == ""
    assert len(result.step_ns) == 6
    assert result.window_ns


@pytest.mark.slow
def test_the_time_of_layers_belongs_to_no_step(tmp_path: Path) -> None:
    """The steps would take longer than all the layer alone, otherwise."""
    request = LayerRequest(patterns=["1"], alternatives=[], rounds=20, block_ms=20)
    _, result = run(tmp_path, TRAINING, request)
    alone = 20 * 20e6
    assert result.window_ns is not None
    assert result.window_ns < alone
    assert sum(result.step_ns[2:]) < alone


@pytest.mark.slow
def test_the_program_ends_after_the_steps(tmp_path: Path) -> None:
    printed, result = run(tmp_path, TRAINING, layers("1"))
    assert len(printed.splitlines()) == 5
    assert result.ended == "steps"


@pytest.mark.parametrize(
    ("program", "pattern", "reason"),
    [
        (TRAINING, "blocks.*", "no layer of a model has a path that matches the pattern"),
        pytest.param(COMPILED, "1", "the layers were not called one by one in the warm-up", marks=pytest.mark.slow),
    ],
    ids=["pattern", "compiled"],
)
def test_no_layer(tmp_path: Path, program: str, pattern: str, reason: str) -> None:
    _, result = run(tmp_path, program, layers(pattern))
    assert result.layers == []
    assert result.layers_problem.startswith(reason)


def test_a_script_is_written(tmp_path: Path) -> None:
    _, result = run(tmp_path, TRAINING, layers("0", extract=str(tmp_path / "layer.py")))
    assert result.extract_problem == ""
    assert "torch.nn.Linear(in_features=4, out_features=8)" in (tmp_path / "layer.py").read_text()


def test_a_script_that_cannot_be_written(tmp_path: Path) -> None:
    _, result = run(tmp_path, TRAINING, layers("0", extract=str(tmp_path / "missing" / "layer.py")))
    assert "layer.py cannot be written: No such file or directory" in result.extract_problem
    assert result.layers[0].times_ns
