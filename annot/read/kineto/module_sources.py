"""Places where the classes of modules define `forward`, from torch.profiler's Python stacks (``with_stack=True``).

A call of a module is ``nn.Module: Block_3``, with the frame of `_call_impl` inside it, and in that one
``model.py(12): forward``. Frames have increasing ids in the order of their calls, which is their order in the file. A
module with hooks has another frame in between, and no source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from annot.read.kineto.trace_events import Event

__all__ = ["MODULE", "ModuleSources"]

MODULE: Final = "nn.Module: "
"""Start of the names of calls of modules."""
_CALLS: Final = 2
"""Number of calls of each module that are read. The frames of a call can be in two blocks of the file."""
_NEAR: Final = 8
"""Number of frames from the call of a module to `forward`, including built-in functions that `_call_impl` calls."""
_FUNCTION: Final = re.compile(r"(.+)\((\d+)\): forward", re.DOTALL)
_HIDDEN: Final = re.compile(r"<|(?:.*/site-packages/)?(?:torch|keras|tf_keras|tensorflow|annot)/")
"""Generated code, such as ``<eval_with_key>.5``, and the frameworks."""


class _Args(msgspec.Struct):
    python: int | None = msgspec.field(name="Python id", default=None)
    parent: int | None = msgspec.field(name="Python parent id", default=None)


_ARGS: Final = msgspec.json.Decoder(_Args)


class ModuleSources:
    """File and line of `forward` by class of module."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._found: dict[str, dict[str, None]] = {}

    def add(self, frames: Sequence[Event], modules: Sequence[int]) -> None:
        """Add frames of a block, of which those at the indices `modules` are calls of modules."""
        for index in modules:
            name = frames[index].name
            if self._calls[name] < _CALLS:
                self._calls[name] += 1
                source = _forward_of(frames[index : index + _NEAR])
                if source:
                    self._found.setdefault(re.sub(r"_\d+$", "", name.removeprefix(MODULE)), {})[source] = None

    def by_class(self) -> dict[str, str]:
        """Return file and line, as "model.py:12", by class; none for classes of a framework."""
        return {module: ", ".join(sources) for module, sources in self._found.items()}


def _forward_of(frames: Sequence[Event]) -> str:
    """Return file and line of the `forward` of a call of a module, whose frame is the first; "" if unknown."""
    module = _args(frames[0]).python
    for frame in frames[1:]:
        match = _FUNCTION.fullmatch(frame.name)
        if match and module is not None and _args(frame).parent == module + 1:
            return "" if _HIDDEN.match(match[1]) else f"{match[1]}:{match[2]}"
    return ""


def _args(frame: Event) -> _Args:
    try:
        return _ARGS.decode(frame.args)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Args()
