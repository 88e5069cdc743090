"""Keep the module events of `torch.profiler`.

With stacks, PyTorch takes a frame for a module call if the frame runs the code of ``torch.nn.Module.__call__``, and
reads the local variable ``self`` of the frame. It looks up that code once per process, at the first such profile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from annot.patches import Patches

__all__ = ["install"]


def install(patches: Patches, stand_ins: tuple[Any, ...], original: Callable[[], Any]) -> None:
    """Have a profiler that starts see the original ``torch.nn.Module.__call__``.

    Args:
        patches: what is undone at the end of the block.
        stand_ins: the functions of annot that may be ``torch.nn.Module.__call__``.
        original: returns the function that they replace.
    """
    profiler: Any = torch.autograd.profiler
    start = profiler._enable_profiler

    @functools.wraps(start)
    def enable(*args: Any, **kwargs: Any) -> Any:
        here = torch.nn.Module.__call__
        if not patches.live or here not in stand_ins:
            return start(*args, **kwargs)
        torch.nn.Module.__call__ = original()  # type: ignore[method-assign]
        try:
            return start(*args, **kwargs)
        finally:
            if patches.live:
                torch.nn.Module.__call__ = here  # type: ignore[method-assign]

    patches.replace(profiler, "_enable_profiler", enable)
