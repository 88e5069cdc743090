"""The fast call path in a process that checks every access to memory."""

from __future__ import annotations

import os
from pathlib import Path

import forked
import pytest
from sanitized import run_sanitized

pytest.importorskip("torch")

from annot import native

pytestmark = pytest.mark.skipif(native.emitter() is None, reason="the C parts are not built or switched off")


@pytest.mark.slow
def test_finalizers_that_open_ranges_amid_push_and_pop(tmp_path: Path) -> None:
    """torch.profiler's ranges are objects: making one runs the garbage collector, and that finalizers.

    At a depth of 64, 128 … the stack of ranges moves when a finalizer opens another; one may also leave the stack
    deeper than it was, or less deep.
    """
    program = """
import gc, torch
from annot import trace
from annot.emit import client
from torch.profiler import profile, ProfilerActivity

@trace("in a finalizer")
def deeper(n):
    if n: deeper(n - 1)

class Node:
    def __init__(self): self.me = self
    def __del__(self):
        deeper(70)
        end()

events = [client.event(f"r{i}") for i in range(8)]
def amid(function, *args):
    "Call a function that makes an object, or drops one, with garbage about."
    gc.disable()
    kept = [bytearray(1500) for _ in range(200)]
    for _ in range(5): Node()
    gc.set_threshold(1, 1, 1); gc.enable()
    function(*args)
    gc.disable(); gc.set_threshold(700, 10, 10)

client.enabled()
def enter_and_leave():
    for depth in (64, 128, 256):
        while client.depth() < depth - 1: client.push(events[client.depth() % 8])
        amid(client.push, events[0])
    for depth in (256, 128, 64):
        client.pop_to(depth)
        amid(client.pop)
    client.pop_to(0)
    amid(client.mark, events[0])
    amid(client.start, events[0])

for end in (lambda: None, lambda: client.push(events[1]), client.pop):
    with profile(activities=[ProfilerActivity.CPU]):
        enter_and_leave()
print("survived", client.depth())
"""
    assert run_sanitized(program, tmp_path).startswith("survived")


@pytest.mark.slow
def test_finalizers_that_call_layers_while_notes_are_dropped(tmp_path: Path) -> None:
    """What threads have called is dropped by halves, and at the end of the last block: that may free anything."""
    program = """
import gc, torch
from annot import emit_ranges, record
from annot.torch import ranges

class Calls:
    "Its end calls layers, which are noted."
    ends = 0
    def __del__(self):
        Calls.ends += 1
        model(x, deeper=False)

class Makes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(1, 1)
    def forward(self, x, deeper=True):
        if deeper:
            part = torch.nn.Linear(1, 1)
            x = part(x)
            ranges._INSTALLED._sites.by_id[id(part)].operations["end"] = Calls()
        return self.fc(x)

model, x = Makes(), torch.ones(1, 1)
def step(calls, more=0):
    with emit_ranges(model, shapes=False):
        for _ in range(calls):
            loss = model(x).sum()
        for _ in range(more):
            model.fc(x)
        loss.backward()

with record("dropped.sqlite"):
    for _ in range(3):
        step(10)
    few = Calls.ends
    step(300, 70000)
    gc.collect()
print("survived", few, Calls.ends)
"""
    word, few, many = run_sanitized(program, tmp_path).split()
    assert (word, few) == ("survived", "30")
    assert int(many) == 330


@pytest.mark.slow
def test_functions_that_are_missing_are_named() -> None:
    """`bind` takes a dict; without a function, `Calls` raises and works once all of them are given."""
    program = """
import torch
from annot import emit_ranges, native
emitter = native.emitter()
def call_unbound():
    emitter.bind({})
    emitter.Calls(object(), forward=True, backward=True)
for attempt in (lambda: emitter.bind(3), call_unbound):
    try:
        attempt()
    except (RuntimeError, TypeError) as error:
        print(type(error).__name__, error)
with emit_ranges(torch.nn.Linear(2, 2)) as block:
    print("works")
"""
    done = forked.python(program, env={**os.environ, "ANNOT_ENABLE": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "TypeError functions must be a dict, got <class 'int'>", "RuntimeError bind() did not receive signature",
        "works",
    ]  # fmt: skip
