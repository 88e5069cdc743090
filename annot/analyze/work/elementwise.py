"""Cost of elementwise and windowed layers (activations, normalisations, pooling, losses), and of optimizer steps.

Each of these counts as one FLOP: addition, subtraction, multiplication, division, comparison, exponential, logarithm,
root, tanh, error function. The sigmoid, ``1 / (1 + exp(-x))``, therefore counts as 4. Constants that do not depend on
the input or the parameter, such as bias corrections, are computed once and are free. Gradients are counted as PyTorch
computes them, from the input or output that the forward saves. An official count does not exist. Hardware counters
differ, depending on the compiler.

An optimizer step reads parameters, gradients and state, and writes parameters and state. PyTorch and Keras implement
the same algorithms. Where their code differs by a multiplication, as in Keras's Nesterov momentum, the count follows
PyTorch's documentation. Optimizers are not counted if their work depends on shapes (Adafactor, Muon), on the number of
nonzero gradients (SparseAdam), on the number of loss evaluations (LBFGS) or on zero weights (Ftrl).

Sources: the definitions in https://docs.pytorch.org/docs/stable/nn.html and https://keras.io/api/layers/; the
algorithms in https://docs.pytorch.org/docs/stable/optim.html (a page per class) and, for Lion and Lamb,
https://keras.io/api/optimizers/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from annot.analyze.work.call import NAMES, Call, Cost, Formula, UncountableError, broadcast, item_size, output_sizes
from annot.labels.optimizer_arguments import NUMBERS
from annot.labels.tag import Value


def _free(_: Call) -> Cost:
    return Cost(0, 0, 0)


def each(call: Call, forward: int, backward: int, *, needs_inputs: bool = True) -> Cost:
    """Count FLOPs per element, and two per element for the gradient of the slopes of a PReLU."""
    params = call.number("num", 1) if call.name == "PReLU" else 0
    return replace(_normalised(call, (forward, forward), (backward, 2), params), needs_inputs=needs_inputs)


# ------------------------------------------------------------------ normalisations


def _normalised(call: Call, forward: tuple[int, int], backward: tuple[int, int], params: int) -> Cost:
    """Return the cost of a normalisation.

    `forward` has the FLOPs per element without and with parameters, `backward` those of the gradients of the input and
    of the weights.
    """
    count, size = call.count(), call.bytes_of()
    return Cost(
        forward[params > 0] * count,
        *(size, size, params * call.item, params),
        to_inputs=backward[0] * count,
        to_weights=backward[1] * count * (params > 0),
        needs_inputs=True,
    )


_MOMENTS: Final = ((5, 7), (8, 3))
"""FLOPs per element, forward and of gradients: mean 1, difference 1, squares 2, scale 1; affine parameters add 2."""
_SQUARES: Final = ((3, 4), (6, 2))
"""FLOPs per element, forward and of gradients: sum of squares 2, scale 1; the affine parameter adds 1."""


def _channel_norm(call: Call, axis: int, *, affine: bool = True) -> Cost:
    """Count a normalisation per channel, dimension `axis`, with a scale and a shift by default if `affine`."""
    shape = call.shape()
    if len(shape) < 2:
        raise UncountableError
    channels = shape[1 if call.is_channels_first else axis]
    return _normalised(call, *_MOMENTS, 2 * channels * call.flag("affine", default=affine))


def _last_norm(call: Call, *, squares: bool) -> Cost:
    """Count a layer norm, or an RMS norm with `squares`, over the dimensions `over` or the last one."""
    value = call.arguments.get("over")
    over = math.prod(call.numbers("over", len(value) if isinstance(value, tuple) else 1, call.shape()[-1]))
    params = over * call.flag("affine")
    if squares:
        return _normalised(call, *_SQUARES, params)
    return _normalised(call, *_MOMENTS, params * (1 + call.flag("bias")))


# ------------------------------------------------------------------ pooling


def _pooled(call: Call, positions: int, window: int, *, average: bool) -> Cost:
    """Count window − 1 comparisons or additions per output; average pooling adds one division."""
    flops, to_inputs = positions * (window - 1 + average), positions * (window + 1 if average else 1)
    return Cost(flops, call.bytes_of(), positions * call.item, to_inputs=to_inputs, needs_inputs=not average)


def _pool(call: Call, count: int, *, average: bool) -> Cost:
    shape, kernel = call.shape(), call.numbers("kernel", count)
    if len(shape) <= count:
        raise UncountableError
    sizes = output_sizes(call, shape[-count:], kernel)
    return _pooled(call, math.prod(shape[:-count]) * math.prod(sizes), math.prod(kernel), average=average)


def _adaptive(call: Call, count: int, *, average: bool) -> Cost:
    shape, out = call.shape(), call.arguments.get("out")
    target = out if isinstance(out, tuple) else (out,) * count
    if len(shape) <= count or len(target) != count:
        raise UncountableError
    sizes = [size if length is None else length for size, length in zip(shape[-count:], target, strict=True)]
    positions = math.prod(shape[:-count]) * math.prod(size for size in sizes if isinstance(size, int))
    window = max(1, -(-call.count() // max(positions, 1)))
    return _pooled(call, positions, window, average=average)


def _keras_pool(call: Call, count: int, *, average: bool) -> Cost:
    batch, channels, sizes = call.spatial(count)
    kernel = call.numbers("kernel", count, 2)
    if "stride" not in call.arguments:
        raise UncountableError
    positions = batch * channels * math.prod(output_sizes(call, sizes, kernel))
    return _pooled(call, positions, math.prod(kernel), average=average)


def _global_pool(call: Call, *, average: bool) -> Cost:
    shape = call.shape()
    positions = shape[0] * shape[1 if call.is_channels_first else -1]
    return _pooled(call, positions, call.count() // max(positions, 1), average=average)


# ------------------------------------------------------------------ losses and blocks


def _loss(call: Call, forward: int, backward: int) -> Cost:
    """Count FLOPs per input element, plus one for the reduction."""
    count, inputs = call.count(), call.all_bytes
    reduced = call.arguments.get("reduction", "mean") != "none"
    outputs = 1 if reduced else call.count(min(1, len(call.tensors) - 1))
    flops, size = count * (forward + reduced), call.item
    return Cost(flops, inputs, outputs * size, to_inputs=count * backward, needs_inputs=True)


def _sum_of_inputs(call: Call) -> Cost:
    """Count one FLOP per element and input after the first, as in Keras's Add."""
    flops = max(0, len(call.tensors) - 1) * call.count()
    return Cost(flops, call.all_bytes, call.bytes_of())


def _concatenated(call: Call) -> Cost:
    size = call.all_bytes
    return Cost(0, size, size)


def _upsampled(call: Call) -> Cost:
    """Count a weighted sum of 2, 4, 8 or 16 neighbours per output; nearest-neighbour interpolation is free."""
    shape, scale, size = call.shape(), call.arguments.get("scale"), call.arguments.get("size")
    count = len(shape) - 2
    if size is not None:
        sizes = call.numbers("size", count)
    else:
        factors = scale if isinstance(scale, tuple) else (scale,) * count
        sizes = tuple(
            int(side * factor)
            for side, factor in zip(shape[2:], factors, strict=False)
            if isinstance(factor, (int, float))
        )
    mode = call.arguments.get("mode", "nearest")
    neighbours = {"nearest": 0, "linear": 2, "bilinear": 4, "trilinear": 8, "bicubic": 16}.get(str(mode))
    if len(sizes) != count or neighbours is None:
        raise UncountableError
    positions = math.prod(shape[:2]) * math.prod(sizes)
    flops = positions * max(0, 2 * neighbours - 1)
    return Cost(flops, call.bytes_of(), positions * call.item, to_inputs=flops)


def _elementwise(call: Call) -> Cost:
    """Count one FLOP per element of the broadcast shape of the inputs."""
    call.shape()
    count = math.prod(broadcast(*map(call.shape, range(len(call.tensors)))))
    inputs = call.all_bytes
    return Cost(count, inputs, count * call.item, to_inputs=count, needs_inputs=True)


LAYERS: Final[dict[str, Formula]] = {
    **{name: partial(each, forward=ahead, backward=back) for name, (ahead, back) in NAMES.flops["activations"].items()},
    **dict.fromkeys(NAMES.names["free_layers"], _free),
    **dict.fromkeys(
        ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "GroupNorm"), partial(_channel_norm, axis=1)
    ),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization"), partial(_channel_norm, axis=-1)),
    **{f"InstanceNorm{count}d": partial(_channel_norm, axis=1, affine=False) for count in (1, 2, 3)},
    **dict.fromkeys(("LayerNorm", "LayerNormalization"), partial(_last_norm, squares=False)),
    **dict.fromkeys(("RMSNorm", "RMSNormalization"), partial(_last_norm, squares=True)),
    # square, running sum over `size` channels (2), scale, shift, power and division
    "LocalResponseNorm": partial(_normalised, forward=(7, 7), backward=(10, 0), params=0),
    **{f"MaxPool{count}d": partial(_pool, count=count, average=False) for count in (1, 2, 3)},
    **{f"AvgPool{count}d": partial(_pool, count=count, average=True) for count in (1, 2, 3)},
    **{f"AdaptiveMaxPool{count}d": partial(_adaptive, count=count, average=False) for count in (1, 2, 3)},
    **{f"AdaptiveAvgPool{count}d": partial(_adaptive, count=count, average=True) for count in (1, 2, 3)},
    **{f"MaxPooling{count}D": partial(_keras_pool, count=count, average=False) for count in (1, 2, 3)},
    **{f"AveragePooling{count}D": partial(_keras_pool, count=count, average=True) for count in (1, 2, 3)},
    **{f"GlobalMaxPooling{count}D": partial(_global_pool, average=False) for count in (1, 2, 3)},
    **{f"GlobalAveragePooling{count}D": partial(_global_pool, average=True) for count in (1, 2, 3)},
    **{name: partial(_loss, forward=ahead, backward=back) for name, (ahead, back) in NAMES.flops["losses"].items()},
    "Upsample": _upsampled,
    **dict.fromkeys(("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"), _sum_of_inputs),
    "Concatenate": _concatenated,
}

OPERATIONS: Final[dict[str, Formula]] = {
    **{name: LAYERS[layer] for name, layer in NAMES.layer_of["operations"].items()},
    **{
        form.format(name): _elementwise for name in NAMES.names["binary"] for form in ("{}", "{}_", "__{}__", "__i{}__")
    },
    **{f"__r{name}__": _elementwise for name in ("add", "sub", "mul", "truediv", "pow")},
    **dict.fromkeys(("__truediv__", "__neg__", "__pow__"), _elementwise),
    **dict.fromkeys(NAMES.names["unary"], _elementwise),
    **dict.fromkeys(NAMES.names["free_operations"], _free),
    **dict.fromkeys(("cat", "concat", "stack"), _concatenated),
}


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
