"""Stand-ins in the places of PyTorch's functions, while a block of `emit_ranges` is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from annot import own, patches
from annot.outermost import Outermost
from annot.torch.calls import pass_over

__all__ = ["Patches"]

_is_compiling: Final = torch.compiler.is_dynamo_compiling


class Patches(patches.Patches):
    """Attributes that were replaced, to be put back in reverse order."""

    def surround(self, owner: Any, name: str, kind: str, make_event: Callable[..., Any]) -> None:
        """Open a range around each call of a function.

        Args:
            owner: the class or module that has the function.
            name: its name there; where there is no such attribute, nothing happens.
            kind: of calls inside a call of the same kind, only the outermost has a range.
            make_event: returns the event of the range, from the arguments of the call; None: no range.
        """
        original: Any = getattr(owner, name, None)
        if original is None:
            return

        def inside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outermost:
            wanted = self.live and Outermost.free(kind)
            event = own.attempt(lambda: make_event(*args, **kwargs), otherwise=None) if wanted else None
            return Outermost(kind, event)

        self.replace(owner, name, _stand_in(original, name, inside, method=isinstance(owner, type)))


def _stand_in(original: Any, name: str, inside: Callable[..., Outermost], *, method: bool) -> Any:
    """Return what calls `original` inside the range; torch.compile traces through it, and must see the original."""

    def call_method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(self, *args, **kwargs)
        with inside((self, *args), kwargs):
            return original(self, *args, **kwargs)

    def call_function(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(*args, **kwargs)
        with inside(args, kwargs):
            return original(*args, **kwargs)

    made: Any = call_method if method else call_function
    # Before a class of C++ calls the method of a subclass, pybind11 looks at the frame: is the caller one of this name
    # with this self? Without that name, a subclass without such a method would end up here again and again.
    made.__code__ = made.__code__.replace(co_name=name)
    pass_over(made)
    return functools.wraps(original)(made)
