"""Several backward runs over one graph at a time, as a real NVTX tool sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

from annot import emit_ranges, mark  # noqa: E402


def nodes_of_layers(folder: Path, model: nn.Module, body: Callable[[], object]) -> dict[str, set[str | None]]:
    """The ranges in which the backward of each layer of `Marked` runs."""

    def inside() -> None:
        with emit_ranges(model):
            body()

    captured = capture(folder, inside)
    found: dict[str, set[str | None]] = {}
    for at, text, thread in captured.marks:
        around = captured.innermost(at, thread)
        found.setdefault(text, set()).add(around.name if around else None)
    return found


class Marks(torch.autograd.Function):
    """Doubles, and sets a mark when its backward runs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name = name
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        mark(ctx.name)
        return grads[0] * 2, None


class Marked(nn.Module):
    """Says where its backward runs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weight = name, nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Marks.apply(x * self.weight, self.name)  # type: ignore[no-any-return]


@pytest.mark.parametrize("below", [1, 4])
def test_a_hook_runs_a_part_of_the_graph_that_is_still_to_be_run(tmp_path: Path, below: int) -> None:
    """As deep-equilibrium models do: afterwards the run around it goes on in its layers."""
    model = nn.Sequential(*[Marked(str(place)) for place in range(4)])

    def body() -> None:
        steps = [torch.ones(2, 4, requires_grad=True)]
        for layer in model:
            steps.append(layer(steps[-1]))
        inner = steps[below].sum()

        def run_inside(_: torch.Tensor) -> None:
            handle.remove()
            torch.autograd.grad(inner, steps[0], retain_graph=True)

        handle = steps[max(below, 3)].register_hook(run_inside)
        for _ in range(2):
            steps[4].sum().backward(retain_graph=True)

    assert nodes_of_layers(tmp_path, model, body) == {str(place): {f"{place}<"} for place in range(4)}


def test_threads_run_the_same_graph(tmp_path: Path) -> None:
    """Each run keeps the layers of its nodes, although another one ends before it."""
    model = nn.Sequential(*[Marked(str(place)) for place in range(3)])

    def body() -> None:
        loss = model(torch.ones(2, 4)).sum()

        def run() -> None:
            barrier.wait()
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)

        for _ in range(50):
            barrier = threading.Barrier(2)
            threads = [threading.Thread(target=run) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    assert nodes_of_layers(tmp_path, model, body) == {str(place): {f"{place}<"} for place in range(3)}
