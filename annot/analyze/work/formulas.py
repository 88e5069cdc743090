"""Formulas of all layers and operations of PyTorch and Keras by name, and the cost of a parsed label.

The formulas here are those of layers that only Keras has. Their layout is channels last unless the argument `layout`
differs. Sources: the definitions in https://keras.io/api/layers/ and the code of ``keras.src.layers``. FLOPs outside
matrix multiplications are counted as in `annot.analyze.work.elementwise`. Random numbers are free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from annot.analyze.work import elementwise, linear
from annot.analyze.work.call import (
    CONTRADICTIONS,
    NAMES,
    Call,
    Cost,
    Formula,
    Shape,
    UncountableError,
    Work,
    output_sizes,
)
from annot.analyze.work.elementwise import UPDATES
from annot.analyze.work.linear import product
from annot.labels.tag import Tag, TensorSpec
from annot.util.entry_points import loaded


def _einsum(call: Call) -> Cost:
    """Count a multiply-add per combination of all indices of ``abc,cd->abd``, including the dimensions of ``...``."""
    operands, _, outputs = str(call.arguments.get("equation")).replace("...", "@").partition("->")
    inputs, _, weights = operands.partition(",")
    if not (inputs and weights and outputs):
        raise UncountableError
    sizes = _sizes(inputs, call.shape())
    out = call.arguments.get("out")
    out_sizes = out if isinstance(out, tuple) else (out,)
    for letter, size in zip(reversed(outputs), reversed(out_sizes), strict=False):
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
    """Return the size of each letter; ``@`` is the product of the dimensions of ``...``."""
    before, ellipsis, after = letters.partition("@")
    if len(before) + len(after) > len(shape) or not (ellipsis or len(letters) == len(shape)):
        raise UncountableError
    end = len(shape) - len(after)
    sizes = dict(zip(before, shape, strict=False)) | dict(zip(after, shape[end:], strict=True))
    return {**sizes, "@": math.prod(shape[len(before) : end])}


def _reversible(call: Call) -> Cost:
    """Count a table lookup for tokens; for floating-point states, the multiplication with the transposed table."""
    if not call.tensors or "f" not in call.tensors[0].dtype:
        return linear.SEQUENCE_LAYERS["Embedding"](call)
    *batch, width = call.shape()
    tokens, rows = math.prod(batch), call.number("num")
    return product(call, tokens * width * rows, tokens * width, tokens * rows, width * rows)


def _attention(call: Call) -> Cost:
    """Count scores and weighted sums. Keras passes query, value and key in this order.

    The argument `score` marks Keras's layers. Other classes named Attention may compute something else.
    """
    score = call.arguments.get("score")
    if score not in ("dot", "additive"):
        raise UncountableError
    query, value = call.shape(0), call.shape(1)
    key = call.shape(2) if len(call.tensors) > 2 else value
    flops, params = 2 * math.prod(query[:-1]) * value[-2] * (query[-1] + value[-1]), 0
    if score == "additive":  # tanh(query + key) · scale: 4 FLOPs per element instead of 2
        scaled = call.flag("scale")
        flops += (1 + scaled) * math.prod(query) * key[-2]
        params = query[-1] * scaled
    inputs = call.all_bytes
    outputs = math.prod(query[:-1]) * value[-1] * call.item
    return Cost(flops, inputs, outputs, params * call.item, params, to_inputs=2 * flops, needs_inputs=True)


def _convolution_of_states(call: Call) -> Cost:
    """Count a convolutional LSTM: four gates, each a convolution of the input and one of the state at stride 1."""
    count = next(int(char) for char in call.name if char in "123")
    shape, kernel = call.shape(), call.numbers("kernel", count)
    if len(shape) != count + 3:
        raise UncountableError
    first = call.is_channels_first
    channels, sizes = (shape[2], shape[3:]) if first else (shape[-1], shape[2:-1])
    positions, out = math.prod(output_sizes(call, sizes, kernel)), call.number("out")
    steps, window = shape[0] * shape[1] * positions, math.prod(kernel)
    weights = 4 * out * window * (channels + out)
    outputs = (steps if call.flag("sequences", default=False) else shape[0] * positions) * out
    return product(call, steps * weights, call.count(), outputs, weights, 4 * out * call.flag("bias"))


def _padded(call: Call) -> Cost:
    """Count bytes moved. ``more`` holds the padding before and after each dimension; cropping is negative."""
    shape, more = call.shape(), call.arguments.get("more")
    if not isinstance(more, tuple) or len(more) != 2 * (len(shape) - 2):
        raise UncountableError
    numbers = call.numbers("more", len(more))
    first = call.is_channels_first
    padding = [before + after for before, after in zip(numbers[::2], numbers[1::2], strict=True)]
    padding = [0, 0, *padding] if first else [0, *padding, 0]
    outputs = math.prod(size + extra for size, extra in zip(shape, padding, strict=True)) * call.item
    return Cost(0, call.bytes_of(), outputs)


def _repeated(call: Call) -> Cost:
    times = call.number("times")
    return Cost(0, call.bytes_of(), call.bytes_of() * times, to_inputs=(times - 1) * call.count())


def _upsampled(call: Call) -> Cost:
    """Count weighted sums of 4 neighbours per output if bilinear. Nearest-neighbour is free; its backward sums."""
    count = len(call.shape()) - 2
    factor = math.prod(call.numbers("scale", count))
    outputs = call.count() * factor
    mode = call.arguments.get("mode", "nearest")
    if mode not in ("nearest", "bilinear"):
        raise UncountableError
    flops = 7 * outputs if mode == "bilinear" else 0
    return Cost(flops, call.bytes_of(), call.bytes_of() * factor, to_inputs=flops or outputs - call.count())


def _dot(call: Call) -> Cost:
    """Count a batched dot product along one axis of each input; dimension 0 is the batch."""
    first, second = call.shape(0), call.shape(1)
    along, other = call.numbers("axes", 2)
    length = first[along]
    if length != second[other]:
        raise UncountableError
    outputs = math.prod(first) // length * (math.prod(second) // (second[0] * length))
    inputs = call.bytes_of(0) + call.bytes_of(1)
    flops = 2 * outputs * length
    return Cost(flops, inputs, outputs * call.item, to_inputs=2 * flops, needs_inputs=True)


def _bidirectional(call: Call) -> Cost:
    """Count a concatenation as free. The two inner layers have their own ranges."""
    if call.alone or call.arguments.get("merge", "concat") != "concat":
        raise UncountableError
    return Cost(0, 0, 0)


def _adaptive(call: Call, name: str) -> Cost:
    """Count PyTorch's layer `name`, applied to a channels-first shape."""
    (spec, *_), shape = call.tensors, call.shape()
    if not call.is_channels_first:
        shape = (shape[0], shape[-1], *shape[1:-1])
    return elementwise.LAYERS[name](Call(name, (TensorSpec(shape, spec.dtype),), call.arguments))


KERAS_LAYERS: Final[dict[str, Formula]] = {
    **{
        name: partial(elementwise.each, forward=ahead, backward=back, needs_inputs=False)
        for name, (ahead, back) in NAMES.flops["keras"].items()
    },
    "EinsumDense": _einsum,
    "ReversibleEmbedding": _reversible,
    **dict.fromkeys(("Attention", "AdditiveAttention"), _attention),
    **{f"ConvLSTM{count}D": _convolution_of_states for count in (1, 2, 3)},
    **{f"{name}{count}D": _padded for name in ("ZeroPadding", "Cropping") for count in (1, 2, 3)},
    **{f"UpSampling{count}D": _upsampled for count in (1, 2, 3)},
    "RepeatVector": _repeated,
    "Dot": _dot,
    "Bidirectional": _bidirectional,
    **{f"AdaptiveAveragePooling{count}D": partial(_adaptive, name=f"AdaptiveAvgPool{count}d") for count in (1, 2, 3)},
    **{f"AdaptiveMaxPooling{count}D": partial(_adaptive, name=f"AdaptiveMaxPool{count}d") for count in (1, 2, 3)},
}


def _encoder_layer(call: Call) -> Cost:
    """Count the activation and two residual additions.

    PyTorch's fast path in inference calls one fused kernel instead of the inner layers. These are then counted here.
    """
    width = call.shape()[-1]
    tokens, feed, size = call.count() // max(width, 1), call.number("feed"), call.product_item
    own = tokens * (feed + 2 * width)
    if not call.alone:
        moved = tokens * (feed + 2 * width) * size
        return Cost(own, moved, moved, to_inputs=own, needs_inputs=True)
    attention = LAYERS["MultiheadAttention"](Call(call.name, call.tensors[:1] * 3, call.arguments))
    macs = tokens * 2 * width * feed
    params = attention.params + 2 * width * feed + feed + width + 4 * width
    flops = attention.flops + 2 * macs + own + 2 * 7 * tokens * width
    inputs = tokens * width * size
    return Cost(flops, inputs, inputs, params * size, params, to_inputs=flops, to_weights=flops, needs_inputs=True)


LAYERS: Final[Mapping[str, Formula]] = {
    **linear.LINEAR_LAYERS,
    **linear.SEQUENCE_LAYERS,
    **elementwise.LAYERS,
    **KERAS_LAYERS,
    "TransformerEncoderLayer": _encoder_layer,
}
"""Formulas of layers, by class."""

OPERATIONS: Final[Mapping[str, Formula]] = {
    **linear.LINEAR_OPERATIONS,
    **linear.SEQUENCE_OPERATIONS,
    **elementwise.OPERATIONS,
}
"""Formulas of operations that layers call directly, by function name."""


def cost(tag: Tag, *, alone: bool = True) -> Cost | None:
    """Return the cost of a layer, an operation or an optimizer step; None if it is unknown.

    `alone` is whether the call ran without other layers inside.
    """
    call = Call.of(tag, alone=alone)
    if tag.phase == "optimizer" and tag.layer:  # a call beside the step, such as zero_grad
        return None
    formula = (UPDATES if tag.phase == "optimizer" else OPERATIONS if tag.op else _layers()).get(call.name)
    if formula is None:
        return None
    try:
        return formula(call)
    except CONTRADICTIONS:
        return None


@cache
def _layers() -> Mapping[str, Callable[[Call], Cost | None]]:
    """Return `LAYERS` and the formulas of other packages: entry points of the group ``annot.formulas``, by class."""
    others = loaded("annot.formulas", ("__call__",))
    return {**LAYERS, **{formula.name: formula.isolated(Cost, CONTRADICTIONS) for formula in others}}


def expected(tag: Tag, *, alone: bool = True) -> Work | None:
    """Return the work of a range; None if it is unknown. `alone` is that of `cost`."""
    costs = cost(tag, alone=alone)
    if costs is None:
        return None
    if tag.phase == "backward":
        return costs.backward(str(dict(tag.arguments).get("grad", "")))
    return costs.forward()
