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

import contextlib
import functools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import torch

from annot import emit
from annot.shapes import spec_of, tensors_in
from annot.torch.sites import OPTIMIZED, Loss, Site, Sites, autocast_dtype, is_tensor

__all__ = ["MAX_NOTES", "Calls", "Invocation"]

MAX_NOTES: Final = 1 << 16
"""How many entries a thread's notes hold; graphs older than that have no layers."""

_ACCUMULATE_GRAD: Final = (1 << 64) - 1
"""The sequence number of AccumulateGrad nodes: they run right after their producer, inside its range."""

_peek: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_METADATA_KEY: Final = "annot"
_HOOKED_KEY: Final = "annot hook"

F = TypeVar("F", bound=Callable[..., Any])

# One call of one module: the parent of the calls inside it, and the owner of the nodes it made. A plain tuple, for
# an object with names would cost a fifth of a microsecond a call.
Invocation: TypeAlias = tuple["Invocation | None", Site, Any, int]
PARENT: Final = 0
SITE: Final = 1
BACKWARD: Final = 2
DEPTH: Final = 3


class Notes:
    """What one thread has called: from which sequence number on which invocation was innermost."""

    __slots__ = ("current", "numbers", "owners")

    def __init__(self) -> None:
        self.current: Invocation | None = None
        self.numbers: list[int] = [0]
        self.owners: list[Invocation | None] = [None]

    def note(self, number: int, owner: Invocation | None) -> None:
        """Note that from `number` on nodes belong to `owner`."""
        numbers = self.numbers
        if numbers[-1] == number:
            self.owners[-1] = owner
            return
        if len(numbers) >= MAX_NOTES:
            del numbers[: MAX_NOTES // 2]
            del self.owners[: MAX_NOTES // 2]
        numbers.append(number)
        self.owners.append(owner)

    def owner(self, number: int) -> Invocation | None:
        """Return the invocation that was innermost when the node of this number was made."""
        place = bisect_right(self.numbers, number) - 1
        return self.owners[place] if place >= 0 else None


class Frame:
    """The layer ranges that one backward run has open on one thread, outermost first."""

    __slots__ = ("creates_graph", "handles", "nodes", "open")

    def __init__(self, *, creates_graph: bool = False) -> None:
        self.open: list[Invocation] = []
        self.creates_graph = creates_graph
        self.nodes: list[Any] = []
        self.handles: list[Any] = []


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
        self._thread = threading.local()
        self._frames: dict[int, list[Frame]] = {}
        self._owners: dict[Any, Invocation | None] = {}
        self.threads = 0  # that ever had notes; their idents come again
        self._carrier = torch.zeros(())
        self._carrier._backward_hooks = {0: self._on_node}

    # ---------------------------------------------------------------- forward

    def take_calls(self, original: Callable[..., Any], inner: Callable[..., Any]) -> None:
        """Have `patched_call`, which stands in for `original` and calls `inner`, work for this object."""
        global _original, _inner, _is_plain, _calls, _thread, _by_id, _notes_nodes, _running, _push, _pop
        _original, _inner, _is_plain = original, inner, inner is torch.nn.Module._wrapped_call_impl
        _calls, _thread, _by_id = self, self._thread, self._sites.by_id
        _push, _pop = (self._push, self._pop) if self._forward else (None, None)
        _notes_nodes = self._backward
        _running = self._frames

    def forget(self) -> None:
        """Look every module up anew: one got a site or lost it. Nothing is kept here."""

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
        current = self.notes().current
        return current[SITE] if current is not None else None

    def notes(self) -> Notes:
        """Return the notes of this thread."""
        try:
            return self._thread.notes  # type: ignore[no-any-return]
        except AttributeError:
            self.threads += 1
            notes = self._thread.notes = Notes()
            return notes

    def _recomputed_layer(self) -> Invocation | None:
        """Return the call whose backward is open on this thread, if any: a call from there is at home nearby."""
        frames = self._frames.get(threading.get_ident())
        return frames[-1].open[-1] if frames and frames[-1].open else None

    # ---------------------------------------------------------------- backward

    def begin(self, roots: tuple[Any, ...], *, keep_graph: bool, create_graph: bool, every: bool) -> Frame:
        """Prepare the graph below `roots` for a run of the engine on this thread.

        Args:
            roots: tensors or gradient edges that the engine starts from.
            keep_graph: the graph stays alive, so the hooks must go afterwards.
            create_graph: the run makes a graph of its own.
            every: hook every node, because the engine will not run them in falling order or skip some.
        """
        frame = Frame(creates_graph=create_graph)
        self._frames.setdefault(threading.get_ident(), []).append(frame)
        try:
            nodes, mixed = self._walk(roots)
            previous = None
            for _, _, owner, node in sorted(nodes, key=lambda found: found[:2], reverse=True):
                if every or mixed or owner is not previous:  # numbers of several threads do not fall either
                    self._hook(node, owner, frame, keep_graph=keep_graph)
                previous = owner
        except BaseException:
            self.finish(frame)
            raise
        return frame

    def finish(self, frame: Frame) -> None:
        """Close what the run has open on this thread, and forget its nodes."""
        frames = self._frames[threading.get_ident()]
        while frames:
            last = frames.pop()
            self._close(last)
            if last is frame:
                break
        if not frames:
            del self._frames[threading.get_ident()]
        for handle in frame.handles:
            handle.remove()
        for node in frame.nodes:
            self._owners.pop(node, None)

    def _walk(self, roots: tuple[Any, ...]) -> tuple[list[tuple[int, int, Invocation | None, Any]], bool]:
        """Return (number, tie-breaker, owner, node) of every node below the roots, and whether threads mix."""
        own: Notes | None = getattr(self._thread, "notes", None)
        several = self.threads > 1 or own is None
        pending = [(_node_of(root), own) for root in roots]
        seen: set[Any] = {None}
        found: list[tuple[int, int, Invocation | None, Any]] = []
        mixed = False
        while pending:
            node, notes = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if several:
                notes = node.metadata.get(_METADATA_KEY, notes)
                mixed = mixed or notes is not own
            number = node._sequence_nr()
            if number != _ACCUMULATE_GRAD:
                found.append((number, len(found), notes.owner(number) if notes else None, node))
            pending.extend([(child, notes) for child, _ in node.next_functions if child not in seen])
        return found, mixed

    def _hook(self, node: Any, owner: Invocation | None, frame: Frame, *, keep_graph: bool) -> None:
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
            self.notes().note(_peek(), opened[-1] if opened else None)

    def _worker_frames(self) -> list[Frame]:
        """Open a frame on a thread of the engine; the engine closes it there when its task is done."""
        ident = threading.get_ident()
        frames = self._frames[ident] = [Frame()]

        def close_here() -> None:
            if threading.get_ident() == ident and self._frames.get(ident) is frames:
                del self._frames[ident]
                self._close(frames[0])

        torch.autograd.Variable._execution_engine.queue_callback(close_here)
        return frames

    def _close(self, frame: Frame) -> None:
        for _ in frame.open:
            self._pop()
        frame.open.clear()
        if frame.creates_graph:
            notes = self.notes()
            notes.note(_peek(), notes.current)


# What `patched_call` works with. Globals, because torch.compile recompiles when the closure of a function that it has
# traced changes, and leaving the block puts a function without one in this one's place.
_original: Callable[..., Any]
_inner: Callable[..., Any]
_is_plain: bool
_calls: Calls
_thread: Any
_by_id: dict[int, Site | None]
_notes_nodes: bool
_running: dict[int, list[Frame]]
_push: Callable[[Any], None] | None
_pop: Callable[[], None] | None
_is_compiling: Final = torch.compiler.is_dynamo_compiling
_is_tracing: Final = torch._C._get_tracing_state
_is_autocast: Final = torch._C._is_any_autocast_enabled
_Tensor: Final = torch.Tensor


def patched_call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `torch.nn.Module.__call__`.

    One function holds the whole path of a call: every further Python frame would cost a tenth of a microsecond.
    """
    # torch.compile traces what it compiles through this very function, and must see the original.
    if _is_compiling():
        return _original(module, *args, **kwargs)
    try:
        notes = _thread.notes
    except AttributeError:
        notes = _calls.notes()
    parent = notes.current
    site = _by_id.get(id(module))
    if site is None or site.elsewhere is not None:
        site = _calls.find_site(site, module, parent)
        if site is None:
            return _original(module, *args, **kwargs)
    if parent is None and _notes_nodes and _calls.threads > 1:
        mark_inputs(args, kwargs)
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
    if _running:
        events = if_recomputed(site, events, args, kwargs)
    push, pop, notes_nodes = _push, _pop, _notes_nodes  # a block may be left, and another entered, during the call
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
        if _is_plain and module._compiled_call_impl is None:  # all that the original then does
            result = module._call_impl(*args, **kwargs)
        else:
            result = _inner(module, *args, **kwargs)
    finally:
        if pop is not None:
            pop()
        notes.current = parent
        if notes_nodes:
            number = _peek()
            if notes.numbers[-1] == number:
                notes.owners[-1] = parent
            else:
                notes.note(number, parent)
    if parent is None and notes_nodes:
        tag_graph(result, notes)
    return result


_frames: Any = torch._C._dynamo.eval_frame


def pass_over(function: Any) -> None:
    """Have torch.compile pass over frames of `function`, as over those of `Module.__call__`, unless it inlines."""
    with contextlib.suppress(AttributeError):  # a release without this may compile them
        strategy = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)
        _frames.set_code_exec_strategy(function.__code__, strategy)


def unseen_by_dynamo(function: F) -> F:
    """Have torch.compile, which may be watching all that runs, not compile what annot does itself."""

    def run(*args: Any) -> Any:
        watcher = _frames.set_eval_frame(None)
        try:
            return function(*args)
        finally:
            _frames.set_eval_frame(watcher)

    pass_over(run)
    return cast("F", functools.wraps(function)(run))


@unseen_by_dynamo
def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return a key that is equal for calls whose tensors have equal shapes and dtypes, under the same autocast.

    None, the key of ranges without shapes, if an argument does not let itself be looked at.
    """
    try:
        found = tensors_in(args, kwargs, is_tensor)
        with torch._C.DisableTorchFunction():
            autocast = autocast_dtype(found) if _is_autocast() else ""
            if all(type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_nested for tensor in found):
                return autocast, *[(tensor.shape, tensor.dtype) for tensor in found]
            return autocast, *map(spec_of, found)
    except Exception:
        return None


@unseen_by_dynamo
def remember(site: Site, key: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the events of a call with these arguments; no more are kept once the bound of texts is reached."""
    if torch._C._get_tracing_state() is not None:  # looking at a shape would put operations into the trace
        return site.make_events((), {})
    if not emit.room_for_texts(2):
        key = None
    events = site.events.get(key)
    if events is None:
        with torch._C.DisableTorchFunction():
            events = site.make_events(args, kwargs) if key is not None else site.make_events((), {})
        site.events[key] = events
    return events


@unseen_by_dynamo
def if_recomputed(
    site: Site, events: tuple[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the events of a call while a backward runs somewhere: others if it runs here, in one of its nodes."""
    if _current_node() is None:
        return events
    found = site.recomputed.get(events[0])
    if found is None:
        with torch._C.DisableTorchFunction():
            found = site.make_recompute_event(args, kwargs), events[1]
        site.recomputed[events[0]] = found
    return found


def _node_of(root: Any) -> Any:
    return root.grad_fn if isinstance(root, torch.Tensor) else root[0]


@unseen_by_dynamo
def tag_graph(result: Any, notes: Notes) -> None:
    """Let a backward run on another thread, whose numbers mean other nodes, find these notes."""
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        plain = isinstance(result, (torch.Tensor, list, tuple, dict))
        for metadata in _metadata_of([result] if plain else vars(result).values(), {}):
            metadata[_METADATA_KEY] = notes


@unseen_by_dynamo
def mark_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Note that nodes which come in from outside any module may be another thread's: nobody knows their layer."""
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        for metadata in _metadata_of(args, kwargs):
            metadata.setdefault(_METADATA_KEY, None)


def _metadata_of(values: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for tensor in tensors_in(values, kwargs, is_tensor):
        node: Any = tensor.grad_fn
        if node is not None:
            yield node.metadata
