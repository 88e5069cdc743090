"""Exceptions that come from outside, at every point where CPython lets a signal handler raise."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import forked
import pytest
from captured import capture
from interrupted import IS_NATIVE, Timeout, interrupt_at, where
from random_inputs import TIMES

torch = pytest.importorskip("torch")
nn = torch.nn

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.emit import client, outermost  # noqa: E402
from annot.torch import optimizer as optimizers  # noqa: E402
from annot.torch import ranges  # noqa: E402

PATH = os.pathsep.join([str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent), *sys.path])

STRIDE = 1 if TIMES > 0.1 else 3
"""From one point to the next: `make test-all` tries them all."""


class Model(nn.Module):
    """Arguments by keyword, and an output that is no tensor: these go the longer ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        """Return the output by name."""
        return {"y": self.layer(x) * scale}


def state() -> dict[str, Any]:
    """Return all that a block changes."""
    return {
        "call": nn.Module.__call__,
        "engine": torch.autograd.Variable._execution_engine,
        "replicate": nn.Module._replicate_for_data_parallel,
        "step": torch.optim.SGD.step,
        "zero_grad": torch.optim.Optimizer.zero_grad,
        "clip": nn.utils.clip_grad_norm_,
        "hooks": (len(optimizers._before), len(optimizers._after)),
        "modes": torch._C._len_torch_function_stack(),
        "watcher": torch._C._dynamo.eval_frame.set_eval_frame(None),
        "depth": client.depth(),
        "kinds": set(outermost._open.kinds),
        "open": dict(ranges._INSTALLED._open),
        "names": list(ranges._INSTALLED._sites._open),
        "blocks": dict(ranges._INSTALLED._blocks),
        "sites": dict(ranges._INSTALLED._sites.by_id),
        "undo": list(ranges._INSTALLED._undo),
        "followers": list(annot.emit.loop.followers.of_batches),
    }


@pytest.mark.parametrize(
    ("options", "stride"),
    [
        pytest.param({}, 11, id="some"),
        pytest.param({}, STRIDE, id="all", marks=pytest.mark.slow),
        pytest.param({"ops": True}, STRIDE, id="ops", marks=pytest.mark.slow),
        pytest.param({"memory": True}, 5, id="memory", marks=pytest.mark.slow),
        pytest.param({"schedule": annot.schedule(active=1)}, 5, id="schedule", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_interrupt_anywhere_reaches_the_user(
    tmp_path: Path, request: pytest.FixtureRequest, options: dict[str, Any], stride: int
) -> None:
    """And leaves nothing installed, no range open, and nothing that a later block would stumble over."""
    model, x = Model(), torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def work() -> None:
        with emit_ranges(model, **options):
            for _ in annot.batches([0]):
                optimizer.zero_grad()
                model(x, scale=2.0)["y"].sum().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    def every_point() -> None:
        number = 0
        while interrupt_at(number, work, (Timeout, KeyboardInterrupt)[number % 2]):
            # Functions of Python that open and close ranges, as with memory=True, may be left before they begin.
            if not IS_NATIVE or "memory" in options:
                client.pop_to(0)
            assert state() == before, f"point {number}, {where}"
            number += stride
        assert number > 500

    gc.collect()
    gc.disable()  # what callbacks and finalizers of garbage raise is lost in any program
    request.addfinalizer(gc.enable)
    client.pop_to(0)  # what other tests have left
    capture(tmp_path, work)
    before = state()
    expected = capture(tmp_path, work).trees
    with annot.record(tmp_path / "interrupted.sqlite"):
        every_point()
    assert capture(tmp_path, work).trees == expected


@pytest.mark.slow
def test_an_interrupt_where_modules_die_reaches_the_user(tmp_path: Path) -> None:
    """CPython prints and drops what is raised in the callback of a weak reference: none of annot's runs Python."""

    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Sequential(nn.Linear(3, 3), nn.ReLU())(nn.ReLU()(x))  # type: ignore[no-any-return]

    model, x = Makes(), torch.ones(2, 3)

    def work() -> None:
        with emit_ranges(model, exclude="**.1"):
            optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.0)
            for _ in range(3):
                model(x)
                optimizer.step()

    def every_point() -> None:
        number = 0
        while interrupt_at(number, work, Timeout):
            if not IS_NATIVE:
                client.pop_to(0)
            number += STRIDE
        assert number > 200

    capture(tmp_path, work)
    expected = capture(tmp_path, work).trees
    with annot.record(tmp_path / "interrupted.sqlite"):
        every_point()
    assert capture(tmp_path, work).trees == expected
    inside = ("Sequential>", "Sequential.0>")
    assert expected[0] == ("Makes>", inside)


@pytest.mark.parametrize("nested", [False, True])
def test_an_error_on_entry_leaves_nothing_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    """Nor does it take anything from a block around it."""
    around, model, x = Model(), Model(), torch.ones(2, 3)

    def add_model(*_: object, **__: object) -> None:
        raise RuntimeError("this model does not let itself be looked at")

    def enter() -> None:
        before = state()
        with monkeypatch.context() as patch:
            patch.setattr(ranges.Sites, "add_model", add_model)
            with pytest.raises(RuntimeError, match="looked at"), emit_ranges(model):
                pass
        assert state() == before

    def body() -> None:
        with emit_ranges(around, name="") if nested else nullcontext():
            enter()
            around(x)
        with emit_ranges(model):
            model(x)

    tree = ("Model>", ("layer>", "layer.0>", "layer.1>"))
    assert capture(tmp_path, body).trees == [tree] * (1 + nested)


@pytest.mark.slow
def test_an_interrupt_of_the_first_entry(tmp_path: Path) -> None:
    """What is looked up once in a process is looked up by the next block, if an interrupt has ended the first."""
    program = """
import os, torch
from test_interrupts import Model, Timeout, emit_ranges, interrupt_at
def work():
    with emit_ranges(model): model(torch.ones(2, 3))["y"].sum().backward()
torch.set_num_threads(1)
model = Model()
for number in range(100):
    child = os.fork()
    if not child:
        reached = interrupt_at(number, work, Timeout)
        work()
        os._exit(not reached)
    assert os.waitpid(child, 0)[1] == 0, number
print("survived")
"""
    done = forked.python(program, cwd=tmp_path, env={**os.environ, "ANNOT_ENABLE": "1", "PYTHONPATH": PATH})
    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr[-3000:]


SIGNALS = """
import random, signal, sys, warnings
warnings.simplefilter("ignore")
import torch, annot
from annot import emit_ranges, record
from annot.emit import client
torch.set_num_threads(1)

class Timeout(Exception): pass
class Vanished(Exception): pass
class Sub(torch.nn.Module):
    def __init__(self): super().__init__(); self.fc, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)
    def forward(self, x, *, scale=1.0): return {"y": self.norm(self.fc(x)) * scale}
class Model(torch.nn.Module):
    def __init__(self): super().__init__(); self.subs = torch.nn.ModuleList([Sub() for _ in range(3)])
    def forward(self, x):
        for sub in self.subs: x = sub(x, scale=0.5)["y"]
        return {"y": x}
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
def step():
    torch.set_grad_enabled(True)  # an interrupt may leave it off in PyTorch's own optimizers
    optimizer.zero_grad(); model(torch.ones(random.randint(1, 4), 16))["y"].sum().backward(); optimizer.step()

armed, raised, caught, bad = False, 0, 0, []
def handler(*_):
    global armed, raised
    if armed: armed = False; raised += 1; raise Timeout
signal.signal(signal.SIGALRM, handler)
def attempt(work):
    global armed, caught
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.006))
        while True:
            work()
            if not armed: raise Vanished
    except Timeout: caught += 1
    except Vanished: bad.append("vanished")
    if client.depth(): bad.append(f"{client.depth()} open"); client.pop_to(0)
def with_block():
    with emit_ranges(model): step()

random.seed(1)
step()
with record("signals.sqlite"):
    with emit_ranges(model):
        for _ in range(400): attempt(step)
    for _ in range(400): attempt(with_block)
if torch.nn.Module.__call__ is not torch.nn.Module._wrapped_call_impl: bad.append("still installed")
print(raised - caught, bad)
"""


@pytest.mark.slow
@pytest.mark.skipif(not IS_NATIVE, reason="an __exit__ in Python can be interrupted before its first line")
def test_timeouts_at_random_moments_reach_the_user(tmp_path: Path) -> None:
    """Real signals in a training loop: raised as often as caught."""
    done = forked.python(SIGNALS, cwd=tmp_path)
    assert (done.stdout.strip(), done.returncode) == ("0 []", 0), done.stderr[-3000:]
