"""Patches of PyTorch's functions while a block of `emit_ranges` is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from annot.emit import guard, patches
from annot.emit.outermost import Outermost
from annot.torch.dynamo import skip
from annot.torch.internals import is_compiling


class Patches(patches.Patches):
    """Replaced attributes, restored in reverse order."""

    def surround(self, owner: Any, name: str, kind: str, make_event: Callable[..., Any]) -> None:
        """Open a range around each call of a function of a class or module. A missing attribute is ignored.

        Among nested calls of the same kind, only the outermost has a range. `make_event` returns its event from the
        arguments of the call, or None for no range. torch.compile traces the original through the wrapper.
        """
        original: Any = getattr(owner, name, None)
        if original is None:
            return

        def inside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outermost:
            opens = self.live and Outermost.free(kind)
            event = guard.attempt(lambda: make_event(*args, **kwargs), otherwise=None) if opens else None
            return Outermost(kind, event)

        def call_method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            with inside((self, *args), kwargs):
                return original(self, *args, **kwargs)

        def call_function(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            with inside(args, kwargs):
                return original(*args, **kwargs)

        wrapper: Any = call_method if isinstance(owner, type) else call_function
        # pybind11's get_override compares name and self of the calling frame, to detect a call from the override
        # itself. Without the name, a subclass that does not override the method would call this wrapper in an endless
        # recursion.
        wrapper.__code__ = wrapper.__code__.replace(co_name=name)
        skip(wrapper)
        self.replace(owner, name, functools.wraps(original)(wrapper))
