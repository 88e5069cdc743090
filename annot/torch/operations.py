"""Operations: a range around each function of PyTorch that a layer calls, with what it was called with.

PyTorch offers every call of its functions to the modes that are entered on the thread. This one is entered while a
model is being called, so that PyTorch outside it is left alone. A mode is felt in three places, where it steps
aside: what is compiled or traced would have it in its graph; and modules with a fast path of their own (the
transformer encoder, attention) do not take it while a mode is there.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from annot import emit, own, tag
from annot.recent import Recent
from annot.shapes import MAX_TENSORS, spec_of, tensors_in
from annot.torch.calls import pass_over, watcher
from annot.torch.sites import Site, autocast_dtype, is_tensor, shown

__all__ = ["MAX_ARGUMENTS", "MAX_ITEMS", "MAX_TEXT", "MAX_VARIANTS", "Operations"]

MAX_ARGUMENTS: Final = 16
"""How many arguments that are no tensors are spelt out."""
MAX_ITEMS: Final = 8
"""How long a sequence of numbers may be that is spelt out."""
MAX_TEXT: Final = 40
"""How long a string may be that is spelt out."""
MAX_VARIANTS: Final = 64
"""How many texts of one operation of one layer show arguments that are no tensors; later ones show shapes alone."""

_QUERIES: Final = {
    *("__get__", "__set__", "__delete__", "__len__", "__hash__", "__repr__", "__str__", "__format__", "__deepcopy__"),
    *("data_ptr", "dim", "element_size", "get_device", "has_names", "ndimension", "nelement", "numel", "size"),
    *("register_hook", "requires_grad_", "retain_grad", "storage", "storage_offset", "stride", "untyped_storage"),
}
"""What computes nothing and has no range, like all that begins with ``is_``."""

_FAST_PATHS: Final = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer)
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)
_SCALARS: Final = (bool, int, float, str, type(None))
_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_frames: Any = torch._C._dynamo.eval_frame
_is_compiling: Final = torch.compiler.is_dynamo_compiling
_is_autocast: Final = torch._C._is_any_autocast_enabled
_is_tracing: Final = torch._C._get_tracing_state
_stack: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
_push_mode: Callable[[Any], None] = torch.overrides._push_mode
_pop_mode: Callable[[], Any] = torch.overrides._pop_mode
_mode_count: Final = torch._C._len_torch_function_stack


class _Here(threading.local):
    on = False


class Operations(TorchFunctionMode):
    """The mode that opens the ranges.

    Args:
        site: returns the `Site` of the innermost module that this thread calls, or None.
    """

    def __init__(self, site: Callable[[], Site | None]) -> None:
        super().__init__()
        self._site = site
        self._here = _Here()

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls a module by `original`, with the mode if it may have it."""

        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            watching = watcher()  # torch.compile, if it may compile what is called from here on
            on, switches = self._here.on, False
            try:
                try:
                    if watching is not None:
                        _frames.set_eval_frame(None)
                    suits = watching is None and self._suits(module)
                    # Below somebody else's mode it cannot step aside: theirs must be on top when they leave it.
                    switches = suits is not on and (suits or _stack()[-1:] == [self])
                    if switches:
                        self._switch(suits)
                finally:
                    if watching is not None:
                        _frames.set_eval_frame(watching)
                return original(module, *args, **kwargs)
            finally:
                if switches:
                    own.to_the_end(self._switch, on)

        for function in (call, Operations._switch, Operations.__torch_function__):
            pass_over(function)
        return call

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func` in its range, if it has one."""
        given = kwargs or {}
        if _is_compiling() or _is_tracing() is not None:
            return func(*args, **given)
        inside = self._range_of(func, bool(types), args, given)
        return func(*args, **given) if inside is None else inside(func, None, args, given)

    def _suits(self, module: Any) -> bool:
        """Return whether the functions that this module calls itself may have ranges."""
        if self._site() is None or module._compiled_call_impl is not None:
            return False
        return module.training or not isinstance(module, _FAST_PATHS)

    def _switch(self, on: bool) -> None:
        """Enter or leave the mode on this thread; those of others that were left open above it stay."""
        stack = _stack()
        if on and self not in stack:
            _push_mode(self)
        elif not on and self in stack:
            place = stack.index(self)
            for _ in stack[place:]:
                _pop_mode()
            for mode in stack[place + 1 :]:
                _push_mode(mode)
        self._here.on = on

    def _range_of(self, func: Any, is_watched: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what calls inside the range of a call, as `emit.wrapper` makes it; None if it has no range."""
        name = getattr(func, "__name__", "__get__")
        if name in _QUERIES or name.startswith("is_") or (site := self._site()) is None:
            return None
        events = site.operations.get(name)
        if events is None:
            events = site.operations[name] = Recent()
        if not site.shapes:
            return events.get(None) or _remember(events, None, site, name)
        try:
            return _look(is_watched, events, site, func, args, kwargs)
        except Exception as error:  # an argument that does not let itself be looked at
            if not own.recurs(error, _look, is_watched, events, site, func, args, kwargs):
                raise
            return events.get(None) or _remember(events, None, site, name)


def _look(
    is_watched: bool, events: Recent, site: Site, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    if is_watched or _mode_count():  # a class of tensors of its own, or somebody's mode, would see us look at them
        with torch._C.DisableTorchFunction():
            return _event_of(events, site, func, args, kwargs)
    return _event_of(events, site, func, args, kwargs)


def _event_of(events: Recent, site: Site, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    key: Any = tuple([_key(value, 2) for value in args])
    if kwargs:
        key = key, *[(name, _key(value, 2)) for name, value in kwargs.items()]
    if _is_autocast():
        key = autocast_dtype(tensors_in(args, kwargs, is_tensor)), key
    found = events.get(key) or events.recall(key)
    if found is not None:
        return found
    tensors, arguments = _spelt_out(func, args, kwargs)
    if len(events) >= MAX_VARIANTS:
        arguments = ()
    specs, omitted, autocast = shown(tensors)
    return _remember(events, key, site, func.__name__, specs, omitted, arguments + autocast)


def _remember(
    events: Recent,
    key: Any,
    site: Site,
    name: str,
    specs: tuple[tag.TensorSpec, ...] = (),
    omitted: int = 0,
    arguments: tuple[tuple[str, tag.Value], ...] = (),
) -> Any:
    one = tag.Tag(site.layer, site.module, "op", specs, omitted, op=name, arguments=arguments)
    return events.keep(key, emit.wrapper(emit.event(tag.format(one), category="op")))


def _key(value: Any, depth: int) -> Any:
    """Return what two values have in common that show alike."""
    kind = type(value)
    if kind in _TENSORS:
        return value.shape, value.dtype
    if kind in _SCALARS:
        return kind, value  # the kind, because True and 1 and 1.0 are equal
    if depth and kind in (list, tuple):
        return len(value), *[_key(item, depth - 1) for item in value[:MAX_TENSORS]]
    if kind is slice:
        return slice, _key(value.start, 0), _key(value.stop, 0), _key(value.step, 0)
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    return value if kind in _NAMED else kind


def _spelt_out(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Any], tuple[tuple[str, tag.Value], ...]]:
    """Return the tensors of a call, and the names and values of its other arguments, as far as they are spelt out."""
    tensors: list[Any] = []
    arguments: list[tuple[str, tag.Value]] = []
    for name, value in _named(_parameters(func), args, kwargs):
        found = tensors_in([value], {}, is_tensor)
        tensors += found
        if not found and len(arguments) < MAX_ARGUMENTS:
            arguments += [(name, spelt) for spelt in _spelt(value)]
    return tensors, tuple(arguments)


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each argument with its name; ``view(2, 3)`` gives its last name to all that remains."""
    last = len(names) - 1
    joins = len(args) > len(names) > 0 and not any(map(is_tensor, args[last:]))
    for place, value in enumerate(args[:last] if joins else args):
        yield names[place] if place <= last else f"arg{place}", value
    if joins:
        yield names[last], args[last:]
    yield from kwargs.items()


@functools.lru_cache(4096)
def _parameters(func: Any) -> tuple[str, ...]:
    """Return the names of the positional arguments of a function, as far as PyTorch documents them."""
    try:
        known = torch.overrides.get_testing_overrides().get(func, func)
        parameters = inspect.signature(known).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD))


def _spelt(value: Any) -> list[tag.Value]:
    """Return the value as a tag has it, in a list; an empty one if it is not spelt out."""
    if isinstance(value, (list, tuple)):
        items = [_spelt_item(item) for item in value[: MAX_ITEMS + 1]]
        return [] if len(items) > MAX_ITEMS or not all(items) else [tuple(item[0] for item in items)]
    return [*_spelt_item(value)]


def _spelt_item(value: Any) -> tuple[tag.Scalar, ...]:
    kind = type(value)
    if kind is str:
        return (value,) if len(value) <= MAX_TEXT else ()
    if kind in _SCALARS:
        return (value,)
    if kind is slice:
        parts = [value.start, value.stop] + ([value.step] if value.step is not None else [])
        plain = all(type(part) in (int, type(None)) for part in parts)
        return (":".join("" if part is None else str(part) for part in parts),) if plain else ()
    if value is Ellipsis:
        return ("...",)
    if kind in _NAMED:
        return (tag.short_dtype(str(value)),)
    return ()
