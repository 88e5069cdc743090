"""Backward hooks in Python: the fallback for annot/native/emit/torch_graph.c, and its reference in tests.

Before the engine runs, the graph is walked once from the roots. On one thread the engine runs nodes in descending order
of their sequence numbers. So a node only needs a hook if its layer differs from that of the previous node. The hook
closes ranges up to the common ancestor of the open layer and the node's layer, and opens ranges from there down to the
node's layer.

The engine runs the nodes of each accelerator on a separate thread, the device thread.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from annot.emit import guard
from annot.torch.internals import current_node, internal, next_number
from annot.torch.node_owners import BACKWARD, DEPTH, PARENT, Invocation, ThreadNotes
from annot.util.locks import fork_safe

_HOOKED_KEY: Final = "annot hook"
_Engine: Final[Any] = internal("torch._C._ImperativeEngine")
_accelerator: Final[Callable[[], torch.device]] = internal("torch._C._get_accelerator") or (lambda: torch.device("cpu"))

_NEXT: Final = (1 << 64) - 2
"""Sequence number that runs a node before all queued ones except AccumulateGrad nodes."""
_TIMEOUT: Final = 1.0
"""Timeout of a visit (s). The node that runs on the device thread may itself be waiting for the caller."""


@dataclass(slots=True)
class Frame:
    """Layer ranges that one backward run has open on one thread, outermost first."""

    creates_graph: bool
    open: list[Invocation] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Worker:
    """Device thread with open ranges, and the function that closes them."""

    device: torch.device
    close: Callable[[], None]
    last: Any = None  # node that the thread is running or ran last


class BackwardHooks:
    """Hooks that open and close ranges of layers, with `push` and `pop` of `meter`, while autograd's engine runs."""

    def __init__(self, threads: ThreadNotes, meter: Any) -> None:
        self._push, self._pop = meter.push, meter.pop
        self._threads = threads
        self._frames: dict[int, list[Frame]] = {}
        self._workers: dict[int, Worker] = {}
        self._owners: dict[Any, Invocation | None] = {}
        self._shared: dict[Any, int] = {}  # nodes of several concurrent runs: number of runs minus one
        self._lock = fork_safe(threading.RLock)  # guards _owners and _shared
        self._carrier = torch.zeros(())
        self._carrier._backward_hooks = {0: self._on_node}

    def begin(self, roots: tuple[Any, ...], *, keep_graph: bool, create_graph: bool, every: bool) -> None:
        """Prepare the graph below `roots`, tensors or gradient edges, for a run of the engine. `finish` ends the run.

        With `keep_graph`, the graph is retained, so the hooks must be removed afterwards. With `every`, each node has a
        hook, because the engine may skip nodes or run them in another order.
        """
        frame, runs, collects = Frame(create_graph), self.runs(), gc.isenabled()
        self._frames.setdefault(threading.get_ident(), []).append(frame)
        try:
            gc.disable()  # the Python objects of a large graph would start a full collection every few steps
            entries, unordered = self._threads.walk(roots)
            previous = None
            with self._lock:
                for _, _, owner, node in sorted(entries, key=lambda entry: entry[:2], reverse=True):
                    if every or unordered or owner is not previous:
                        self._hook(node, owner, frame, keep_graph=keep_graph)
                    previous = owner
        except BaseException:
            self.finish(runs)
            raise
        finally:
            if collects:
                gc.enable()

    def runs(self) -> int:
        """Return the number of unfinished runs of this thread."""
        return len(self._frames.get(threading.get_ident(), ()))

    def finish(self, count: int) -> None:
        """Finish runs of this thread until `count` are left.

        A count works even if an interrupt prevents `begin` from returning to the caller.
        """
        guard.to_the_end(self._finish, count)

    def _finish(self, count: int) -> None:
        frames = self._frames.get(threading.get_ident(), [])
        while len(frames) > count:
            last = frames[-1]
            self._close(last)
            for handle in last.handles:
                handle.remove()
            with self._lock:
                self._forget(last.nodes)
            del frames[-1]
        if not frames:
            self._frames.pop(threading.get_ident(), None)
        # A run that ends on one thread, or fails, leaves ranges open on device threads. Such a thread is stale: its
        # last node no longer belongs to a run. Inside a node, this may be a device thread itself.
        stale = [worker for worker in list(self._workers.values()) if worker.last not in self._owners]
        if stale and current_node() is None:
            visit([(worker.device, worker.close) for worker in stale])

    def _forget(self, nodes: list[Any]) -> None:
        """Remove the nodes of a finished run from the owners, except nodes shared with another run."""
        while nodes:
            node = nodes[-1]
            if node not in self._shared:
                self._owners.pop(node, None)
            elif self._shared[node] > 1:
                self._shared[node] -= 1
            else:
                del self._shared[node]
            del nodes[-1]

    def _hook(self, node: Any, owner: Invocation | None, frame: Frame, *, keep_graph: bool) -> None:
        if node in self._owners:  # e.g. a hook runs part of a graph whose own run is not finished
            self._shared[node] = self._shared.get(node, 0) + 1
        self._owners[node] = owner
        frame.nodes.append(node)
        if keep_graph or not hasattr(node, "_register_hook_dict"):
            frame.handles.append(node.register_prehook(self._on_node))
        else:
            # A tenth of the cost of a prehook. It cannot be removed, but does nothing once the run is over.
            metadata = node.metadata
            if metadata.get(_HOOKED_KEY) is not self._carrier:
                metadata[_HOOKED_KEY] = self._carrier
                node._register_hook_dict(self._carrier)

    def _on_node(self, *_: Any) -> None:
        """Open the ranges of the layer whose node the engine is about to run. Must not raise."""
        node = current_node()
        if node in self._owners:
            self._move_to(self._owners[node])
            if self._workers and (worker := self._workers.get(threading.get_ident())):
                worker.last = node

    def _move_to(self, owner: Invocation | None) -> None:
        frames = self._frames.get(threading.get_ident()) or self._worker_frames()
        frame = frames[-1]
        opened = frame.open
        keep = owner
        while keep is not None and (keep[DEPTH] >= len(opened) or opened[keep[DEPTH]] is not keep):
            keep = keep[PARENT]
        for _ in range(len(opened) - (keep[DEPTH] + 1 if keep is not None else 0)):
            opened.pop()
            self._pop()
        missing = []
        while owner is not keep and owner is not None:
            missing.append(owner)
            owner = owner[PARENT]
        for invocation in reversed(missing):
            opened.append(invocation)
            self._push(invocation[BACKWARD])
        if frame.creates_graph:
            self._threads.get().note(next_number(), opened[-1] if opened else None)

    def _worker_frames(self) -> list[Frame]:
        """Open a frame on a thread of the engine. A callback of the engine closes it when the thread's task is done."""
        ident = threading.get_ident()
        # The grad mode is on if the run creates a graph.
        frames = self._frames[ident] = [Frame(torch.is_grad_enabled())]

        def close_here() -> None:
            if threading.get_ident() == ident and self._frames.get(ident) is frames:
                del self._frames[ident]
                self._workers.pop(ident, None)
                self._close(frames[0])

        device = device_of(current_node())
        if device is not None:
            self._workers[ident] = Worker(device, close_here)
        torch.autograd.Variable._execution_engine.queue_callback(close_here)
        return frames

    def _close(self, frame: Frame) -> None:
        while frame.open:
            del frame.open[-1]
            self._pop()
        if frame.creates_graph:
            notes = self._threads.get()
            notes.note(next_number(), notes.current)


def device_threads_in_use() -> bool:
    """Return whether a backward may use device threads."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    return _accelerator().type not in ("cpu", "cuda")


def device_of(node: Any) -> torch.device | None:
    """Return the device whose thread runs a node, or None for the CPU."""
    devices = (metadata.device for metadata in getattr(node, "_input_metadata", ()))
    return next((device for device in devices if device.type != "cpu"), None)


class _Visit(torch.autograd.Function):
    """Node that calls `work` in its backward and launches nothing on the device."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Callable[[], object]) -> torch.Tensor:
        ctx.work = work
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None]:
        ctx.work()
        return None, None


def visit(tasks: list[tuple[torch.device, Callable[[], object]]]) -> None:
    """Run functions, each on the thread of its device, and wait up to `_TIMEOUT` seconds.

    Code can only reach a device thread through a backward. It starts from a new thread, to be independent of the
    caller's modes, sequence numbers and streams.
    """

    def run() -> None:
        for device, work in tasks:
            with contextlib.suppress(Exception):
                x = torch.empty(0, device=device, requires_grad=True)
                root: Any = _Visit.apply(x, work)  # type: ignore[no-untyped-call]
                root.grad_fn._set_sequence_nr(_NEXT)
                _Engine().run_backward((root,), (root.detach(),), False, False, (), True, True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
