"""Patch of `torch.nn.Module.__call__`, which opens the range of a module call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from annot.torch.module_calls import Calls, pass_over, patched_call
from annot.torch.patches import Patches

__all__ = ["hide_from_profiler", "install", "left_behind"]


def install(undo: list[Any], calls: Any, around: Callable[[Any], Any] | None) -> None:
    """Patch `torch.nn.Module.__call__`, and add a function to `undo` that restores it.

    The patch calls ``around(original)``, or the original while torch.compile traces. If other code has wrapped
    `__call__` in the meantime, the patch stays below that wrapper. Without sites it only calls the original. A later
    block uses it again instead of adding a second patch on top.
    """
    global _original_call, _inner_call, _call, _left
    ours = patched_call if isinstance(calls, Calls) else _native_call
    here = torch.nn.Module.__call__
    undo.append(functools.partial(_uninstall, ours))
    if here is not ours and left_behind() is None:
        _original_call, _left = here, None
        pass_over(ours)
        torch.nn.Module.__call__ = ours  # type: ignore[method-assign]
    _inner_call = around(_original_call) if around else _original_call
    if isinstance(calls, Calls):
        calls.take_calls(_original_call, _inner_call)
        _call = _call_in_python  # the patch that was left behind may be that of the C extension
    else:
        _call = calls.call


def left_behind() -> Any:
    """Return the patch that was left behind below a wrapper of other code, or None."""
    return _left if torch.nn.Module.__call__ is not _original_call else None


def _uninstall(ours: Any) -> None:
    global _inner_call, _left
    _inner_call = _original_call
    if torch.nn.Module.__call__ is ours:
        torch.nn.Module.__call__ = _original_call  # type: ignore[method-assign]
    elif torch.nn.Module.__call__ is not _original_call:
        _left = _left or ours


# State of `_native_call`. These are globals because torch.compile recompiles when the closure of a traced function
# changes, and leaving the block restores a function without a closure.
_is_compiling = torch.compiler.is_dynamo_compiling
_original_call: Any = None
_inner_call: Any = None
_left: Any = None
_call: Any = None


def _call_in_python(_: Any, module: Any, args: Any, kwargs: Any) -> Any:
    return patched_call(module, *args, **kwargs)


def _native_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # PyTorch's profiler reads `self`
    # torch.compile traces through this function, and must see the original.
    if _is_compiling():
        return _original_call(self, *args, **kwargs)
    return _call(_inner_call, self, args, kwargs)


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
        torch.nn.Module.__call__ = _original_call  # type: ignore[method-assign]
        try:
            return start(*args, **kwargs)
        finally:
            if patches.live:
                torch.nn.Module.__call__ = current  # type: ignore[method-assign]

    patches.replace(profiler, "_enable_profiler", enable)
