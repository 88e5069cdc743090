"""The whole backward: a stand-in for autograd's engine that prepares each run."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from annot import emit, own, tag
from annot.torch import collectives, device_threads

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
        depth, runs, handles = emit.depth(), calls.runs(), list[Any]()
        try:
            if self._ranges:
                emit.push(self._event)
            if not _compiles_backward():
                _begin(calls, args, kwargs) if self._ranges else calls.begin((), **_NOTHING)
                if self._ranges and (event := collectives.awaited()) is not None:
                    own.attempt(lambda: self._expect(event, runs, args, kwargs, handles), otherwise=None)
            return self._engine.run_backward(*args, **kwargs)
        finally:
            try:
                for handle in handles:
                    handle.remove()
                calls.finish(runs)
            finally:
                emit.pop_to(depth)  # whatever an interrupt has left open included

    def _expect(
        self, event: Any, runs: int, args: tuple[Any, ...], kwargs: dict[str, Any], handles: list[Any]
    ) -> None:  # fmt: skip
        """Let the layers end with the last node, and the range of a wait begin there, on the thread of a CPU's run.

        What is queued first runs first, so that this comes before what the reducer queues with its last gradient.
        """
        calls, engine, ident = self._calls, self._engine, threading.get_ident()

        def end_layers() -> None:
            if threading.get_ident() == ident:
                own.attempt(lambda: calls.finish(runs), otherwise=None)
                emit.push(event)

        def queue(*_: Any) -> None:
            own.attempt(lambda: engine.queue_callback(end_layers), otherwise=None)

        roots = {**dict(zip(_NAMES, args, strict=False)), **kwargs}.get("tensors", ())
        node = next((node for node in map(_node_of, roots) if node is not None), None)
        if node is not None:
            handles.append(node.register_prehook(queue))

    def retire(self) -> Any:
        """Make this stand-in transparent, for those who still hold it; return the engine."""
        self._calls = None
        return self._engine


def _node_of(root: Any) -> Any:
    """The node that a root of a backward, a tensor or an edge of the graph, starts from."""
    return getattr(root, "grad_fn", None) or getattr(root, "node", None)


def _compiles_backward() -> bool:
    """Return whether compiled autograd takes the run over: it would trace hooks, and stumble over ours."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


_LOST: Final = "a backward has operations from so many calls of modules ago that annot has forgotten their layers"
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
    if calls.has_lost():
        emit.warn_once(_LOST)
