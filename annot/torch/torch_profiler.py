"""Compatibility with the module events of `torch.profiler`.

With ``with_stack=True``, PyTorch treats a frame as a module call if it runs the code of ``torch.nn.Module.__call__``,
and reads the local variable ``self`` of the frame. It looks up that code once per process, at the first such profile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from annot.emit.patches import Patches

__all__ = ["install"]


def install(patches: Patches, patched: tuple[Any, ...], original: Callable[[], Any]) -> None:
    """Restore the original ``torch.nn.Module.__call__`` while a profiler starts.

    Args:
        patches: patches of the block.
        patched: functions of annot that may replace ``torch.nn.Module.__call__``.
        original: returns the original ``__call__``.
    """
    profiler: Any = torch.autograd.profiler
    start = profiler._enable_profiler

    @functools.wraps(start)
    def enable(*args: Any, **kwargs: Any) -> Any:
        current = torch.nn.Module.__call__
        if not patches.live or current not in patched:
            return start(*args, **kwargs)
        torch.nn.Module.__call__ = original()  # type: ignore[method-assign]
        try:
            return start(*args, **kwargs)
        finally:
            if patches.live:
                torch.nn.Module.__call__ = current  # type: ignore[method-assign]

    patches.replace(profiler, "_enable_profiler", enable)
