"""Arguments in the range name of an optimizer step: parameter counts and hyperparameters that affect the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from annot.labels import tag
from annot.labels.tag import Value

NUMBERS: Final = ("momentum", "dampening", "nesterov", "amsgrad", "centered", "maximize")
"""Hyperparameters that add work unless they are zero. Range names record that they are on, not their values."""

Row: TypeAlias = tuple[int, str, frozenset[tuple[str, Value]]]
"""Number of parameters, their short dtype, and the hyperparameters that are on."""


def switched_on(given: Mapping[str, object], *, decoupled: bool = False) -> frozenset[tuple[str, Value]]:
    """Return the hyperparameters of a parameter group that add work, and whether its step is fused.

    Tensors are ignored, because reading one would synchronize with its device.

    Args:
        given: names and values of the hyperparameters.
        decoupled: whether weight decay is decoupled from the gradients, as in AdamW.

    Example:
        >>> switched_on({"momentum": 0.9, "nesterov": False, "weight_decay": 0})
        frozenset({('momentum', True)})
    """
    on: set[tuple[str, Value]] = {(name, True) for name in NUMBERS if _is_on(given.get(name))}
    if _is_on(given.get("weight_decay")):
        on.add(("weight_decay", "decoupled" if decoupled else True))
    if given.get("fused") is True:
        on.add(("fused", True))
    return frozenset(on)


def text(name: str, arguments: tuple[tuple[str, Value], ...] = ()) -> str:
    """Return the range name for a step of an optimizer.

    Args:
        name: class of the optimizer.
        arguments: names and values, as returned by `arguments`.
    """
    return tag.format(tag.Tag(module=name, phase="optimizer", arguments=arguments))


def arguments(rows: Iterable[Row]) -> tuple[tuple[str, Value], ...]:
    """Return the arguments of the tag. With several kinds of parameters, values are tuples with an item per kind.

    Example:
        >>> on = frozenset({("weight_decay", True)})
        >>> arguments([(8, "f32", on), (2, "f32", on)])
        (('params', 10), ('weight_decay', True))
        >>> arguments([(8, "bf16", on), (2, "f32", frozenset())])
        (('params', (8, 2)), ('dtype', ('bf16', 'f32')), ('weight_decay', (True, False)))
    """
    kinds: dict[tuple[str, frozenset[tuple[str, Value]]], int] = {}
    for params, dtype, on in rows:
        kinds[dtype, on] = kinds.get((dtype, on), 0) + params
    if not kinds:
        return ()
    columns: list[tuple[str, list[Value]]] = [("params", list(kinds.values()))]
    if any(dtype != "f32" for dtype, _ in kinds):
        columns.append(("dtype", [dtype for dtype, _ in kinds]))
    for name in (*NUMBERS, "weight_decay", "fused"):
        values: list[Value] = [dict(on).get(name, False) for _, on in kinds]
        if any(values):
            columns.append((name, values))
    return tuple((name, _one_or_all(values)) for name, values in columns)


def _is_on(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and bool(value)


def _one_or_all(values: list[Value]) -> Value:
    return values[0] if len(values) == 1 else tuple(values)  # type: ignore[arg-type]  # scalars only
