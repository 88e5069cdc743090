"""Cost of optimizer steps: FLOPs per updated parameter.

FLOPs are counted as in `annot.analyze.work.elementwise`. Factors that do not depend on the parameter, such as bias
corrections, are computed once and are free. PyTorch and Keras implement the same algorithms. Where their code differs
by a multiplication, as in Keras's Nesterov momentum, the count follows PyTorch's documentation.

A step reads parameters, gradients and state, and writes parameters and state.

Sources: the algorithms in https://docs.pytorch.org/docs/stable/optim.html (a page per class) and, for Lion and Lamb,
https://keras.io/api/optimizers/. Optimizers are not counted if their work depends on shapes (Adafactor, Muon), on the
number of nonzero gradients (SparseAdam), on the number of loss evaluations (LBFGS) or on zero weights (Ftrl).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from annot.analyze.work.call import Call, Cost, Formula, UncountableError, item_size
from annot.labels.optimizer_arguments import NUMBERS
from annot.labels.tag import Value

__all__ = ["UPDATES"]

_Options: TypeAlias = Mapping[str, bool]
_PerParameter: TypeAlias = Callable[[_Options], tuple[int, int]]
"""Takes the enabled hyperparameters; returns the FLOPs and the number of state values per parameter."""


def _sgd(on: _Options) -> tuple[int, int]:
    """Count p −= γg: 2. Momentum b = μb + (1−τ)g: 2, with dampening 3. Nesterov g + μb: 2."""
    momentum = on["momentum"] * (2 + on["dampening"] + 2 * on["nesterov"])
    return 2 + momentum, int(on["momentum"])


def _rmsprop(on: _Options) -> tuple[int, int]:
    """Count v = αv + (1−α)g²: 4; √v + ε: 2; p −= γg/…: 3.

    Momentum b = μb + …: 2. Centered, mean of g: 3, v − mean²: 2.
    """
    return 9 + 2 * on["momentum"] + 5 * on["centered"], 1 + on["momentum"] + on["centered"]


_PER_PARAMETER: Final[dict[str, _PerParameter]] = {
    "SGD": _sgd,
    # m += (1−β₁)(g−m): 3; v = β₂v + (1−β₂)g²: 4; √v, /√(1−β₂ᵗ), +ε: 3; p −= γm/…: 3. AMSGrad: 1
    **dict.fromkeys(("Adam", "AdamW"), lambda on: (13 + on["amsgrad"], 2 + on["amsgrad"])),
    "RMSprop": _rmsprop,
    # s += g²: 2; √s + ε: 2; p −= γg/…: 3
    "Adagrad": lambda _: (7, 1),
    # v = ρv + (1−ρ)g²: 4; Δ = √(u+ε)/√(v+ε)·g: 6; u = ρu + (1−ρ)Δ²: 4; p −= γΔ: 2
    "Adadelta": lambda _: (16, 2),
    # m: 3; u = max(β₂u, |g|+ε): 4; p −= γm/u: 3
    "Adamax": lambda _: (10, 2),
    # m: 3; v: 4; √(v/(1−β₂ᵗ)) + ε: 3; p −= …g/… and …m/…: 6
    "NAdam": lambda _: (16, 2),
    "Nadam": lambda _: (16, 2),
    # m: 3; v: 4; 1/(√v + ε): 3; p −= γr·m·…: 3
    "RAdam": lambda _: (13, 2),
    # p *= 1 − λη: 1; p −= ηg: 2; a += μ(p − a): 3
    "ASGD": lambda _: (6, 1),
    # sign of g·g_before: 2; factor of the step size: 3; step size, clamped: 3; g at sign changes: 1;
    # p −= sign(g)·step: 3
    "Rprop": lambda _: (12, 2),
    # sign(β₁m + (1−β₁)g): 4; p −= γ…: 2; m = β₂m + (1−β₂)g: 3
    "Lion": lambda _: (9, 1),
    # m: 3; v: 4; bias corrections: 2; m/(√v + ε): 3; the squares of both norms: 4; p −= γr…: 2
    "Lamb": lambda _: (18, 2),
}


def _update(call: Call) -> Cost:
    value = call.arguments.get("params")
    counts = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, int)]
    if not counts:
        raise UncountableError
    flops = moved = weights = 0
    for index, count in enumerate(counts):
        on = {name: bool(_option(call, name, index)) for name in NUMBERS}
        each, state = _PER_PARAMETER[call.name](on)
        size = count * item_size(str(_option(call, "dtype", index) or "f32"))
        # Weight decay, g += λp: 2; decoupled, p *= 1 − γλ: 1
        decay = _option(call, "weight_decay", index)
        decays = 0 if not decay else 1 if decay == "decoupled" or call.name == "AdamW" else 2
        flops += count * (each + on["maximize"] + decays)
        moved, weights = moved + size * (1 + state), weights + size
    return Cost(flops, moved, moved, weights, sum(counts))


def _option(call: Call, name: str, index: int) -> Value:
    """Return the value of an argument for the parameters at `index`."""
    value = call.arguments.get(name)
    return value[index] if isinstance(value, tuple) else value


UPDATES: Final[dict[str, Formula]] = dict.fromkeys(_PER_PARAMETER, _update)
"""Formulas of optimizer steps, by optimizer class."""
