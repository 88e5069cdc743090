"""`annot run --layers`: models are found when they are called, and have the ranges of `emit_ranges(model)`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from commands import COLLECTORS, annot, needs_recorder
from forked import python
from recorded import environment

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist

from annot import load
from annot.read.recording.export import assemble

pytestmark = needs_recorder

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs g++")

SEARCH = "from annot.collect.model_search import search_when_imported\nsearch_when_imported()\n"
"""What `annot run --layers` does in the process of the script."""
WITHOUT = "train()\n"
WITH = """
import contextlib, annot
with contextlib.ExitStack() as stack:
    for model in models:
        stack.enter_context(annot.emit_ranges(model))
    train()
"""

MLP = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), nn.Linear(8, 2))
models = [model]
def train(loss_of=nn.CrossEntropyLoss()):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=4)
    for epoch in range(2):
        for (x,) in loader:
            loss = loss_of(model(x), torch.tensor([0, 1, 0, 1]))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    print([p.detach().numpy().tobytes().hex() for p in model.parameters()])
"""

GAN = """
import torch
from torch import nn
class Generator(nn.Sequential): pass
class Critic(nn.Sequential): pass
torch.manual_seed(0)
G, D = Generator(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), Critic(nn.Linear(2, 4), nn.Linear(4, 1))
models = [G, D]
steps = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models]
def train():
    for _ in range(3):
        noise = nn.Softmax(dim=1)(torch.randn(5, 3))
        D(G(noise)).sum().backward()
        for step in steps:
            step.step()
            step.zero_grad()
    print([p.detach().numpy().tobytes().hex() for one in models for p in one.parameters()])
"""

PARTS = """
import torch
from torch import nn
class Encoder(nn.Sequential): pass
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 3)
    def forward(self, x):
        return self.decoder(self.encoder(x))
torch.manual_seed(0)
model = Coder()
models = [model]
def train():
    model.encoder(torch.ones(2, 3))
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
    print([p.grad.numpy().tobytes().hex() for p in model.parameters()])
"""

COMPILED = MLP.replace("models = ", "model = torch.compile(model, backend='{backend}')\nmodels = ")
PARALLEL = MLP.replace("models = ", "model = nn.DataParallel(model)\nmodels = ")
DISTRIBUTED = MLP.replace(
    "models = ",
    "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)\n"
    "model = nn.parallel.DistributedDataParallel(model)\nmodels = ",
)


def ran(folder: Path, program: str) -> tuple[list[str], str, str]:
    """Record a program. Return the texts of its ranges, sorted, its output, and its errors.

    Collectives are left out: DistributedDataParallel also has some when it is made, before any block opens.
    """
    folder.mkdir()
    done = python(program, cwd=folder, env=environment(folder / "parts"))
    assert done.returncode == 0, done.stderr
    assemble(folder / "parts", folder / "out.sqlite")
    texts = load(folder / "out.sqlite").ranges["text"].to_list()
    return sorted(text for text in texts if not text.endswith("|coll")), done.stdout, done.stderr


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(MLP, id="one model"),
        pytest.param(GAN, id="two models"),
        pytest.param(PARTS, id="a part is called first"),
        pytest.param(PARALLEL, id="DataParallel"),
        pytest.param(DISTRIBUTED, id="DDP"),
        pytest.param(COMPILED.format(backend="eager"), id="eager", marks=pytest.mark.slow),
        pytest.param(COMPILED.format(backend="aot_eager"), id="aot_eager", marks=pytest.mark.slow),
        pytest.param(COMPILED.format(backend="inductor"), id="inductor", marks=[pytest.mark.slow, needs_compiler]),
    ],
)
def test_ranges_and_bits_are_those_of_emit_ranges(program: str, tmp_path: Path) -> None:
    """Found models have exactly the ranges of a block around the training, and no result changes."""
    found, output, errors = ran(tmp_path / "found", SEARCH + program + WITHOUT)
    expected, as_with_block, _ = ran(tmp_path / "block", program + WITH)
    assert found == expected
    assert any(text.endswith("|fwd") for text in found)
    assert "annot" not in errors
    nothing, plain, _ = ran(tmp_path / "plain", program + WITHOUT)
    assert nothing == []
    assert output == plain == as_with_block


def test_several_models_have_their_class_as_prefix(tmp_path: Path) -> None:
    """The first call finds all models that optimizers update, so that every path says its model."""
    texts, _, _ = ran(tmp_path / "found", SEARCH + GAN + WITHOUT)
    layers = {text.split()[0] for text in texts if text.endswith("|fwd")}
    assert layers == {"Generator", "Generator.0", "Generator.1", "Generator.2", "Critic", "Critic.0", "Critic.1"}


@pytest.mark.parametrize("options", ["", ", ops=True", ", include='0', optimizer=False"])
def test_own_blocks_of_the_script_end_the_search(options: str, tmp_path: Path) -> None:
    """A script that uses emit_ranges has its own ranges once, with its own options, and no others after the block."""
    block = f"import annot\nwith annot.emit_ranges(model{options}):\n    train()\ntrain()\n"
    found, output, _ = ran(tmp_path / "found", SEARCH + MLP + block)
    expected, same, _ = ran(tmp_path / "block", MLP + block)
    assert (found, output) == (expected, same)


def test_own_block_after_a_dry_run_has_no_double_ranges(tmp_path: Path) -> None:
    """A model that was found before its own block keeps its paths, and each call of a layer has one range."""
    dry = "model(torch.ones(4, 3))\n"
    found, _, _ = ran(tmp_path / "found", SEARCH + MLP + dry + WITH)
    expected, _, _ = ran(tmp_path / "block", MLP + WITH.replace("    train()", f"    {dry}    train()"))
    assert found == expected


def test_models_that_come_and_go_are_freed(tmp_path: Path) -> None:
    """Models made in a loop share one name, and annot keeps none of them alive."""
    program = """
import weakref, torch
kept = []
for _ in range(20):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    kept.append(weakref.ref(model))
    del model
print(sum(one() is not None for one in kept))
"""
    texts, output, _ = ran(tmp_path / "found", SEARCH + program)
    assert output == "0\n"
    assert {text.split()[0] for text in texts if text.endswith("|fwd")} == {"Forward", "0"}  # without a prefix
    assert len([text for text in texts if text.endswith("|fwd")]) == 40


def test_failure_is_one_warning_and_the_program_goes_on(tmp_path: Path) -> None:
    """A module that annot cannot read runs without ranges; the warning comes once and the result is the same."""
    program = """
import torch
class Odd(torch.nn.Linear):
    def parameters(self, recurse=True):
        raise RuntimeError("no parameters here")
model = Odd(2, 1, bias=False)
torch.nn.init.ones_(model.weight)
print([model(torch.ones(1, 2)).item() for _ in range(3)])
"""
    texts, output, errors = ran(tmp_path / "found", SEARCH + program)
    assert (texts, output) == ([], "[2.0, 2.0, 2.0]\n")
    assert errors.count("a model runs without ranges: RuntimeError: no parameters here") == 1


@pytest.mark.slow
def test_command_line_reaches_the_script_and_its_children(tmp_path: Path) -> None:
    """`annot run --layers` changes neither output nor status; a child process of the script has ranges too."""
    (tmp_path / "child.py").write_text(MLP + WITHOUT)
    child = "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\nsys.exit(3)\n"
    (tmp_path / "parent.py").write_text(GAN + WITHOUT + child)
    options = ["--collector", "recorder", "--no-report", "-o", "out.sqlite"]
    plain = annot("run", *options, "--", sys.executable, "parent.py", cwd=tmp_path)
    assert "before it opened a range" in plain.stderr.decode()
    found = annot("run", "--layers", "--force", *options, "--", sys.executable, "parent.py", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (3, plain.stdout), found.stderr
    ranges = load(tmp_path / "out.sqlite").ranges
    assert ranges["process"].n_unique() == 2
    assert {"Generator.0 Linear [5,3]f32 out=4 |fwd", "2.0 Linear [4,8]f32 out=8 |fwd"} <= set(ranges["text"])
    (tmp_path / "none.py").write_text("print('no model')\n")
    none = annot("run", "--layers", "--force", *options, "--", sys.executable, "none.py", cwd=tmp_path)
    assert (none.returncode, none.stdout) == (0, b"no model\n")
    assert "called a PyTorch or Keras model" in none.stderr.decode()


TORCHRUN = MLP.replace(
    "models = ",
    "torch.distributed.init_process_group('gloo')\nmodel = nn.parallel.DistributedDataParallel(model)\nmodels = ",
).replace("parameters()])", "parameters()], file=open(f'bits{torch.distributed.get_rank()}', 'w'))")
GLOO_RACE = b"terminate called without an active exception"
"""The end of a rank whose thread of gloo drops its last work, and a Python object in it, while Python finalizes.

It happens in PyTorch 2.13 without annot, too: DistributedDataParallel keeps the process group, and so the thread, after
destroy_process_group().
"""
ENDED = "torch.distributed.barrier()\ntorch.distributed.destroy_process_group()\n"


def torchrun(folder: Path, collector: str, training: str, *options: str) -> tuple[Counter[str], list[str], Path]:
    """Record two ranks. Return the texts of their ranges except collectives, their parameters, and the profile."""
    folder.mkdir()
    (folder / "train.py").write_text(TORCHRUN + training + ENDED)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    kept = ("--collector", collector, "--no-report", "-o", "out.sqlite")
    for _ in range(3):
        done = annot("run", *options, *kept, "--force", "--", sys.executable, *words, cwd=folder)
        if GLOO_RACE not in done.stderr:
            break
    assert done.returncode == 0, done.stderr.decode()
    texts = Counter(load(folder / "out.sqlite").ranges["text"])
    found = Counter({text: number for text, number in texts.items() if not text.endswith("|coll")})
    return found, [(folder / f"bits{rank}").read_text() for rank in range(2)], folder / "out.sqlite"


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize("collector", COLLECTORS)
def test_torchrun(collector: str, tmp_path: Path) -> None:
    """Each rank that torchrun starts has the ranges of a block around the training, and the same results."""
    found, bits, path = torchrun(tmp_path / "found", collector, WITHOUT, "--layers")
    expected, as_with_block, _ = torchrun(tmp_path / "block", "recorder", WITH)
    assert found == expected
    assert bits == as_with_block
    assert len(bits[0]) > 100
    assert found["0 Linear [4,3]f32 out=8 |fwd"] == 2 * 4
    ranks = [(one["rank"], one["world_size"]) for one in load(path).meta["processes"] if "rank" in one]
    assert sorted(ranks) == [(0, 2), (1, 2)]


@pytest.mark.slow
def test_torch_collector_has_the_layers_too(tmp_path: Path) -> None:
    """The trace of torch.profiler has the ranges of the found model."""
    (tmp_path / "train.py").write_text(MLP + WITHOUT)
    options = ["--layers", "--collector", "torch", "--no-report", "-o", "out.json"]
    done = annot("run", *options, "--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 Linear [4,3]f32 out=8 |fwd" in load(tmp_path / "out.json").ranges["text"].to_list()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
def test_keras_on_pytorch(tmp_path: Path) -> None:
    """A Keras model has its layers, epochs and batches from its first fit on, each once."""
    program = """
import importlib.util
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
layers = [keras.Input((3,)), keras.layers.Dense(4, name="fc"), keras.layers.Dense(4, name="out")]
model = keras.Sequential(layers)
models = [model]
model.compile("sgd", "mse", jit_compile=False)
def train():
    model.fit(numpy.ones((8, 3)), numpy.ones((8, 4)), batch_size=4, epochs=2, verbose=0)
"""
    found, _, _ = ran(tmp_path / "found", SEARCH + program + WITHOUT)
    expected, _, _ = ran(tmp_path / "block", program + WITH)
    assert found == expected
    assert sum(text.endswith("|epoch") for text in found) == 2
