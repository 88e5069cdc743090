"""Wrapper for autograd's engine: prepares the graph of each backward and opens the range of the whole backward."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

import torch

from annot.emit import client, guard
from annot.labels import tag
from annot.torch import collectives
from annot.torch.backward_hooks import device_threads_in_use
from annot.torch.internals import tracing_context

_holder: Final[Any] = torch.autograd.Variable


class Engine:
    """Autograd's engine with ranges, from `install` to `undo`. All other attributes are forwarded to the engine.

    Without `ranges`, `calls` only records that a backward runs, to detect recomputation.
    """

    def __init__(self, calls: Any, *, ranges: bool) -> None:
        self._engine = _holder._execution_engine
        self._calls = calls
        self._ranges = ranges
        self._event = client.event(tag.format(tag.Tag(phase="backward")), category="backward")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the engine inside the range of the whole backward."""
        calls = self._calls
        # torch.compile runs the engine while it traces a backward. That run is not a backward of the user.
        if calls is None or tracing_context() is not None:
            return self._engine.run_backward(*args, **kwargs)
        depth, runs, handles = client.depth(), calls.runs(), list[Any]()
        try:
            if self._ranges:
                client.push(self._event)
            if not _compiles_backward():
                given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
                _begin(calls, given) if self._ranges else calls.begin((), **_NOTHING)
                if self._ranges and (event := collectives.awaited()) is not None:
                    roots = given.get("tensors", ())
                    guard.attempt(lambda: self._expect(event, runs, roots, handles), otherwise=None)
            return self._engine.run_backward(*args, **kwargs)
        finally:
            try:
                for handle in handles:
                    handle.remove()
                calls.finish(runs)
            finally:
                client.pop_to(depth)  # including ranges that an interrupt left open

    def _expect(self, event: Any, runs: int, roots: Iterable[Any], handles: list[Any]) -> None:
        """After the last node of a CPU run, close the layer ranges and open the range of the wait on this thread.

        The engine runs queued callbacks in order. The prehook of the first node queues `end_layers`, so it runs before
        the callback that the reducer of DistributedDataParallel queues with its last gradient.
        """
        calls, engine, ident = self._calls, self._engine, threading.get_ident()

        def end_layers() -> None:
            if threading.get_ident() == ident:
                guard.attempt(lambda: calls.finish(runs), otherwise=None)
                client.push(event)

        def queue(*_: Any) -> None:
            guard.attempt(lambda: engine.queue_callback(end_layers), otherwise=None)

        # A root of a backward is a tensor or an edge of the graph.
        nodes = (getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots)
        node = next((node for node in nodes if node is not None), None)
        if node is not None:
            handles.append(node.register_prehook(queue))

    def install(self) -> None:
        """Replace autograd's engine."""
        _holder._execution_engine = self

    def undo(self) -> None:
        """Restore the engine. This wrapper becomes transparent for code that still holds it."""
        self._calls = None
        if _holder._execution_engine is self:
            _holder._execution_engine = self._engine


def _compiles_backward() -> bool:
    """Return whether compiled autograd is enabled. It traces hooks, and cannot trace those of annot."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


_LOST: Final = "a backward contains operations of module calls that are too old: annot no longer has their layers"
_NOTHING = {"keep_graph": False, "create_graph": False, "every": False}
_NAMES = ("tensors", "grad_tensors", "keep_graph", "create_graph", "inputs")


def _begin(calls: Any, given: dict[str, Any]) -> None:
    """Prepare a run with these arguments. A failure costs the layer ranges, not the user's backward."""
    begin = functools.partial(
        calls.begin,
        tuple(given.get("tensors", ())),
        keep_graph=bool(given.get("keep_graph", False)),
        create_graph=bool(given.get("create_graph", False)),
        # With `inputs` the engine skips nodes. Accelerators have an engine thread each.
        every=bool(given.get("inputs", ())) or device_threads_in_use(),
    )
    guard.attempt(begin, otherwise=None, note="this backward runs without layer ranges")
    if calls.has_lost():
        client.warn_once(_LOST)
