"""Patch of `torch.nn.Module.__call__`, and the hot path of module calls in Python.

The hot path is the fallback for annot/native/emit/torch_calls.c, and its reference in tests.

Forward. Every module call opens the range of its site. It also records, per thread, the sequence numbers that autograd
assigns during the call: a node belongs to the call that was innermost when the node was created.

The calls of a thread tell the layer of each backward node; see `annot.torch.backward_hooks`.

Recomputation. A forward call that runs while the engine runs a node on the same thread is a recomputation. Activation
checkpointing causes it, and so does a hook or custom function that calls a module in its backward.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import torch

from annot.emit import client, guard
from annot.emit.patches import Patches
from annot.emit.shapes import spec_of, tensors_in
from annot.torch import autograd_nodes, dynamo, greenlets
from annot.torch.backward_hooks import BackwardHooks, Frame, device_of, visit
from annot.torch.internals import current_node, is_autocast, is_compiling, is_tracing, mode_count, next_number
from annot.torch.module_paths import OPTIMIZED
from annot.torch.module_sites import Site, Sites, autocast_dtype, is_tensor
from annot.torch.node_owners import DEPTH, SITE, Invocation, Notes, ThreadNotes, thread_notes

F = TypeVar("F", bound=Callable[..., Any])


class Calls(BackwardHooks):
    """Forward calls and backward runs of the modules in `sites`.

    With `backward` the calls are recorded, because a backward run needs them to find its layers. `push` and `pop` of
    `meter` open and close the ranges.
    """

    def __init__(self, sites: Sites, *, forward: bool, backward: bool, meter: Any = client) -> None:
        super().__init__(thread_notes(greenlets.imported()), meter)
        self._sites = sites
        self._forward = forward
        self._backward = backward

    def bind(self) -> None:
        """Bind `patched_call` to this object."""
        global _calls, _threads, _thread, _sites, _by_id, _dead, _notes_nodes, _running, _push, _pop
        _calls, _threads, _thread = self, self._threads, self._threads.local
        _sites, _by_id, _dead = self._sites, self._sites.by_id, self._sites.dead
        _push, _pop = (self._push, self._pop) if self._forward else (None, None)
        _notes_nodes = self._backward
        _running = self._frames

    def forget(self) -> None:
        """Drop cached sites after a change of the sites. This implementation caches nothing."""

    def has_lost(self) -> bool:
        """Return whether a walk has met nodes older than the notes since the last call."""
        lost, Notes.lost = Notes.lost, False
        return lost

    def note_switch(self) -> None:
        """Record that this thread has switched to another greenlet, and so to another call."""
        if self._backward:
            notes = self._threads.get()
            notes.note(next_number(), notes.current)

    def drop_notes(self) -> None:
        """Delete the notes of all threads. The caller ensures that no block is open."""
        global _threads, _thread
        thread_notes.cache_clear()
        _threads = self._threads = thread_notes(greenlets.imported())
        _thread = _threads.local

    def find_site(self, site: Site | None, module: Any, parent: Invocation | None) -> Site | None:
        """Return the site of a module with several paths, of one added to its model later, or of a loss."""
        around = parent or (self._open_in_backward() if self._frames else None)
        if site is None:
            if around is None and not isinstance(module, self._sites.roots) and type(module).__name__ != OPTIMIZED:
                return None
            return self._sites.discover(module, None if around is None else around[SITE])
        return site if around is None else site.near(around[SITE].layer)

    def current_site(self, backward: bool) -> Site | None:
        """Return the site of the module whose call, or backward, this thread is running."""
        call = self._open_in_backward() if backward else self._threads.get().current
        return call[SITE] if call is not None else None

    def _open_in_backward(self) -> Invocation | None:
        """Return the call whose backward is open on this thread, or None. It is the parent of recomputed calls."""
        frames = self._frames.get(threading.get_ident())
        return frames[-1].open[-1] if frames and frames[-1].open else None


# State of the patches. These are globals because torch.compile recompiles when the closure of a traced function
# changes, and leaving the block restores a function without a closure.
_original: Any = None
_inner: Any = None
_is_plain = False
_left: Any = None
_call: Any = None  # called by `_native_call`
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
_Tensor: Final = torch.Tensor


def patched_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Patch of `torch.nn.Module.__call__`. PyTorch's profiler reads the local variable `self` by name.

    The whole path of a call is in one function: every further Python frame would cost a tenth of a microsecond.
    """
    # torch.compile traces through this function, and must see the original.
    if is_compiling():
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
    if site.shapes and is_tracing() is None:
        # A mode of the user would see the reads.
        if len(args) == 1 and type(args[0]) is _Tensor and not (kwargs or is_autocast() or mode_count()):
            try:
                key = args[0].shape, args[0].dtype
            except RuntimeError:  # a nested tensor raises on access to its shape
                key = signature(args, kwargs)
        else:
            key = signature(args, kwargs)
    events = site.events.get(key) or remember(site, key, args, kwargs)
    if events is None:
        return _original(self, *args, **kwargs)
    if _running:
        events = if_recomputed(site, events, args, kwargs)
    push, pop, notes_nodes = _push, _pop, _notes_nodes  # the block may be left, and another entered, during the call
    depth = client.depth() if parent is None else 0
    try:
        invocation = notes.current = (parent, site, events[1], 0 if parent is None else parent[DEPTH] + 1)
        if notes_nodes:
            number = next_number()
            if notes.numbers[-1] == number:
                notes.owners[-1] = invocation
            else:
                notes.note(number, invocation)
        if push is not None:
            push(events[0])
        if _is_plain and self._compiled_call_impl is None and not _profiler._is_profiler_enabled:
            # What the original calls. A profiler needs the frame of the original.
            result = self._call_impl(*args, **kwargs)
        else:
            result = _inner(self, *args, **kwargs)
    finally:
        try:
            if pop is not None:
                pop()
        finally:
            notes.current = parent
            # Close what an interrupt has left open, but not with greenlets, whose ranges interleave.
            if parent is None and pop is not None and type(notes) is Notes:
                client.pop_to(depth)
        if notes_nodes:
            number = next_number()
            if notes.numbers[-1] == number:
                notes.owners[-1] = parent
            else:
                notes.note(number, parent)
    return result


def install(undo: list[Any], calls: Any, around: Callable[[Any], Any] | None) -> None:
    """Patch `torch.nn.Module.__call__`, and add a function to `undo` that restores it.

    The patch calls ``around(original)``, or the original while torch.compile traces. If other code has wrapped
    `__call__` in the meantime, the patch stays below that wrapper. Without sites it only calls the original. A later
    block uses it again instead of adding a second patch on top.
    """
    global _original, _inner, _is_plain, _call, _left
    ours = patched_call if isinstance(calls, Calls) else _native_call
    here = torch.nn.Module.__call__
    undo.append(functools.partial(_uninstall, ours))
    if here is not ours and left_behind() is None:
        _original, _left = here, None
        torch.nn.Module.__call__ = ours  # type: ignore[method-assign]
    _inner = around(_original) if around else _original
    _is_plain = _inner is torch.nn.Module._wrapped_call_impl
    if isinstance(calls, Calls):
        calls.bind()
        _call = _call_in_python  # the patch that was left behind may be that of the C extension
    else:
        _call = calls.call


def left_behind() -> Any:
    """Return the patch that was left behind below a wrapper of other code, or None."""
    return _left if torch.nn.Module.__call__ is not _original else None


def _uninstall(ours: Any) -> None:
    global _inner, _left
    _inner = _original
    if torch.nn.Module.__call__ is ours:
        torch.nn.Module.__call__ = _original  # type: ignore[method-assign]
    elif torch.nn.Module.__call__ is not _original:
        _left = _left or ours


def _call_in_python(_: Any, module: Any, args: Any, kwargs: Any) -> Any:
    return patched_call(module, *args, **kwargs)


def _native_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # PyTorch's profiler reads `self`
    # torch.compile traces through this function, and must see the original.
    if is_compiling():
        return _original(self, *args, **kwargs)
    return _call(_inner, self, args, kwargs)


def hide_from_profiler(patches: Patches) -> None:
    """Restore the original `Module.__call__` while torch.profiler starts.

    With ``with_stack=True``, PyTorch treats a frame as a module call if it runs the code of `Module.__call__`, and
    reads the local variable ``self`` of the frame. It looks up that code once per process, at the first such profile.
    """
    profiler: Any = torch.autograd.profiler
    start = profiler._enable_profiler

    @functools.wraps(start)
    def enable(*args: Any, **kwargs: Any) -> Any:
        current = torch.nn.Module.__call__
        if not patches.live or current not in (patched_call, _native_call):
            return start(*args, **kwargs)
        torch.nn.Module.__call__ = _original  # type: ignore[method-assign]
        try:
            return start(*args, **kwargs)
        finally:
            if patches.live:
                torch.nn.Module.__call__ = current  # type: ignore[method-assign]

    patches.replace(profiler, "_enable_profiler", enable)


def bookkeeping(otherwise: Callable[..., Any] = lambda *_: None, note: str = "") -> Callable[[F], F]:
    """Decorate an internal function of annot that runs inside a module call.

    torch.compile does not compile the function, and its failures do not reach the user. The result is then that of
    `otherwise`, from the same arguments, with a warning that starts with `note`, if it is not empty.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:
                if not guard.recurs(error, function, *args):
                    raise
                if note:
                    client.warn_once(f"{note}: {type(error).__name__}: {error}")
                return otherwise(*args)

        return cast("F", dynamo.skip_all(run))

    return decorate


bury: Final = bookkeeping()(Sites.bury)
"""Forget the modules that were deleted since the last call."""


@bookkeeping()
def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return a key of the shapes, dtypes and autocast dtype of a call. Calls with equal keys share their events.

    The key is None, as for ranges without shapes, if reading an argument fails.
    """
    tensors = tensors_in(args, kwargs, is_tensor)
    with torch._C.DisableTorchFunction():
        autocast = autocast_dtype(tensors) if is_autocast() else ""
        if all(type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_nested for tensor in tensors):
            return autocast, *[(tensor.shape, tensor.dtype) for tensor in tensors]
        return autocast, *map(spec_of, tensors)


@bookkeeping(note="a layer runs without a range")
def remember(site: Site, key: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the events of a call with these arguments, or None if creating them fails."""
    if is_tracing() is not None:  # torch.jit.trace would record the access to a shape
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
    """Return the events of a call while a backward is open. Inside a node they are those of a recomputation."""
    if current_node() is None:
        return events
    recomputed = site.recomputed.recall(events[0])
    if recomputed is None:
        with torch._C.DisableTorchFunction():
            recomputed = site.recomputed.keep(events[0], (site.make_recompute_event(args, kwargs), events[1]))
    return recomputed  # type: ignore[no-any-return]


FOR_C: Final[dict[str, Any]] = {
    "bury": bury,
    "current_thread": autograd_nodes.current_thread,
    "device_of": device_of,
    "find_layout": autograd_nodes.find_layout,
    "follow_switches": greenlets.follow_switches,
    "if_recomputed": if_recomputed,
    "is_node": autograd_nodes.is_node,
    "remember": remember,
    "signature": signature,
    "visit": visit,
}
"""Functions that annot/native/emit calls, passed to its `bind`."""
