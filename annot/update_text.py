"""What the range of an optimizer's step says: how many parameters it updates, and what else its work depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from annot.tag import Value

__all__ = ["NUMBERS", "Row", "arguments", "switched_on"]

NUMBERS: Final = ("momentum", "dampening", "nesterov", "amsgrad", "centered", "maximize")
"""Hyper-parameters that cost work where they are not zero; the text says that they are on, not what they are."""

Row: TypeAlias = tuple[int, str, frozenset[tuple[str, Value]]]
"""Number of parameters, their dtype in short, and the hyper-parameters that are on."""


def switched_on(given: Mapping[str, object], *, decoupled: bool = False) -> frozenset[tuple[str, Value]]:
    """Return the hyper-parameters of a group that cost work.

    Tensors are left alone, since to look at one would wait for its device.

    Args:
        given: names and values.
        decoupled: whether weights decay by themselves, instead of by their gradients.

    Example:
        >>> switched_on({"momentum": 0.9, "nesterov": False, "weight_decay": 0})
        frozenset({('momentum', True)})
    """
    on: set[tuple[str, Value]] = {(name, True) for name in NUMBERS if _is_on(given.get(name))}
    if _is_on(given.get("weight_decay")):
        on.add(("weight_decay", "decoupled" if decoupled else True))
    return frozenset(on)


def arguments(rows: Iterable[Row]) -> tuple[tuple[str, Value], ...]:
    """Return the arguments of the tag; one item for each kind of parameters where there are several kinds.

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
    said: list[tuple[str, list[Value]]] = [("params", list(kinds.values()))]
    if any(dtype != "f32" for dtype, _ in kinds):
        said.append(("dtype", [dtype for dtype, _ in kinds]))
    for name in (*NUMBERS, "weight_decay"):
        values: list[Value] = [dict(on).get(name, False) for _, on in kinds]
        if any(values):
            said.append((name, values))
    return tuple((name, _one_or_all(values)) for name, values in said)


def _is_on(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and bool(value)


def _one_or_all(values: list[Value]) -> Value:
    return values[0] if len(values) == 1 else tuple(values)  # type: ignore[arg-type]  # none of them is a tuple
