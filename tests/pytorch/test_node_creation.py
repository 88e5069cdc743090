"""Owners of autograd nodes against PyTorch's `node_creation_hook`, which sees each node when it is created."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import node_owners
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "node_creation_hook"), reason="node_creation_hook is new in PyTorch 2.14"
)


class Residual(nn.Module):
    """Add a block to its input in place; optionally, the backward runs the block again."""

    def __init__(self, block: nn.Module, reentrant: bool | None = None) -> None:
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(x) if self.reentrant is None else checkpoint(self.block, x, use_reentrant=self.reentrant)
        y += x
        return y


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Double.apply(x.exp())


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))


def shared() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(inplace=True), layer, layer)


@pytest.mark.parametrize(
    ("make", "nodes"),
    [
        pytest.param(lambda: nn.Sequential(block(), nn.LayerNorm(4), nn.GELU()), 5, id="sequential"),
        pytest.param(shared, 4, id="shared"),
        pytest.param(lambda: nn.Sequential(Residual(block()), Residual(Residual(block()))), 9, id="residual"),
        pytest.param(lambda: nn.Sequential(block(), Residual(block(), reentrant=False)), 7, id="checkpoint"),
        pytest.param(lambda: nn.Sequential(block(), Residual(block(), reentrant=True)), 8, id="reentrant"),
        pytest.param(lambda: nn.Sequential(nn.Linear(4, 4), Doubled(), Residual(Doubled())), 6, id="function"),
    ],
)
def test_a_node_runs_in_the_range_of_the_layer_that_created_it(
    tmp_path: Path, make: Callable[[], Any], nodes: int
) -> None:
    """The layers that annot finds by sequence numbers are those that PyTorch reports at creation."""
    model = make()
    x = torch.ones(3, 4, requires_grad=True)
    created, ran = node_owners.owners_at_creation(tmp_path, model, lambda: model(x).square().sum())
    assert len(ran) >= nodes
    assert ran == {node: created[node] for node in ran}
    assert "engine" in ran.values()  # the loss
