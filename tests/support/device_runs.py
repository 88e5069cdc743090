"""Program that runs backwards on device threads of autograd, with arguments LIBRARY DEVICES RUN FOLDER.

Prints the recorded nodes as (layer of the node, range around it, thread), the ranges that were open outside their whole
backward, whether all gradients equal those without ranges, and the names of all ranges.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import Captured, capture
from silent_device import put, register
from torch import nn
from torch.utils.checkpoint import checkpoint

from annot import emit_ranges, mark


class Layer(nn.Module):
    """Matrix multiplication on a device. Moves its input there, and marks the backward of its operations."""

    def __init__(self, name: str, device: str) -> None:
        super().__init__()
        self.name, self.device = name, device
        self.weight = nn.Parameter(put(torch.eye(3) * 2, device).detach())
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = put(x, self.device) if str(x.device) != self.device else x
        out = (moved @ self.weight).tanh()
        for node in (out.grad_fn, getattr(out.grad_fn, "next_functions", [[None]])[0][0]):
            if node is not None:
                node.register_hook(lambda *_: self._mark())
        return out

    def _mark(self) -> None:
        mark(self.name)
        if self.fails:
            raise ValueError(self.name)


def chain(*devices: str) -> nn.Sequential:
    return nn.Sequential(*[Layer(str(place), device) for place, device in enumerate(devices)])


class Branches(nn.Module):
    """Two branches on different devices, added on the CPU."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__()
        self.left, self.right = Layer("left", left), Layer("right", right)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return put(self.left(x), "cpu") + put(self.right(x), "cpu")


def x() -> torch.Tensor:
    return torch.ones(3, 3, requires_grad=True)


def step(model: nn.Module) -> None:
    model(x()).sum().backward()


def steps(model: nn.Module) -> None:
    for _ in range(3):
        step(model)


def failing(model: Any) -> None:
    model[1].fails = True
    with pytest.raises(ValueError, match="1"):
        step(model)
    model[1].fails = False
    step(model)


def some_inputs(model: Any) -> None:
    torch.autograd.grad(model(x()).sum(), [model[1].weight])


def kept(model: nn.Module) -> None:
    loss = model(x()).sum()
    for _ in range(3):
        loss.backward(retain_graph=True)


def twice(model: nn.Module) -> None:
    start = x()
    (gradient,) = torch.autograd.grad(model(start).sum(), start, create_graph=True)
    gradient.sum().backward()


def recomputed(model: nn.Module, *, reentrant: bool) -> None:
    checkpoint(model, x(), use_reentrant=reentrant).sum().backward()


def in_two_threads(model: nn.Module) -> None:
    threads = [threading.Thread(target=steps, args=(model,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


FIRST, OTHER = "silent:0", "silent:1"
RUNS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None]]] = {
    "one device": (lambda: chain(FIRST, FIRST, FIRST), steps),
    "ends on the CPU": (lambda: chain("cpu", FIRST, FIRST), steps),
    "begins on the CPU": (lambda: chain(FIRST, FIRST, "cpu"), steps),
    "a device in the middle": (lambda: chain("cpu", FIRST, "cpu"), steps),
    "an error": (lambda: chain(FIRST, "cpu", FIRST), failing),
    "some inputs": (lambda: chain("cpu", FIRST, FIRST), some_inputs),
    "kept": (lambda: chain("cpu", FIRST, FIRST), kept),
    "twice": (lambda: chain("cpu", FIRST, FIRST), twice),
    "checkpoint": (lambda: chain("cpu", FIRST, FIRST), lambda model: recomputed(model, reentrant=False)),
    "reentrant checkpoint": (lambda: chain("cpu", FIRST, FIRST), lambda model: recomputed(model, reentrant=True)),
    "two threads": (lambda: chain("cpu", FIRST, FIRST), in_two_threads),
    "two devices in turn": (lambda: chain(FIRST, OTHER, FIRST, OTHER), steps),
    "two devices at once": (lambda: Branches(FIRST, OTHER), steps),
    "an error on two devices": (lambda: chain(OTHER, FIRST, OTHER), failing),
}


def cpu(tensor: Any) -> torch.Tensor:
    wrapped: torch.Tensor = getattr(tensor, "wrapped", tensor)
    return wrapped


def late(captured: Captured) -> list[str]:
    """Return the layers whose backward range ends after the whole backward."""
    whole = [one for one in captured.ranges if one.name == "engine<"]
    parts = [one for one in captured.ranges if one.name.endswith("<") and one.name != "engine<"]
    return [one.name for one in parts if not any(run.start <= one.start and one.end <= run.end for run in whole)]


def main(library: str, devices: str, name: str, folder: str) -> None:
    """Run the steps with ranges and print the results."""
    register(Path(library), int(devices))
    make, run = RUNS[name]
    torch.manual_seed(0)
    plain, model = make(), make()
    run(plain)

    def body() -> None:
        with emit_ranges(model):
            run(model)

    captured = capture(Path(folder), body)
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    same = [torch.equal(cpu(a.grad), cpu(b.grad)) for a, b in pairs if a.grad is not None]
    owners = []
    for at, text, thread in captured.marks:
        around = captured.innermost(at, thread)
        owners.append((text, "" if around is None else around.name, thread & 0xFFFFFF))
    print((owners, late(captured), all(same), captured.names), flush=True)
    os._exit(0)  # PyTorch 2.13 may abort when a process with device threads ends, with and without annot


if __name__ == "__main__":
    main(*sys.argv[1:])
