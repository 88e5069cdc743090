"""Operators of `torch.ops`: their names in ranges, and marks with the results of formulas that a program registers.

A program registers the FLOPs of its operators with `torch.utils.flop_counter.register_flop_formula`. The formula gets
tensors without data, so it neither waits for a GPU nor depends on values that later calls do not have.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import torch

from annot.emit import client, guard
from annot.emit.shapes import tensors_in
from annot.labels.marks import format_work
from annot.torch.internals import internal
from annot.torch.module_sites import is_tensor

Formula: TypeAlias = Callable[..., Any]

_OVERLOAD: Final = internal("torch._ops.OpOverload")
OPERATORS: Final = frozenset({_OVERLOAD, internal("torch._ops.OpOverloadPacket")})
"""Types of operators. `torch.library.custom_op` and ``torch.ops.mylib.scale.default`` call an overload of a packet."""
_SYMBOLS: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
_disable_modes: Final[Callable[[], Any]] = internal("torch.utils._python_dispatch._disable_current_modes")


@functools.lru_cache(4096)
def operator_name(operator: Any) -> str:
    """Return the name of an operator. Outside ATen it has its library, as in ``mylib::linear``."""
    library, name = operator.__module__.rpartition(".")[2], operator.__name__.partition(".")[0]
    return name if library == "aten" else f"{library}::{name}"


def operator_parameters(operator: Any) -> tuple[str, ...]:
    """Return the names of the positional parameters of an operator, those of the overload with most of them."""
    positional = [
        tuple(argument.name for argument in schema if not argument.kwarg_only) for schema in _schemas(operator)
    ]
    return max(positional, key=len, default=())


def formula_of(func: Any) -> Formula | None:
    """Return the registered formula of an operator, or None. The registry is used only if the program loaded it."""
    registry = getattr(sys.modules.get("torch.utils.flop_counter"), "flop_registry", None)
    if not registry or type(func) not in OPERATORS or not client.attached():  # torch.profiler has no marks
        return None
    found: Formula | None = registry.get(func.overloadpacket if type(func) is _OVERLOAD else func)
    return found


def marked(inside: Callable[..., Any], formula: Formula, text: str) -> Callable[..., Any]:
    """Return a wrapper for one call that also emits the mark of `annot.labels.marks.format_work`.

    Args:
        inside: wrapper of `annot.emit.client.wrapper` with the range of the call.
        formula: formula of the operator. A formula that raises leaves no mark.
        text: text of the range.
    """

    def call(func: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = inside(func, instance, args, kwargs)
        guard.attempt(_mark, formula, text, func, args, kwargs, result, otherwise=None)
        return result

    return call


def _mark(
    formula: Formula, text: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> None:
    with torch._C.DisableTorchFunction(), _disable_modes():  # modes of the program must not see new tensors
        copies: dict[int, Any] = {}
        inputs, named, output = (_without_data(value, copies) for value in (args, dict(kwargs), result))
        flops = formula(*inputs, **named, out_val=output)
        written = [output, *_mutated(func, inputs, named)]
        sizes = _size(tensors_in(inputs, named, is_tensor)), _size(tensors_in(written, {}, is_tensor))
    client.mark_fact(format_work(text, int(flops), *sizes), few=False)


def _without_data(value: Any, copies: dict[int, Any]) -> Any:
    """Return a value with a tensor of the device ``meta`` for each of its tensors.

    Raises:
        ValueError: a size is symbolic. To read its value would specialize the traced graph.
    """
    if isinstance(value, _SYMBOLS):
        raise ValueError(f"sizes must be numbers, got {type(value).__name__}")
    if is_tensor(value):
        if id(value) not in copies:
            sizes = [_without_data(size, copies) for size in value.shape]
            copies[id(value)] = torch.empty(sizes, dtype=value.dtype, device="meta")
        return copies[id(value)]
    if isinstance(value, dict):
        return {name: _without_data(item, copies) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [_without_data(item, copies) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _mutated(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operator writes to, as its schema says. Overloads differ little in them."""
    schema = _schemas(func)[0]
    values = dict(zip([argument.name for argument in schema], args, strict=False)) | dict(kwargs)
    written = [argument.name for argument in schema if argument.alias_info and argument.alias_info.is_write]
    return [values[name] for name in written if name in values]


def _schemas(operator: Any) -> list[Any]:
    """Return the parameters of each overload of an operator."""
    is_overload = type(operator) is _OVERLOAD
    overloads = [operator] if is_overload else [getattr(operator, name) for name in operator.overloads()]
    return [overload._schema.arguments for overload in overloads]


def _size(tensors: Iterable[Any]) -> int:
    """Return the bytes of different tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in {id(tensor): tensor for tensor in tensors}.values())
