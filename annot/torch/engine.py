"""The whole backward: a stand-in for autograd's engine that prepares each run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from annot import emit, own, tag
from annot.torch import device_threads

__all__ = ["Engine"]

_tracing: Final[Callable[[], Any]] = torch._guards.TracingContext.try_get


class Engine:
    """Autograd's engine, with ranges; everything but `run_backward` is the engine's own.

    Args:
        engine: what stood in `torch.autograd.Variable._execution_engine`.
        calls: the `Calls` that know the layers; None once the block is over.
        ranges: open ranges; without them `calls` only knows that a backward runs, to tell recomputation.
    """

    def __init__(self, engine: Any, calls: Any, *, ranges: bool) -> None:
        self._engine = engine
        self._calls = calls
        self._ranges = ranges
        self._event = emit.event(tag.format(tag.Tag(phase="backward")), category="backward")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the engine inside the range of the whole backward."""
        calls = self._calls
        # What torch.compile runs to trace a backward is none.
        if calls is None or _tracing() is not None:
            return self._engine.run_backward(*args, **kwargs)
        depth, runs = emit.depth(), calls.runs()
        try:
            if self._ranges:
                emit.push(self._event)
            if not _compiles_backward():
                _begin(calls, args, kwargs) if self._ranges else calls.begin((), **_NOTHING)
            return self._engine.run_backward(*args, **kwargs)
        finally:
            try:
                calls.finish(runs)
            finally:
                emit.pop_to(depth)  # whatever an interrupt has left open included

    def retire(self) -> Any:
        """Make this stand-in transparent, for those who still hold it; return the engine."""
        self._calls = None
        return self._engine


def _compiles_backward() -> bool:
    """Return whether compiled autograd takes the run over: it would trace hooks, and stumble over ours."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


_NOTHING = {"keep_graph": False, "create_graph": False, "every": False}
_NAMES = ("tensors", "grad_tensors", "keep_graph", "create_graph", "inputs")


def _begin(calls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Prepare a run; whatever goes wrong costs its layer ranges, not the user's backward."""
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    begin = functools.partial(
        calls.begin,
        tuple(given.get("tensors", ())),
        keep_graph=bool(given.get("keep_graph", False)),
        create_graph=bool(given.get("create_graph", False)),
        # Named inputs make the engine skip nodes; devices have a thread each.
        every=bool(given.get("inputs", ())) or device_threads.are_there(),
    )
    own.attempt(begin, otherwise=None, note="this backward has no layer ranges")
