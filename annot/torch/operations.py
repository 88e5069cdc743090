"""Ranges around the PyTorch functions that a layer calls, with shapes and arguments.

PyTorch passes every call of its functions to the torch function modes of the thread. The mode of this module is active
only during calls of the model. It is inactive in code that is compiled or traced, because it would become part of the
graph, and in modules with a fast path (transformer encoder, attention), because a mode disables the fast path.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from annot.emit import client, guard
from annot.emit.shapes import MAX_TENSORS, spec_of, tensors_in
from annot.labels import tag
from annot.labels.hyperparameters import Arguments
from annot.torch.dynamo import set_callback
from annot.torch.flop_formulas import OPERATORS, formula_of, marked, operator_name, operator_parameters
from annot.torch.internals import internal, is_autocast, is_compiling, is_tracing, mode_count
from annot.torch.module_sites import Shown, Site, autocast_dtype, is_tensor, shown
from annot.util.lru_cache import Recent

MAX_ARGUMENTS: Final = 16
"""Maximum number of non-tensor arguments in a range."""
MAX_ITEMS: Final = 8
"""Maximum length of a sequence argument in a range."""
MAX_TEXT: Final = 40
"""Maximum length of a string argument in a range."""
MAX_VARIANTS: Final = 64
"""Maximum number of texts with non-tensor arguments per operation and layer. Later texts only show shapes."""

_QUERIES: Final = {
    *("__get__", "__set__", "__delete__", "__len__", "__hash__", "__repr__", "__str__", "__format__", "__deepcopy__"),
    *("data_ptr", "dim", "element_size", "get_device", "has_names", "ndimension", "nelement", "numel", "size"),
    *("register_hook", "requires_grad_", "retain_grad", "storage", "storage_offset", "stride", "untyped_storage"),
}
"""Functions that compute nothing. They run without a range, like those whose name starts with ``is_``."""

_FAST_PATHS: Final = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer)
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)
_SCALARS: Final = (bool, int, float, str, type(None))
_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_stack: Final[Callable[[], list[Any]]] = internal("torch.overrides._get_current_function_mode_stack")
_push_mode: Final[Callable[[Any], None]] = internal("torch.overrides._push_mode")
_pop_mode: Final[Callable[[], Any]] = internal("torch.overrides._pop_mode")


class _Active(threading.local):
    on = False


class Operations(TorchFunctionMode):
    """Torch function mode that opens the ranges. `site` returns the `Site` of the thread's innermost module call."""

    def __init__(self, site: Callable[[], Site | None]) -> None:
        super().__init__()
        self._site = site
        self._active = _Active()

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of `original`, the `__call__` of modules, that enables the mode where it is supported."""

        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            on, switches = self._active.on, False
            try:
                watching = set_callback(None)  # not None if torch.compile may compile the code called from here
                try:
                    supported = watching is None and self._supports(module)
                    # The mode cannot be popped below another one, which must be on top when its owner leaves it.
                    switches = supported is not on and (supported or _stack()[-1:] == [self])
                    if switches:
                        self._switch(supported)
                finally:
                    set_callback(watching)
                return original(module, *args, **kwargs)
            finally:
                if switches:
                    guard.to_the_end(self._switch, on)

        return call

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, inside its range if it has one."""
        given = kwargs or {}
        if is_compiling() or is_tracing() is not None:
            return func(*args, **given)
        inside = self._range_of(func, bool(types), args, given)
        return func(*args, **given) if inside is None else inside(func, None, args, given)

    def _supports(self, module: Any) -> bool:
        """Return whether functions that this module calls may have ranges."""
        if self._site() is None or module._compiled_call_impl is not None:
            return False
        return module.training or not isinstance(module, _FAST_PATHS)

    def _switch(self, on: bool) -> None:
        """Enter or leave the mode on this thread. Other modes above it on the stack are kept."""
        stack = _stack()
        if on and self not in stack:
            _push_mode(self)
        elif not on and self in stack:
            position = stack.index(self)
            for _ in stack[position:]:
                _pop_mode()
            for mode in stack[position + 1 :]:
                _push_mode(mode)
        self._active.on = on

    def _range_of(self, func: Any, is_watched: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the wrapper from `client.wrapper` with the range of a call, or None if it runs without a range."""
        name = operator_name(func) if type(func) in OPERATORS else getattr(func, "__name__", "__get__")
        if name in _QUERIES or name.startswith("is_") or (site := self._site()) is None:
            return None
        events = site.operations.get(name)
        if events is None:
            events = site.operations[name] = Recent()
        if not site.shapes:
            return events.get(None) or _remember(events, None, _text(site, name))
        try:
            return _find_event(is_watched, events, site, name, func, args, kwargs)
        except Exception as error:  # e.g. reading the shape of an argument fails
            if not guard.recurs(error, _find_event, is_watched, events, site, name, func, args, kwargs):
                raise
            return events.get(None) or _remember(events, None, _text(site, name))


def _find_event(
    is_watched: bool, events: Recent, site: Site, name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    if is_watched or mode_count():  # a tensor subclass or another mode would intercept the reads
        with torch._C.DisableTorchFunction():
            return _event_of(events, site, name, func, args, kwargs)
    return _event_of(events, site, name, func, args, kwargs)


def _event_of(
    events: Recent, site: Site, name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    key: Any = tuple([_key(value, 2) for value in args])
    if kwargs:
        key = key, *[(keyword, _key(value, 2)) for keyword, value in kwargs.items()]
    if is_autocast():
        key = autocast_dtype(tensors_in(args, kwargs, is_tensor)), key
    cached = events.get(key) or events.recall(key)
    if cached is not None:
        return cached
    tensors, arguments = _shown_arguments(func, args, kwargs)
    if len(events) >= MAX_VARIANTS:
        arguments = ()
    specs, omitted, autocast = shown(tensors)
    text = _text(site, name, (specs, omitted, arguments + autocast))
    inside, formula = _remember(events, key, text), formula_of(func)
    return inside if formula is None else marked(inside, formula, text)  # a mark for the first of equal calls


def _text(site: Site, name: str, description: Shown = ((), 0, ())) -> str:
    specs, omitted, arguments = description
    return tag.format(tag.Tag(site.layer, site.module, "op", specs, omitted, op=name, arguments=arguments))


def _remember(events: Recent, key: Any, text: str) -> Any:
    return events.keep(key, client.wrapper(client.event(text, category="op")))


def _key(value: Any, depth: int) -> Any:
    """Return a key that is equal for values with equal texts."""
    kind = type(value)
    if kind in _TENSORS:
        return value.shape, value.dtype
    if kind in _SCALARS:
        return kind, value  # with the type, because True == 1 == 1.0
    if depth and kind in (list, tuple):
        return len(value), *[_key(item, depth - 1) for item in value[:MAX_TENSORS]]
    if kind is slice:
        return slice, _key(value.start, 0), _key(value.stop, 0), _key(value.step, 0)
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    return value if kind in _NAMED else kind


def _shown_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Arguments]:
    """Return the tensors of a call, and names and values of the other arguments that its range shows."""
    tensors: list[Any] = []
    arguments: list[tuple[str, tag.Value]] = []
    for name, value in _named(_parameters(func), args, kwargs):
        value_tensors = tensors_in([value], {}, is_tensor)
        tensors += value_tensors
        if not value_tensors and len(arguments) < MAX_ARGUMENTS:
            arguments += [(name, formatted) for formatted in _formatted(value)]
    return tensors, tuple(arguments)


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each argument with its name. In ``view(2, 3)``, the last parameter gets all remaining arguments."""
    last = len(names) - 1
    joins = len(args) > len(names) > 0 and not any(map(is_tensor, args[last:]))
    for index, value in enumerate(args[:last] if joins else args):
        yield names[index] if index <= last else f"arg{index}", value
    if joins:
        yield names[last], args[last:]
    yield from kwargs.items()


@functools.lru_cache(4096)
def _parameters(func: Any) -> tuple[str, ...]:
    """Return the names of the positional parameters of a function. Empty if PyTorch does not document them."""
    if type(func) in OPERATORS:
        return operator_parameters(func)
    try:
        stub = torch.overrides.get_testing_overrides().get(func, func)
        parameters = inspect.signature(stub).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)


def _formatted(value: Any) -> list[tag.Value]:
    """Return a list with the formatted value, or an empty list if ranges do not show it."""
    if isinstance(value, (list, tuple)):
        items = [_formatted_item(item) for item in value[: MAX_ITEMS + 1]]
        return [] if len(items) > MAX_ITEMS or not all(items) else [tuple(item[0] for item in items)]
    return [*_formatted_item(value)]


def _formatted_item(value: Any) -> tuple[tag.Scalar, ...]:
    kind = type(value)
    if kind is str:
        return (value,) if len(value) <= MAX_TEXT else ()
    if kind in _SCALARS:
        return (value,)
    if kind is slice:
        bounds = [value.start, value.stop] + ([value.step] if value.step is not None else [])
        plain = all(type(bound) in (int, type(None)) for bound in bounds)
        return (":".join("" if bound is None else str(bound) for bound in bounds),) if plain else ()
    if value is Ellipsis:
        return ("...",)
    if kind in _NAMED:
        return (tag.short_dtype(str(value)),)
    return ()
