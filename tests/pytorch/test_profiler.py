"""`torch.profiler` beside annot: no crash, and the events that it has without annot."""

from __future__ import annotations

import ast
import os

import forked
import pytest
from matrices import matrix

pytest.importorskip("torch")

PROGRAM = """
import contextlib, json, sys, tempfile, annot, torch
from torch import nn

class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.inside = contextlib.nullcontext()
    def forward(self, x):
        with self.inside:
            return self.body(x)

def block():
    return annot.emit_ranges(model, **options)

def profiled(with_block, **more):
    with profile(**more) as profiler, (block() if with_block else contextlib.nullcontext()):
        train()
    return events(profiler)

def profile(**more):
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, **more)

def train():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def events(profiler):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        names = [event.get("name", "") for event in json.load(open(file.name))["traceEvents"]]
    shown.append(sorted(name for name in names if name.startswith(("nn.Module", "Optimizer.step"))))
    ranges.append(sum(name.endswith(("|fwd", "|bwd")) for name in names))

def first_in_a_block():
    with block():
        profiled(False)
    profiled(False)

def before_a_block():
    profiled(True)
    profiled(False)

def plain_profile_first():
    profiled(False)
    profiled(True)
    with block():
        profiled(False, with_modules=True, record_shapes=True, profile_memory=True)

def started_in_a_forward():
    with block():
        model.inside = profile()
        train()
        events(model.inside)

def leaving_the_block_meanwhile():
    with contextlib.ExitStack() as stack:
        stack.enter_context(block())
        profiler = profile()
        profiler.start()
        model(torch.ones(2, 4))
        stack.close()
        train()
        profiler.stop()
        events(profiler)

def started_in_c():
    start = torch._C._autograd._enable_profiler
    with block():
        torch.autograd.profiler._enable_profiler, ours = start, torch.autograd.profiler._enable_profiler
        profiled(False)
        torch.autograd.profiler._enable_profiler = ours

shown, ranges = [], []
options = {name: True for name in sys.argv[2:]}
model = Calls()
optimizer = torch.optim.SGD(model.parameters())
call = nn.Module.__call__
globals()[sys.argv[1]]()
assert nn.Module.__call__ is call
print(shown, ranges)
"""

STEP = "Optimizer.step#SGD.step"
MODULES = ["nn.Module: Calls_0", "nn.Module: Linear_0", "nn.Module: Sequential_0", "nn.Module: Tanh_0"]


def run(*arguments: str) -> tuple[list[list[str]], list[int]]:
    """Run the program in a process of its own: PyTorch looks up once what it takes for a module call."""
    environment = {**os.environ, "ANNOT_ENABLE": "1"}
    done = forked.python(PROGRAM, *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    shown, ranges = ast.literal_eval(f"({done.stdout.splitlines()[-1].replace('] [', '], [')})")
    return shown, ranges


@pytest.mark.parametrize(
    ("when", "options"),
    matrix(["first_in_a_block", "before_a_block", "plain_profile_first"], [(), ("ops",), ("memory",)]),
)
def test_the_profiler_has_its_module_events(when: str, options: tuple[str, ...]) -> None:
    """Whenever the profiler starts first, it shows every module call, inside the block and after it."""
    shown, ranges = run(when, *options)
    assert shown == [[STEP, *MODULES]] * len(shown)
    assert ranges == {"first_in_a_block": [9, 0], "before_a_block": [9, 0], "plain_profile_first": [0, 9, 9]}[when]


def test_a_profiler_that_starts_in_a_forward() -> None:
    """The profiler shows the modules that are called from then on."""
    shown, _ = run("started_in_a_forward")
    assert shown == [MODULES[1:]]


def test_a_block_that_ends_while_the_profiler_runs() -> None:
    """Module events go on after the block."""
    shown, ranges = run("leaving_the_block_meanwhile")
    assert shown == [[STEP, *sorted(MODULES * 2)]]
    assert ranges == [4]


def test_a_profiler_that_annot_does_not_see_start() -> None:
    """A start that goes past Python, as on demand, crashes nothing."""
    shown, ranges = run("started_in_c")
    assert shown == [[STEP, *MODULES]]
    assert ranges == [9]
