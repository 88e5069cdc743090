"""Layers that work element by element or in windows: activations, softmax, normalisations, pooling, losses.

What counts as one FLOP here: an addition, subtraction, multiplication, division, comparison, exponential, logarithm,
root, tanh or error function. So the sigmoid, ``1 / (1 + exp(-x))``, is four. Constants that do not depend on the input
are computed once and are free. The gradient is counted as PyTorch computes it, from the input or output that the
forward kept. There is no official count for these; hardware counters see fewer or more, as a compiler spells them.

Source: the definitions in https://docs.pytorch.org/docs/stable/nn.html and https://keras.io/api/layers/.
"""

from __future__ import annotations

import math
from typing import Final

from annot.analyze.work.call import Call, Cost, Formula, Shape, UncountableError, broadcast

__all__ = ["LAYERS", "OPERATIONS"]

_ACTIVATIONS: Final = {
    # forward and backward FLOPs an element
    "ReLU": (1, 1), "ReLU6": (2, 2), "Hardtanh": (2, 2), "Threshold": (1, 1), "LeakyReLU": (2, 2), "PReLU": (2, 2),
    "RReLU": (2, 2), "ELU": (4, 3), "SELU": (5, 4), "CELU": (5, 4), "Sigmoid": (4, 3), "LogSigmoid": (4, 5),
    "Tanh": (1, 3), "Hardsigmoid": (4, 3), "Hardswish": (5, 5), "GELU": (5, 10), "SiLU": (5, 8), "Mish": (5, 9),
    "Softplus": (3, 4), "Softsign": (3, 4), "Softshrink": (3, 2), "Hardshrink": (2, 2), "Tanhshrink": (2, 3),
    "Softmax": (5, 4), "Softmin": (6, 5), "LogSoftmax": (5, 4), "Softmax2d": (5, 4),
    "Dropout": (2, 1), "Dropout1d": (2, 1), "Dropout2d": (2, 1), "Dropout3d": (2, 1), "AlphaDropout": (4, 1),
    "FeatureAlphaDropout": (4, 1),
}  # fmt: skip
_FREE: Final = (
    "Identity", "Flatten", "Unflatten", "Sequential", "ModuleList", "ModuleDict", "Reshape", "InputLayer", "Permute",
    "TransformerEncoder", "TransformerDecoder",
)  # fmt: skip
"""What computes nothing itself: views, and containers whose layers have rows of their own."""


def _nothing(_: Call) -> Cost:
    return Cost(0, 0, 0)


def _each(forward: int, backward: int) -> Formula:
    def cost(call: Call) -> Cost:
        count, size = call.count(), call.bytes_of()
        params = call.number("num", 1) if call.name == "PReLU" else 0
        return Cost(
            forward * count, size, size, params * call.item, params, to_inputs=backward * count,
            to_weights=2 * count * bool(params), needs_inputs=True,
        )  # fmt: skip

    return cost


# ------------------------------------------------------------------ normalisations


def _normalised(call: Call, forward: tuple[int, int], backward: tuple[int, int], params: int) -> Cost:
    """Cost of a normalisation: FLOPs an element without and with parameters, of the gradients of input and weights."""
    count, size = call.count(), call.bytes_of()
    return Cost(
        forward[params > 0] * count, size, size, params * call.item, params, to_inputs=backward[0] * count,
        to_weights=backward[1] * count * (params > 0), needs_inputs=True,
    )  # fmt: skip


_MOMENTS: Final = (5, 7)
"""Mean 1, difference 1, its square and their sum 2, scale 1; with parameters 2 more."""
_MOMENTS_GRADIENTS: Final = (8, 3)
_SQUARES: Final = (3, 4)
"""Square and sum 2, scale 1; with a parameter 1 more."""
_SQUARES_GRADIENTS: Final = (6, 2)


def _of_channels(place: int) -> Formula:
    """A scale and a shift for each channel; the place of channels among the dimensions."""

    def cost(call: Call) -> Cost:
        shape = call.shape()
        if len(shape) < 2:
            raise UncountableError
        channels = shape[1 if call.arguments.get("layout") == "channels_first" else place]
        return _normalised(call, _MOMENTS, _MOMENTS_GRADIENTS, 2 * channels * call.flag("affine"))

    return cost


def _instance(call: Call) -> Cost:
    params = 2 * call.shape()[1] * call.flag("affine", default=False)
    return _normalised(call, _MOMENTS, _MOMENTS_GRADIENTS, params)


def _over(call: Call) -> int:
    value = call.arguments.get("over")
    return math.prod(call.numbers("over", len(value) if isinstance(value, tuple) else 1, call.shape()[-1]))


def _layer_norm(call: Call) -> Cost:
    params = _over(call) * call.flag("affine") * (1 + call.flag("bias"))
    return _normalised(call, _MOMENTS, _MOMENTS_GRADIENTS, params)


def _rms_norm(call: Call) -> Cost:
    return _normalised(call, _SQUARES, _SQUARES_GRADIENTS, _over(call) * call.flag("affine"))


def _local_response(call: Call) -> Cost:
    """Square, sum over `size` channels (running: 2), scale, shift, power, division."""
    return _normalised(call, (7, 7), (10, 0), 0)


# ------------------------------------------------------------------ pooling


def _pooled(call: Call, places: int, window: int, *, average: bool) -> Cost:
    """Count window − 1 comparisons or additions for each output, and of an average the division."""
    size = call.item
    to_inputs = places * (window + 1 if average else 1)
    return Cost(
        places * (window - 1 + average), call.bytes_of(), places * size, to_inputs=to_inputs,
        needs_inputs=not average,
    )  # fmt: skip


def _pool(count: int, *, average: bool) -> Formula:
    def cost(call: Call) -> Cost:
        shape, kernel = call.shape(), call.numbers("kernel", count)
        if len(shape) <= count:
            raise UncountableError
        sizes = _pooled_sizes(call, shape[-count:], kernel)
        return _pooled(call, math.prod(shape[:-count]) * math.prod(sizes), math.prod(kernel), average=average)

    return cost


def _pooled_sizes(call: Call, sizes: Shape, kernel: Shape) -> Shape:
    """Sizes after a window: as https://docs.pytorch.org/docs/stable/generated/torch.nn.MaxPool2d.html says."""
    stride = call.numbers("stride", len(kernel), 1)
    padding, dilation = call.numbers("padding", len(kernel), 0), call.numbers("dilation", len(kernel), 1)
    found = []
    for size, length, step, pad, wide in zip(sizes, kernel, stride, padding, dilation, strict=True):
        room = size + 2 * pad - wide * (length - 1) - 1
        steps = room // step
        if call.flag("ceil", default=False):
            steps = -(-room // step)
            steps -= steps * step >= size + pad  # no window begins in the padding behind
        found.append(steps + 1)
    return tuple(found)


def _adaptive(count: int, *, average: bool) -> Formula:
    def cost(call: Call) -> Cost:
        shape, out = call.shape(), call.arguments.get("out")
        wanted = out if isinstance(out, tuple) else (out,) * count
        if len(shape) <= count or len(wanted) != count:
            raise UncountableError
        sizes = [size if want is None else want for size, want in zip(shape[-count:], wanted, strict=True)]
        places = math.prod(shape[:-count]) * math.prod(call_size for call_size in sizes if isinstance(call_size, int))
        window = max(1, -(-call.count() // max(places, 1)))
        return _pooled(call, places, window, average=average)

    return cost


def _keras_pool(count: int, *, average: bool) -> Formula:
    def cost(call: Call) -> Cost:
        shape, kernel = call.shape(), call.numbers("kernel", count, 2)
        if len(shape) != count + 2:
            raise UncountableError
        first = call.arguments.get("layout") == "channels_first"
        sizes, others = (shape[2:], shape[:2]) if first else (shape[1:-1], (shape[0], shape[-1]))
        stride, same = call.numbers("stride", count), call.arguments.get("padding") == "same"
        places = math.prod(
            -(-size // step) if same else (size - length) // step + 1
            for size, length, step in zip(sizes, kernel, stride, strict=True)
        )
        return _pooled(call, math.prod(others) * places, math.prod(kernel), average=average)

    return cost


def _global_pool(*, average: bool) -> Formula:
    def cost(call: Call) -> Cost:
        shape = call.shape()
        channels = shape[1] if call.arguments.get("layout") == "channels_first" else shape[-1]
        places = shape[0] * channels
        return _pooled(call, places, call.count() // max(places, 1), average=average)

    return cost


# ------------------------------------------------------------------ losses and blocks


def _loss(forward: int, backward: int) -> Formula:
    """FLOPs for each element of the input, and one to add it up."""

    def cost(call: Call) -> Cost:
        count, inputs = call.count(), sum(map(call.bytes_of, range(len(call.tensors))))
        reduced = call.arguments.get("reduction", "mean") != "none"
        outputs = 1 if reduced else call.count(min(1, len(call.tensors) - 1))
        flops, size = count * (forward + reduced), call.item
        return Cost(flops, inputs, outputs * size, to_inputs=count * backward, needs_inputs=True)

    return cost


_LOSSES: Final = {
    "MSELoss": (2, 2), "L1Loss": (2, 2), "SmoothL1Loss": (5, 3), "HuberLoss": (5, 3), "BCELoss": (6, 5),
    "BCEWithLogitsLoss": (7, 5), "CrossEntropyLoss": (5, 3), "KLDivLoss": (3, 1), "PoissonNLLLoss": (3, 3),
    "MeanSquaredError": (2, 2), "MeanAbsoluteError": (2, 2), "BinaryCrossentropy": (7, 5),
    "CategoricalCrossentropy": (5, 3), "SparseCategoricalCrossentropy": (5, 3),
}  # fmt: skip


def _sum_of_inputs(call: Call) -> Cost:
    """Count one operation an element for each input after the first, as in Keras's Add."""
    size, outputs = sum(map(call.bytes_of, range(len(call.tensors)))), call.bytes_of()
    flops = max(0, len(call.tensors) - 1) * call.count()
    return Cost(flops, size, outputs, to_inputs=0)


def _joined(call: Call) -> Cost:
    size = sum(map(call.bytes_of, range(len(call.tensors))))
    return Cost(0, size, size)


def _upsampled(call: Call) -> Cost:
    """Count nothing for nearest neighbours, else a weighted sum of 2, 4 or 8 neighbours for each output."""
    shape, scale, size = call.shape(), call.arguments.get("scale"), call.arguments.get("size")
    count = len(shape) - 2
    if size is not None:
        sizes = call.numbers("size", count)
    else:
        factors = scale if isinstance(scale, tuple) else (scale,) * count
        sizes = tuple(
            int(side * factor) for side, factor in zip(shape[2:], factors, strict=False)
            if isinstance(factor, (int, float))
        )  # fmt: skip
    mode = call.arguments.get("mode", "nearest")
    neighbours = {"nearest": 0, "linear": 2, "bilinear": 4, "trilinear": 8, "bicubic": 16}.get(str(mode))
    if len(sizes) != count or neighbours is None:
        raise UncountableError
    places = math.prod(shape[:2]) * math.prod(sizes)
    flops = places * max(0, 2 * neighbours - 1)
    return Cost(flops, call.bytes_of(), places * call.item, to_inputs=flops)


def _elementwise(call: Call) -> Cost:
    """One operation for each element of what the tensors that take part are broadcast to."""
    call.shape()
    count = math.prod(broadcast(*map(call.shape, range(len(call.tensors)))))
    inputs = sum(map(call.bytes_of, range(len(call.tensors))))
    return Cost(count, inputs, count * call.item, to_inputs=count, needs_inputs=True)


LAYERS: Final[dict[str, Formula]] = {
    **{name: _each(*flops) for name, flops in _ACTIVATIONS.items()},
    **dict.fromkeys(_FREE, _nothing),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "GroupNorm"), _of_channels(1)),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization"), _of_channels(-1)),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), _instance),
    **dict.fromkeys(("LayerNorm", "LayerNormalization"), _layer_norm),
    **dict.fromkeys(("RMSNorm", "RMSNormalization"), _rms_norm),
    "LocalResponseNorm": _local_response,
    **{f"MaxPool{count}d": _pool(count, average=False) for count in (1, 2, 3)},
    **{f"AvgPool{count}d": _pool(count, average=True) for count in (1, 2, 3)},
    **{f"AdaptiveMaxPool{count}d": _adaptive(count, average=False) for count in (1, 2, 3)},
    **{f"AdaptiveAvgPool{count}d": _adaptive(count, average=True) for count in (1, 2, 3)},
    **{f"MaxPooling{count}D": _keras_pool(count, average=False) for count in (1, 2, 3)},
    **{f"AveragePooling{count}D": _keras_pool(count, average=True) for count in (1, 2, 3)},
    **{f"GlobalMaxPooling{count}D": _global_pool(average=False) for count in (1, 2, 3)},
    **{f"GlobalAveragePooling{count}D": _global_pool(average=True) for count in (1, 2, 3)},
    **{name: _loss(*flops) for name, flops in _LOSSES.items()},
    "Upsample": _upsampled,
    **dict.fromkeys(("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"), _sum_of_inputs),
    "Concatenate": _joined,
}

_NAMED_AFTER: Final = {
    "relu": "ReLU", "relu_": "ReLU", "relu6": "ReLU6", "leaky_relu": "LeakyReLU", "elu": "ELU", "selu": "SELU",
    "sigmoid": "Sigmoid", "tanh": "Tanh", "gelu": "GELU", "silu": "SiLU", "mish": "Mish", "hardswish": "Hardswish",
    "softplus": "Softplus", "softmax": "Softmax", "log_softmax": "LogSoftmax", "dropout": "Dropout",
}  # fmt: skip
_BINARY: Final = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "rsub", "true_divide")
_UNARY: Final = ("exp", "log", "sqrt", "rsqrt", "neg", "abs", "sin", "cos", "mean", "sum", "max", "min", "cumsum")
_VIEWS: Final = (
    "view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "split",
    "chunk", "unbind", "detach", "__getitem__", "size", "t", "expand_as", "view_as", "narrow", "select",
    "movedim", "swapaxes", "to", "type_as", "float", "half", "bfloat16", "contiguous", "arange", "zeros", "ones",
)  # fmt: skip
"""Operations that compute nothing; those that may copy count as if they did not."""

OPERATIONS: Final[dict[str, Formula]] = {
    **{name: LAYERS[layer] for name, layer in _NAMED_AFTER.items()},
    **{spelt: _elementwise for name in _BINARY for spelt in (name, f"{name}_", f"__{name}__", f"__i{name}__")},
    **{f"__r{name}__": _elementwise for name in ("add", "sub", "mul", "truediv", "pow")},
    **dict.fromkeys(("__truediv__", "__neg__", "__pow__"), _elementwise),
    **dict.fromkeys(_UNARY, _elementwise),
    **dict.fromkeys(_VIEWS, _nothing),
    **dict.fromkeys(("cat", "concat", "stack"), _joined),
    **dict.fromkeys(("cross_entropy",), LAYERS["CrossEntropyLoss"]),
    **dict.fromkeys(("mse_loss",), LAYERS["MSELoss"]),
}
