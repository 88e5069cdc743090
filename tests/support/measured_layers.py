"""Layers whose calls are measured in a few steps."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from annot.live.layer_calls import Layer, LayerCalls


def measured(
    model: nn.Module, patterns: list[str], step: Callable[[], object], *, memory: int = 2**20, most: int = 9
) -> list[Layer]:
    """Return the layers of a model after four steps. A call of each is recorded in the third."""
    calls = LayerCalls(patterns, memory)
    calls.add_model(model)
    calls.start()
    for number in range(3):
        if number == 2:
            calls.record(most)
        step()
        calls.end_step()
    calls.stop()
    step()
    return calls.layers()
