"""Layers that only Keras has; channels last, unless layout says otherwise.

Sources: the definitions in https://keras.io/api/layers/ and the code of ``keras.src.layers``. What counts as one FLOP
beside matrix products is what `annot.analyze.work.elements` says; random numbers are free.
"""

from __future__ import annotations

import math
from typing import Final

from annot.analyze.work import elements, sequences
from annot.analyze.work.call import Call, Cost, Formula, Shape, UncountableError
from annot.analyze.work.products import product
from annot.tag import TensorSpec

__all__ = ["LAYERS"]


def _einsum(call: Call) -> Cost:
    """Count a multiply-add for each combination of all indices of ``abc,cd->abd``; what ``...`` stands for included."""
    operands, _, outputs = str(call.arguments.get("equation")).replace("...", "@").partition("->")
    inputs, _, weights = operands.partition(",")
    if not (inputs and weights and outputs):
        raise UncountableError
    sizes = _sizes(inputs, call.shape())
    out = call.arguments.get("out")
    given = out if isinstance(out, tuple) else (out,)
    for letter, size in zip(reversed(outputs), reversed(given), strict=False):
        if letter not in sizes and isinstance(size, int):
            sizes[letter] = size
    bias = call.arguments.get("bias")

    def count(letters: str) -> int:
        if not set(letters) <= sizes.keys():
            raise UncountableError
        return math.prod(sizes[letter] for letter in letters)

    macs = count("".join(dict.fromkeys(inputs + weights)))
    biases = count(str(bias)) if bias else 0
    return product(call, macs, call.count(), count(outputs), count(weights), biases)


def _sizes(letters: str, shape: Shape) -> dict[str, int]:
    """Sizes by letter; ``@`` stands for all dimensions that have none."""
    before, several, after = letters.partition("@")
    if len(before) + len(after) > len(shape) or not (several or len(letters) == len(shape)):
        raise UncountableError
    end = len(shape) - len(after)
    sizes = dict(zip(before, shape, strict=False)) | dict(zip(after, shape[end:], strict=True))
    return {**sizes, "@": math.prod(shape[len(before) : end])}


def _reversible(call: Call) -> Cost:
    """Count rows that are looked up; of states instead of tokens the scores of all rows, from the same table."""
    if not call.tensors or "f" not in call.tensors[0].dtype:
        return sequences.LAYERS["Embedding"](call)
    *places, width = call.shape()
    tokens, rows = math.prod(places), call.number("num")
    return product(call, tokens * width * rows, tokens * width, tokens * rows, width * rows)


def _attention(call: Call) -> Cost:
    """Count scores and weighted sums; query, value, and key come in this order.

    Keras's layers say how they score; many a class in PyTorch is called Attention, too, and computes what else.
    """
    score = call.arguments.get("score")
    if score not in ("dot", "additive"):
        raise UncountableError
    query, value = call.shape(0), call.shape(1)
    key = call.shape(2) if len(call.tensors) > 2 else value
    flops, params = 2 * math.prod(query[:-1]) * value[-2] * (query[-1] + value[-1]), 0
    if score == "additive":  # tanh(query + key) · scale: 4 an element of the width, in place of 2
        scaled = call.flag("scale")
        flops += (1 + scaled) * math.prod(query) * key[-2]
        params = query[-1] * scaled
    inputs = sum(call.bytes_of(place) for place in range(len(call.tensors)))
    outputs = math.prod(query[:-1]) * value[-1] * call.item
    return Cost(flops, inputs, outputs, params * call.item, params, to_inputs=2 * flops, needs_inputs=True)


def _convolution_of_states(call: Call) -> Cost:
    """Count an LSTM whose products are convolutions: four gates, each of the input, and of the state at stride 1."""
    count = next(int(char) for char in call.name if char in "123")
    shape, kernel = call.shape(), call.numbers("kernel", count)
    if len(shape) != count + 3:
        raise UncountableError
    first = call.arguments.get("layout") == "channels_first"
    channels, sizes = (shape[2], shape[3:]) if first else (shape[-1], shape[2:-1])
    places, out = math.prod(_moved(call, sizes, kernel)), call.number("out")
    steps, window = shape[0] * shape[1] * places, math.prod(kernel)
    weights = 4 * out * window * (channels + out)
    outputs = (steps if call.flag("sequences", default=False) else shape[0] * places) * out
    return product(call, steps * weights, call.count(), outputs, weights, 4 * out * call.flag("bias"))


def _moved(call: Call, sizes: Shape, kernel: Shape) -> Shape:
    stride, dilation = call.numbers("stride", len(kernel), 1), call.numbers("dilation", len(kernel), 1)
    same = call.arguments.get("padding") == "same"
    return tuple(
        -(-(size if same else size - wide * (length - 1)) // step)
        for size, wide, length, step in zip(sizes, dilation, kernel, stride, strict=True)
    )


def _padded(call: Call) -> Cost:
    """Count what is moved; ``more`` has what comes before and behind each dimension, less than none if it goes."""
    shape, more = call.shape(), call.arguments.get("more")
    if not isinstance(more, tuple) or len(more) != 2 * (len(shape) - 2):
        raise UncountableError
    numbers = call.numbers("more", len(more))
    first = call.arguments.get("layout") == "channels_first"
    around = [before + behind for before, behind in zip(numbers[::2], numbers[1::2], strict=True)]
    around = [0, 0, *around] if first else [0, *around, 0]
    outputs = math.prod(size + extra for size, extra in zip(shape, around, strict=True)) * call.item
    return Cost(0, call.bytes_of(), outputs)


def _repeated(call: Call) -> Cost:
    times = call.number("times")
    return Cost(0, call.bytes_of(), call.bytes_of() * times, to_inputs=(times - 1) * call.count())


def _upsampled(call: Call) -> Cost:
    """Count nothing for nearest neighbours, of which the backward adds the gradients up, else sums of 4 neighbours."""
    count = len(call.shape()) - 2
    factor = math.prod(call.numbers("scale", count))
    outputs = call.count() * factor
    mode = call.arguments.get("mode", "nearest")
    if mode not in ("nearest", "bilinear"):
        raise UncountableError
    flops = 7 * outputs if mode == "bilinear" else 0
    return Cost(flops, call.bytes_of(), call.bytes_of() * factor, to_inputs=flops or outputs - call.count())


def _dot(call: Call) -> Cost:
    """Count products along one axis of each; the first dimension is that of samples."""
    first, second = call.shape(0), call.shape(1)
    along, other = call.numbers("axes", 2)
    length = first[along]
    if length != second[other]:
        raise UncountableError
    places = math.prod(first) // length * (math.prod(second) // (second[0] * length))
    inputs = call.bytes_of(0) + call.bytes_of(1)
    flops = 2 * places * length
    return Cost(flops, inputs, places * call.item, to_inputs=2 * flops, needs_inputs=True)


def _both_ways(call: Call) -> Cost:
    """Count nothing to join what the two layers inside gave, which have ranges of their own."""
    if call.alone or call.arguments.get("merge", "concat") != "concat":
        raise UncountableError
    return Cost(0, 0, 0)


def _adaptive(name: str) -> Formula:
    """As PyTorch's, whose channels come first."""

    def cost(call: Call) -> Cost:
        (spec, *_), shape = call.tensors, call.shape()
        if call.arguments.get("layout") != "channels_first":
            shape = (shape[0], shape[-1], *shape[1:-1])
        return elements.LAYERS[name](Call(name, (TensorSpec(shape, spec.dtype),), call.arguments))

    return cost


def _each(forward: int, backward: int) -> Formula:
    def cost(call: Call) -> Cost:
        count, size = call.count(), call.bytes_of()
        return Cost(forward * count, size, size, to_inputs=backward * count)

    return cost


_ELEMENTS: Final = {
    # forward and backward FLOPs an element
    "SpatialDropout1D": (2, 1), "SpatialDropout2D": (2, 1), "SpatialDropout3D": (2, 1),
    "GaussianNoise": (2, 0), "GaussianDropout": (3, 1), "Masking": (2, 1), "Normalization": (2, 1),
    "Rescaling": (2, 1), "UnitNormalization": (3, 6), "ActivityRegularization": (0, 0),
}  # fmt: skip

LAYERS: Final[dict[str, Formula]] = {
    **{name: _each(*flops) for name, flops in _ELEMENTS.items()},
    "EinsumDense": _einsum,
    "ReversibleEmbedding": _reversible,
    **dict.fromkeys(("Attention", "AdditiveAttention"), _attention),
    **{f"ConvLSTM{count}D": _convolution_of_states for count in (1, 2, 3)},
    **{f"{name}{count}D": _padded for name in ("ZeroPadding", "Cropping") for count in (1, 2, 3)},
    **{f"UpSampling{count}D": _upsampled for count in (1, 2, 3)},
    "RepeatVector": _repeated,
    "Dot": _dot,
    "Bidirectional": _both_ways,
    **{f"AdaptiveAveragePooling{count}D": _adaptive(f"AdaptiveAvgPool{count}d") for count in (1, 2, 3)},
    **{f"AdaptiveMaxPooling{count}D": _adaptive(f"AdaptiveMaxPool{count}d") for count in (1, 2, 3)},
}
