"""Layer of each autograd node from hooks of PyTorch, and the range around it in the backward from NVTX marks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from captured import Captured, capture
from torch import nn
from torch.utils.hooks import RemovableHandle

from annot import emit_ranges, mark

_ACCUMULATE_GRAD = (1 << 64) - 1


def nodes_below(*roots: torch.Tensor) -> list[Any]:
    """Return all nodes below the roots except AccumulateGrad."""
    found: dict[Any, None] = {}
    pending: list[Any] = [root.grad_fn for root in roots]
    while pending:
        node = pending.pop()
        if node is None or node in found:
            continue
        found[node] = None
        pending += [child for child, _ in node.next_functions]
    return [node for node in found if node._sequence_nr() != _ACCUMULATE_GRAD]


def owners_by_hooks(nodes: list[Any], notes: list[tuple[int, int, str]]) -> dict[Any, str]:
    """Return the layer of every node, from sequence numbers recorded in forward hooks."""
    owners = {}
    for node in nodes:
        number = node._sequence_nr()
        inside = [(end - start, -len(path), path) for start, end, path in notes if start <= number < end]
        owners[node] = min(inside)[2] if inside else ""
    return owners


def layer_of_each_mark(captured: Captured) -> dict[str, str]:
    """Return the layer of the backward range around each mark, "engine" for the range of the whole backward."""
    found = {}
    for at, text, thread in captured.marks:
        around = captured.innermost(at, thread)
        assert around is None or around.name.endswith("<"), around
        found[text] = "" if around is None else around.name.removesuffix("<")
    return found


def owners(folder: Path, model: nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[dict[str, str], dict[str, str]]:
    """Run one backward. Return the layer of each node by forward hooks, and the layer of the range around it.

    Args:
        folder: folder for the recording.
        model: model to instrument.
        loss: builds the graph and returns the loss. Every node must belong to a layer.
    """
    peek: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
    begun: list[int] = []
    notes: list[tuple[int, int, str]] = []
    truth: dict[str, str] = {}

    def step() -> None:
        handles = [
            handle
            for path, module in model.named_modules()
            for handle in (
                module.register_forward_pre_hook(lambda *_: begun.append(peek())),
                module.register_forward_hook(lambda *_, path=path: notes.append((begun.pop(), peek(), path))),
            )
        ]
        root = loss()
        for handle in handles:
            handle.remove()
        for place, (node, path) in enumerate(owners_by_hooks(nodes_below(root), notes).items()):
            truth[f"node {place}"] = path or type(model).__name__ if _inside(node, notes) else "engine"
            node.register_hook(lambda *_, place=place: mark(f"node {place}"))
        root.backward()  # type: ignore[no-untyped-call]

    def body() -> None:
        with emit_ranges(model):
            step()

    return truth, layer_of_each_mark(capture(folder, body))


def _inside(node: Any, notes: list[tuple[int, int, str]]) -> bool:
    return any(start <= node._sequence_nr() < end for start, end, _ in notes)


def owners_at_creation(
    folder: Path, model: nn.Module, loss: Callable[[], torch.Tensor]
) -> tuple[dict[str, str], dict[str, str]]:
    """Do the same as `owners` with `torch.autograd.graph.node_creation_hook` of PyTorch 2.14.

    The layer of a node is the innermost module that runs when the hook reports the node, also in a backward that runs
    layers again. The first result has all nodes that were created, the second those that ran.
    """
    running: list[str] = []
    truth: dict[str, str] = {}

    def created(node: Any) -> None:
        if node._sequence_nr() == _ACCUMULATE_GRAD:
            return
        text = f"{len(truth)} {node.name()}"
        truth[text] = running[-1] if running else "engine"
        node.register_hook(lambda *_: mark(text))

    def body() -> None:
        handles = _follow_calls(model, running)
        with emit_ranges(model), torch.autograd.graph.node_creation_hook(created):  # type: ignore[attr-defined]
            loss().backward()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()

    return truth, layer_of_each_mark(capture(folder, body))


def _follow_calls(model: nn.Module, running: list[str]) -> list[RemovableHandle]:
    """Keep the paths of the modules that run in a list, the innermost last. The model itself has its class name."""
    handles = []
    for path, module in model.named_modules():
        name = path or type(model).__name__
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
        handles.append(module.register_forward_hook(lambda *_: running.pop() and None, always_call=True))
    return handles
