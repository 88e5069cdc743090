"""The hot path in Python: the twin of annot/native/torch_calls.c, and its reference in the tests.

Forward. Every module call opens the range of its site. It also notes, per thread, which sequence numbers autograd
gave out while it ran: a node belongs to the call that was innermost when the node was made.

Backward. Before the engine runs, the graph is walked once from the roots. On one thread the engine runs nodes in
falling order of their sequence numbers, so only a node whose layer differs from that of the node before it needs
a hook. The hook closes ranges up to the common ancestor of the layer that is open and the node's own, and opens
them down to the latter.

Recomputation. A forward call that runs while the engine runs a node on its thread is recomputation: it is what
activation checkpointing does, and what a hook or a custom function that calls a module in its backward looks like.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import torch

from annot import emit, own
from annot.locks import fork_safe
from annot.shapes import spec_of, tensors_in
from annot.torch import device_threads, greenlets
from annot.torch.notes import BACKWARD, DEPTH, PARENT, SITE, Invocation, Notes, ThreadNotes, thread_notes
from annot.torch.paths import OPTIMIZED
from annot.torch.sites import Loss, Site, Sites, autocast_dtype, is_tensor

__all__ = ["Calls", "bookkeeping", "bury", "pass_over", "patched_call", "watcher"]

_peek: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_HOOKED_KEY: Final = "annot hook"

F = TypeVar("F", bound=Callable[..., Any])


class Frame:
    """The layer ranges that one backward run has open on one thread, outermost first."""

    __slots__ = ("creates_graph", "handles", "nodes", "open")

    def __init__(self, *, creates_graph: bool = False) -> None:
        self.open: list[Invocation] = []
        self.creates_graph = creates_graph
        self.nodes: list[Any] = []
        self.handles: list[Any] = []


@dataclass(slots=True)
class Worker:
    """What a thread of a device has open."""

    device: torch.device
    close: Callable[[], None]
    last: Any = None
    """The node that the thread runs, or has run last."""


class Calls:
    """Forward calls and backward runs of the modules in `sites`.

    Args:
        sites: which module stands where.
        forward: open ranges around forward calls.
        backward: note the calls, so that a backward run knows its layers.
        meter: opens and closes the ranges.
    """

    def __init__(self, sites: Sites, *, forward: bool, backward: bool, meter: Any = emit) -> None:
        self._push, self._pop = meter.push, meter.pop
        self._sites = sites
        self._forward = forward
        self._backward = backward
        self._threads = thread_notes(greenlets.are_there())
        self._frames: dict[int, list[Frame]] = {}
        self._workers: dict[int, Worker] = {}
        self._owners: dict[Any, Invocation | None] = {}
        self._shared: dict[Any, int] = {}  # nodes of several runs at a time: of how many more than one
        self._lock = fork_safe(threading.RLock)  # of these two
        self._carrier = torch.zeros(())
        self._carrier._backward_hooks = {0: self._on_node}

    # ---------------------------------------------------------------- forward

    def take_calls(self, original: Callable[..., Any], inner: Callable[..., Any]) -> None:
        """Have `patched_call`, which stands in for `original` and calls `inner`, work for this object."""
        global _original, _inner, _is_plain, _calls, _threads, _thread, _sites, _by_id, _dead
        global _notes_nodes, _running, _push, _pop
        _original, _inner, _is_plain = original, inner, inner is torch.nn.Module._wrapped_call_impl
        _calls, _threads, _thread = self, self._threads, self._threads.local
        _sites, _by_id, _dead = self._sites, self._sites.by_id, self._sites.dead
        _push, _pop = (self._push, self._pop) if self._forward else (None, None)
        _notes_nodes = self._backward
        _running = self._frames

    def forget(self) -> None:
        """Look every module up anew: one got a site or lost it. Nothing is kept here."""

    def has_lost(self) -> bool:
        """Return whether nodes were older than the notes, since the last call."""
        lost, Notes.lost = Notes.lost, False
        return lost

    def note_switch(self) -> None:
        """Note that this thread goes on with another greenlet, and so in another call."""
        if self._backward:
            notes = self._threads.get()
            notes.note(_peek(), notes.current)

    def drop_notes(self) -> None:
        """Forget what threads have called: no block is open whose backward would ask for it."""
        global _threads, _thread
        thread_notes.cache_clear()
        _threads = self._threads = thread_notes(greenlets.are_there())
        _thread = _threads.local

    def find_site(self, site: Site | None, module: Any, parent: Invocation | None) -> Site | None:
        """Return the site of a module that stands in several places, that came after its model, or is a loss."""
        around = parent or (self._recomputed_layer() if self._frames else None)
        if site is None:
            if around is None and not isinstance(module, Loss) and type(module).__name__ != OPTIMIZED:
                return None
            return self._sites.discover(module, None if around is None else around[SITE])
        return site if around is None else site.near(around[SITE].layer)

    def current_site(self, backward: bool) -> Site | None:
        """Return the site of the module in whose call, or in whose backward, this thread is."""
        if backward:
            frames = self._frames.get(threading.get_ident())
            return frames[-1].open[-1][SITE] if frames and frames[-1].open else None
        current = self._threads.get().current
        return current[SITE] if current is not None else None

    def _recomputed_layer(self) -> Invocation | None:
        """Return the call whose backward is open on this thread, if any: a call from there is at home nearby."""
        frames = self._frames.get(threading.get_ident())
        return frames[-1].open[-1] if frames and frames[-1].open else None

    # ---------------------------------------------------------------- backward

    def begin(self, roots: tuple[Any, ...], *, keep_graph: bool, create_graph: bool, every: bool) -> None:
        """Prepare the graph below `roots` for a run of the engine on this thread; `finish` ends it.

        Args:
            roots: tensors or gradient edges that the engine starts from.
            keep_graph: the graph stays alive, so the hooks must go afterwards.
            create_graph: the run makes a graph of its own.
            every: hook every node, because the engine will not run them in falling order or skip some.
        """
        frame, runs = Frame(creates_graph=create_graph), self.runs()
        self._frames.setdefault(threading.get_ident(), []).append(frame)
        try:
            found, unordered = self._threads.walk(roots)
            previous = None
            with self._lock:
                for _, _, owner, node in sorted(found, key=lambda one: one[:2], reverse=True):
                    if every or unordered or owner is not previous:
                        self._hook(node, owner, frame, keep_graph=keep_graph)
                    previous = owner
        except BaseException:
            self.finish(runs)
            raise

    def runs(self) -> int:
        """Return how many runs this thread has begun and not finished."""
        return len(self._frames.get(threading.get_ident(), ()))

    def finish(self, count: int) -> None:
        """Finish runs of this thread until so many are left.

        By number, because an interrupt may keep the caller from learning what `begin` returns.
        """
        own.to_the_end(self._finish, count)

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
        if self._workers:
            self._close_workers()

    def _forget(self, nodes: list[Any]) -> None:
        """Take the nodes of a run that is over out of the owners, unless another run has them too."""
        while nodes:
            node = nodes[-1]
            if node not in self._shared:
                self._owners.pop(node, None)
            elif self._shared[node] > 1:
                self._shared[node] -= 1
            else:
                del self._shared[node]
            del nodes[-1]

    def _close_workers(self) -> None:
        """Close what runs that are over have open on the threads of devices.

        A run that ends on one thread, or in an error, leaves the ranges that it has open on others: on those whose
        last node is of no run any more. Not from inside a node, where this may be such a thread.
        """
        stale = [worker for worker in list(self._workers.values()) if worker.last not in self._owners]
        if stale and _current_node() is None:
            device_threads.visit([(worker.device, worker.close) for worker in stale])

    def _hook(self, node: Any, owner: Invocation | None, frame: Frame, *, keep_graph: bool) -> None:
        if node in self._owners:  # a hook runs a part of the graph that a run around it has still to run, for example
            self._shared[node] = self._shared.get(node, 0) + 1
        self._owners[node] = owner
        frame.nodes.append(node)
        if keep_graph or not hasattr(node, "_register_hook_dict"):
            frame.handles.append(node.register_prehook(self._on_node))
        else:
            # A tenth of the price; it cannot be removed, but finds no owner once the run is over.
            metadata = node.metadata
            if metadata.get(_HOOKED_KEY) is not self._carrier:
                metadata[_HOOKED_KEY] = self._carrier
                node._register_hook_dict(self._carrier)

    def _on_node(self, *_: Any) -> None:
        """Move to the layer of the node that the engine is about to run; must never raise."""
        node = _current_node()
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
            self._threads.get().note(_peek(), opened[-1] if opened else None)

    def _worker_frames(self) -> list[Frame]:
        """Open a frame on a thread of the engine; the engine closes it there when its task is done."""
        ident = threading.get_ident()
        frames = self._frames[ident] = [Frame(creates_graph=torch.is_grad_enabled())]  # on if the run makes a graph

        def close_here() -> None:
            if threading.get_ident() == ident and self._frames.get(ident) is frames:
                del self._frames[ident]
                self._workers.pop(ident, None)
                self._close(frames[0])

        device = device_threads.device_of(_current_node())
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
            notes.note(_peek(), notes.current)


# What `patched_call` works with. Globals, because torch.compile recompiles when the closure of a function that it has
# traced changes, and leaving the block puts a function without one in this one's place.
_original: Callable[..., Any]
_inner: Callable[..., Any]
_is_plain: bool
_calls: Calls
_threads: ThreadNotes
_thread: Any
_sites: Sites
_by_id: dict[int, Site | None]
_dead: list[Any]
_notes_nodes: bool
_running: dict[int, list[Frame]]
_push: Callable[[Any], None] | None
_pop: Callable[[], None] | None
_profiler: Final[Any] = torch.autograd.profiler
_is_compiling: Final = torch.compiler.is_dynamo_compiling
_is_tracing: Final = torch._C._get_tracing_state
_is_autocast: Final = torch._C._is_any_autocast_enabled
_Tensor: Final = torch.Tensor


def patched_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `torch.nn.Module.__call__`; the name of `self` is one that PyTorch's profiler reads.

    One function holds the whole path of a call: every further Python frame would cost a tenth of a microsecond.
    """
    # torch.compile traces what it compiles through this very function, and must see the original.
    if _is_compiling():
        return _original(self, *args, **kwargs)
    try:
        notes = _thread.notes
    except AttributeError:
        notes = _threads.get()
    parent = notes.current
    if _dead:
        bury(_sites)
    site = _by_id.get(id(self))
    if site is None or site.elsewhere is not None:
        site = _calls.find_site(site, self, parent)
        if site is None:
            return _original(self, *args, **kwargs)
    key: Any = None
    if site.shapes and _is_tracing() is None:
        if len(args) == 1 and type(args[0]) is _Tensor and not kwargs and not _is_autocast():
            try:
                key = args[0].shape, args[0].dtype
            except RuntimeError:  # a nested tensor has no shape
                key = signature(args, kwargs)
        else:
            key = signature(args, kwargs)
    events = site.events.get(key) or remember(site, key, args, kwargs)
    if events is None:
        return _original(self, *args, **kwargs)
    if _running:
        events = if_recomputed(site, events, args, kwargs)
    push, pop, notes_nodes = _push, _pop, _notes_nodes  # a block may be left, and another entered, during the call
    depth = emit.depth() if parent is None else 0
    try:
        made = notes.current = (parent, site, events[1], 0 if parent is None else parent[DEPTH] + 1)
        if notes_nodes:
            number = _peek()
            if notes.numbers[-1] == number:
                notes.owners[-1] = made
            else:
                notes.note(number, made)
        if push is not None:
            push(events[0])
        if _is_plain and self._compiled_call_impl is None and not _profiler._is_profiler_enabled:
            result = self._call_impl(*args, **kwargs)  # all that the original does; a profiler looks for its frame
        else:
            result = _inner(self, *args, **kwargs)
    finally:
        try:
            if pop is not None:
                pop()
        finally:
            notes.current = parent
            if parent is None and pop is not None and type(notes) is Notes:  # greenlets take turns with their ranges
                emit.pop_to(depth)  # what an interrupt has left open
        if notes_nodes:
            number = _peek()
            if notes.numbers[-1] == number:
                notes.owners[-1] = parent
            else:
                notes.note(number, parent)
    return result


_frames: Any = torch._C._dynamo.eval_frame
# What torch.compile has set for this thread; PyTorch 2.4 can only say so by setting something else.
watcher: Any = getattr(_frames, "get_eval_frame_callback", lambda: _frames.set_eval_frame(None))


def pass_over(function: Any) -> None:
    """Have torch.compile pass over frames of `function`, as over those of `Module.__call__`, unless it inlines."""
    if hasattr(_frames, "set_code_exec_strategy"):
        strategy = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)
        _frames.set_code_exec_strategy(function.__code__, strategy)
    elif hasattr(_frames, "skip_code"):  # before PyTorch 2.8, whose export names its inputs by the first frame it sees
        _frames.skip_code(function.__code__)


def bookkeeping(otherwise: Callable[..., Any], note: str = "") -> Callable[[F], F]:
    """Decorate what annot does itself amid a call.

    torch.compile, which may be watching all that runs, does not compile it. What fails there is annot's own affair.

    Args:
        otherwise: returns the result where annot cannot do it, from the same arguments.
        note: what the failure costs, for a warning; an empty text: no warning.
    """

    def decorate(function: F) -> F:
        def run(*args: Any) -> Any:
            watching = watcher()
            try:
                if watching is not None:
                    _frames.set_eval_frame(None)
                return function(*args)
            except Exception as error:
                if not own.recurs(error, function, *args):
                    raise
                if note:
                    emit.warn_once(f"{note}: {type(error).__name__}: {error}")
                return otherwise(*args)
            finally:
                if watching is not None:
                    _frames.set_eval_frame(watching)

        pass_over(run)
        return cast("F", functools.wraps(function)(run))

    return decorate


def _nothing(*_: Any) -> None:
    return None


@bookkeeping(_nothing)
def bury(sites: Sites) -> None:
    """Forget the modules that have died since the last call."""
    sites.bury()


@bookkeeping(_nothing)
def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return a key that is equal for calls whose tensors have equal shapes and dtypes, under the same autocast.

    None, the key of ranges without shapes, if an argument does not let itself be looked at.
    """
    found = tensors_in(args, kwargs, is_tensor)
    with torch._C.DisableTorchFunction():
        autocast = autocast_dtype(found) if _is_autocast() else ""
        if all(type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_nested for tensor in found):
            return autocast, *[(tensor.shape, tensor.dtype) for tensor in found]
        return autocast, *map(spec_of, found)


@bookkeeping(_nothing, "a layer has no range")
def remember(site: Site, key: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the events of a call with these arguments; None if they cannot be made."""
    if torch._C._get_tracing_state() is not None:  # looking at a shape would put operations into the trace
        return site.make_events((), {})
    events = site.events.recall(key)
    if events is None:
        with torch._C.DisableTorchFunction():
            events = site.make_events(args, kwargs) if key is not None else site.make_events((), {})
        site.events.keep(key, events)
    return events  # type: ignore[no-any-return]


@bookkeeping(lambda site, events, *_: events, "a call in a backward counts as a forward")
def if_recomputed(
    site: Site, events: tuple[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the events of a call while a backward runs somewhere: others if it runs here, in one of its nodes."""
    if _current_node() is None:
        return events
    found = site.recomputed.recall(events[0])
    if found is None:
        with torch._C.DisableTorchFunction():
            found = site.recomputed.keep(events[0], (site.make_recompute_event(args, kwargs), events[1]))
    return found  # type: ignore[no-any-return]
