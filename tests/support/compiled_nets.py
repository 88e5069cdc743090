"""Networks for tests of `torch.compile`, and a start with nothing compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

X = torch.linspace(-1, 1, 12).reshape(3, 4)
"""Input of `Net`."""


class Block(nn.Module):
    """A residual block: a matrix product and one fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the layers make of `x` to it."""
        result: torch.Tensor = x + self.act(self.fc(x))
        return result


class Net(nn.Module):
    """Two equal blocks, between which the graph may be made to break."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = Block(), Block()
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call one block after the other."""
        x = self.left(x)
        if self.breaks:
            torch._dynamo.graph_break()
        result: torch.Tensor = self.right(x)
        return result


def step(call: Callable[..., Any], model: nn.Module, x: torch.Tensor = X) -> list[torch.Tensor]:
    """Run forward and backward; return the output and the gradients."""
    model.zero_grad()
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Return whether all tensors are equal bit by bit."""
    return len(left) == len(right) and all(map(torch.equal, left, right))


@contextmanager
def nothing_compiled(cache: Path) -> Iterator[None]:
    """Start with nothing compiled in this process, with the files of Inductor in a folder, and warnings as errors."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        warnings.simplefilter("error", RuntimeWarning)
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()
