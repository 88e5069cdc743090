"""What code that Inductor generated calls around its kernels, and the ranges around whole compiled graphs.

A graph may run for several modules of the same class: torch.compile makes one graph for twelve equal blocks. So a
kernel says its layers relative to the module whose call the graph runs in, and each run adds that module's path.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final, cast

from annot import emit, tag

__all__ = ["FORMAT", "HERE", "MAX_LAYERS", "Layers", "encode", "pop", "push"]

FORMAT: Final = 1
"""Which form of what `push` is given; code from a cache must have been made for this one."""

HERE: Final = "."
"""What a path begins with that is relative to the module whose call the graph runs in."""

MAX_LAYERS: Final = 6
"""How many layers of a fused kernel its range names."""

_SEPARATOR: Final = "\t"


class _Thread(threading.local):
    """What this thread runs: the layers of a compiled graph, or None outside of any."""

    layers: Layers | None = None


_thread: Final = _Thread()


def push(text: str) -> None:
    """Open the range of a kernel, if the graph runs inside a block of `emit_ranges`.

    Args:
        text: what `encode` gave when the code was generated.
    """
    layers = _thread.layers
    if layers is not None:
        emit.push(layers[text])


def pop() -> None:
    """Close the range that `push` opened."""
    if _thread.layers is not None:
        emit.pop()


def encode(phase: tag.Phase, layers: Iterable[tuple[str, str]]) -> str:
    """Return what generated code gives to `push`.

    Args:
        phase: forward or backward.
        layers: path and class of each layer that the kernel works for; a path that begins with `HERE` is relative.

    Example:
        >>> encode("forward", [(".fc", "Linear"), (".act", "GELU")]).split()
        ['forward', '.fc', 'Linear', '.act', 'GELU']
    """
    return _SEPARATOR.join([phase, *(word for layer in layers for word in layer)])


class Layers(dict[str, Any]):
    """The events of the kernels of one graph when it runs for one module, made as they are asked for.

    Args:
        site: the `annot.torch.sites.Site` of the module in whose call, or in whose backward, the graph runs; None
            if there is none, and then kernels that say where they are relative to it get the range of the graph.
        event: the range of the whole graph.
    """

    def __init__(self, site: Any, event: Any) -> None:
        super().__init__()
        self.event = event
        self._path: str | None = site.layer if site is not None else None
        self._module: str = site.module if site is not None else ""

    def __missing__(self, text: str) -> Any:
        phase, *words = text.split(_SEPARATOR)
        named = [self._named(path, module) for path, module in zip(words[::2], words[1::2], strict=True)]
        made = self[text] = self.event if None in named else layer_event(cast("tag.Phase", phase), cast("Any", named))
        return made

    def _named(self, path: str, module: str) -> tuple[str, str] | None:
        if not path.startswith(HERE):
            return path, module
        if self._path is None:
            return None
        if path == HERE:
            return self._path, module or self._module
        return f"{self._path}{path}" if self._path else path[1:], module


def layer_event(phase: tag.Phase, layers: list[tuple[str, str]]) -> Any:
    """Return the event of a kernel that works for these layers: one row of a report for each combination."""
    if len(layers) == 1:
        layer, module = layers[0]
    else:
        layer = _joined([path or "(model)" for path, _ in layers])
        module = _joined([*dict.fromkeys(module for _, module in layers)])
    return emit.event(tag.format(tag.Tag(layer, module, phase)), category=phase, few=True)


def _joined(names: list[str]) -> str:
    more = len(names) - MAX_LAYERS
    return tag.FUSED.join(names if more <= 1 else [*names[:MAX_LAYERS], f"({more} more)"])


def run(graph: Any, call: Any, layers: Layers, args: Any, kwargs: Any) -> Any:
    """Call a compiled graph inside its range; whatever an exception leaves open is closed too."""
    depth, around = emit.depth(), _thread.layers
    try:
        emit.push(layers.event)
        _thread.layers = layers
        return call(graph, *args, **kwargs)
    finally:
        _thread.layers = around
        emit.pop_to(depth)
