"""A small network in training, whose layer `blocks.3.down` can be made slower: the program of `bench_gate.py`.

With ``--device cpu`` its forward waits for a share of its own duration. With ``--device cuda`` an additional kernel
spins for a share of the time that the layer took in the first steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from annot import batches, emit_ranges

SLOWED = "blocks.3.down"
_SETTLE = 5
"""Calls of the layer before the last of which its kernels are timed."""


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU()
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states."""
        out: Tensor = x + self.down(self.act(self.up(self.norm(x))))
        return out


class Network(nn.Module):
    """Six blocks between an embedding and a classifier."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(64, dim), nn.Linear(dim, 10)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x.mean(1))
        return scores


def slow_on_cpu(forward: Callable[[Tensor], Tensor], share: float) -> Callable[[Tensor], Tensor]:
    """Return a forward that takes longer by a share of its duration."""

    def slowed(x: Tensor) -> Tensor:
        start = time.perf_counter()
        out = forward(x)
        end = time.perf_counter()
        while time.perf_counter() < end + share * (end - start):
            pass
        return out

    return slowed


def slow_on_gpu(forward: Callable[[Tensor], Tensor], share: float) -> Callable[[Tensor], Tensor]:
    """Return a forward whose kernels take longer by a share of the time that they took in a first call."""
    cuda: Any = torch.cuda  # its functions have no types
    cycles = list[int]()

    def milliseconds(call: Callable[[], object]) -> float:
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        cuda.synchronize()
        return float(start.elapsed_time(end))

    def slowed(x: Tensor) -> Tensor:
        if not cycles:
            for _ in range(_SETTLE):
                forward(x)
                cuda._sleep(1_000_000)
            per_ms = 10_000_000 / milliseconds(lambda: cuda._sleep(10_000_000))
            cycles.append(round(share * per_ms * milliseconds(lambda: [forward(x) for _ in range(20)]) / 20))
        out = forward(x)
        cuda._sleep(cycles[0])
        return out

    return slowed


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--slow", type=float, default=0.0, help="share by which the layer takes longer")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0, help="threads of PyTorch; 0: its default")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    on_gpu = options.device != "cpu"
    batch, length, dim = (16, 512, 1024) if on_gpu else (8, 32, 192)
    torch.manual_seed(0)
    network = Network(dim).to(options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    if options.slow:
        layer = network.get_submodule(SLOWED)
        slow = slow_on_gpu if on_gpu else slow_on_cpu
        layer.forward = slow(layer.forward, options.slow)
    data = [(torch.randn(batch, length, 64), torch.randint(10, (batch,))) for _ in range(options.steps)]
    with emit_ranges(network):
        for inputs, labels in batches(data):
            scores = network(inputs.to(options.device))
            loss = nn.functional.cross_entropy(scores, labels.to(options.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


if __name__ == "__main__":
    main()
