"""Steps of optimizers: operations for each parameter that is updated.

What counts as one FLOP is what `annot.analyze.work.elements` says; factors that do not depend on the parameter, as the
bias corrections, are computed once and are free. Both frameworks compute the algorithms of the same papers; where
their code spells one with a multiplication more or less, as in Keras's Nesterov momentum, PyTorch's pages count.

A step reads parameters, gradients and state, and writes parameters and state.

Sources: the algorithms in https://docs.pytorch.org/docs/stable/optim.html (a page per class) and, for Lion and Lamb,
https://keras.io/api/optimizers/. Not counted: what depends on shapes (Adafactor, Muon), on how many gradients are not
zero (SparseAdam), on how often the loss is evaluated (LBFGS), or on which weights are zero (Ftrl).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from annot.analyze.work.call import Call, Cost, Formula, UncountableError, item_size
from annot.tag import Value
from annot.update_text import NUMBERS

__all__ = ["UPDATES"]

_On: TypeAlias = Mapping[str, bool]
_Each: TypeAlias = Callable[[_On], tuple[int, int]]
"""FLOPs, and numbers of state, for each parameter; from the hyper-parameters that are on."""


def _sgd(on: _On) -> tuple[int, int]:
    """p −= γg: 2. Momentum b = μb + (1−τ)g: 2, with dampening 3. Nesterov g + μb: 2."""
    momentum = on["momentum"] * (2 + on["dampening"] + 2 * on["nesterov"])
    return 2 + momentum, int(on["momentum"])


def _adam(on: _On) -> tuple[int, int]:
    """m += (1−β₁)(g−m): 3; v = β₂v + (1−β₂)g²: 4; √v, /√(1−β₂ᵗ), +ε: 3; p −= γm/…: 3. AMSGrad: a maximum."""
    return 13 + on["amsgrad"], 2 + on["amsgrad"]


def _rmsprop(on: _On) -> tuple[int, int]:
    """v = αv + (1−α)g²: 4; √v + ε: 2; p −= γg/…: 3. Momentum b = μb + …: 2. Centred, mean of g: 3, v − mean²: 2."""
    return 9 + 2 * on["momentum"] + 5 * on["centered"], 1 + on["momentum"] + on["centered"]


def _always(flops: int, state: int) -> _Each:
    return lambda _: (flops, state)


_EACH: Final[dict[str, _Each]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "RMSprop": _rmsprop,
    # s += g²: 2; √s + ε: 2; p −= γg/…: 3
    "Adagrad": _always(7, 1),
    # v = ρv + (1−ρ)g²: 4; Δ = √(u+ε)/√(v+ε)·g: 6; u = ρu + (1−ρ)Δ²: 4; p −= γΔ: 2
    "Adadelta": _always(16, 2),
    # m: 3; u = max(β₂u, |g|+ε): 4; p −= γm/u: 3
    "Adamax": _always(10, 2),
    # m: 3; v: 4; √(v/(1−β₂ᵗ)) + ε: 3; p −= …g/… and …m/…: 6
    "NAdam": _always(16, 2),
    "Nadam": _always(16, 2),
    # m: 3; v: 4; 1/(√v + ε): 3; p −= γr·m·…: 3
    "RAdam": _always(13, 2),
    # p *= 1 − λη: 1; p −= ηg: 2; a += μ(p − a): 3
    "ASGD": _always(6, 1),
    # sign of g·before: 2; its step width: 3, times, bounded: 3; g where the sign changed: 1; p −= sign(g)·step: 3
    "Rprop": _always(12, 2),
    # sign(β₁m + (1−β₁)g): 4; p −= γ…: 2; m = β₂m + (1−β₂)g: 3
    "Lion": _always(9, 1),
    # m: 3; v: 4; corrected: 2; m/(√v + ε): 3; the squares of both norms: 4; p −= γr…: 2
    "Lamb": _always(18, 2),
}


def _update(call: Call) -> Cost:
    value = call.arguments.get("params")
    counts = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, int)]
    if not counts:
        raise UncountableError
    flops = moved = weights = 0
    for place, count in enumerate(counts):
        on = {name: bool(_item(call, name, place)) for name in NUMBERS}
        each, state = _EACH[call.name](on)
        size = count * item_size(str(_item(call, "dtype", place) or "f32"))
        flops += count * (each + on["maximize"] + _decay(call, place))
        moved, weights = moved + size * (1 + state), weights + size
    return Cost(flops, moved, moved, weights, sum(counts))


def _decay(call: Call, place: int) -> int:
    """g += λp: 2; decoupled, p *= 1 − γλ: 1."""
    decays = _item(call, "weight_decay", place)
    return 0 if not decays else 1 if decays == "decoupled" or call.name == "AdamW" else 2


def _item(call: Call, name: str, place: int) -> Value:
    """Return what is said of one kind of parameters."""
    value = call.arguments.get(name)
    return value[place] if isinstance(value, tuple) else value


UPDATES: Final[dict[str, Formula]] = dict.fromkeys(_EACH, _update)
"""Formulas of optimizer steps, by class."""
