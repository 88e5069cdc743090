"""`annot try --layers`: layers of a real program alone, and its errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import pytest
from commands import annot, last_line

from annot.cli.schema import schema_of

TRAIN = """
import torch
from torch import nn

torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return x + self.out(self.fc(x).relu())

net = nn.Sequential(nn.Linear(8, 64), *[Block() for _ in range(2)], nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
try:
    for step in range(10_000):
        loss = net(torch.randn(32, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
finally:
    print("finally ran at step", step + 1)
"""


@pytest.mark.slow
def test_layers_of_a_program(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(TRAIN)
    options = ("--change", "bf16,tf32", "--repeat", 6, "--steps", 5, "--extract", "layer.py", "--format", "json")
    words = ("try", "--layers", "[12]", *options, "-o", "out", "--")
    done = annot(*words, sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode in (0, 5), done.stderr.decode()
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, schema_of("try_layers"))
    assert answer["step_ns"] > 0
    layer = answer["layers"][0]
    assert (layer["path"], layer["kind"], layer["layers"], layer["calls"], layer["backward"]) == (
        "1",
        "Block",
        2,
        2,
        True,
    )
    assert layer["share"] > 0
    bf16, tf32 = layer["gains"]
    assert bf16["low"] <= bf16["speedup"] <= bf16["high"]
    assert bf16["numbers"] == "rounding"
    assert tf32["reason"] == "it acts only on CUDA devices, and the layer runs on cpu"
    assert (tmp_path / "out" / "layers.txt").read_text() == "finally ran at step 8\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer.pt2", "layer.py", "out", "train.py"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    Path(tmp_path, "file").touch()
    done = annot("try", "--layers", "x", "-o", "file/out", "--", sys.executable, "train.py", cwd=tmp_path)
    assert (done.returncode, last_line(done.stderr)) == (1, "annot: error: file/out cannot be written: Not a directory")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--extract", "layer.py"], "--extract needs --layers: annot try --layers 'blocks.*'"),
        (["--layers", "x", "--change", "fused"], "--change with --layers expects one of compile, compile-blocks"),
        (["--layers", "x", "--format", "html"], "--format html cannot be combined with --layers"),
        (["--layers", "[z-a]"], "--layers: '[z-a]' is not a valid path pattern"),
    ],
)
def test_wrong_arguments(tmp_path: Path, words: list[str], message: str) -> None:
    done = annot("try", *words, "--", "python", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert message in last_line(done.stderr)
