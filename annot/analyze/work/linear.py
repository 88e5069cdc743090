"""Cost of matrix multiplications: linear layers, convolutions, embeddings, recurrent layers and attention.

FLOPs exclude the bias, as in `torch.utils.flop_counter`, because its addition is fused into the GEMM. The gradient of
the inputs and the gradient of the weights each cost as many FLOPs as the forward. Recurrent layers and attention count
matrix multiplications only: gates and softmax add only a few FLOPs per element.

Sources: the definitions in https://docs.pytorch.org/docs/stable/nn.html and https://keras.io/api/layers/; the counts
agree with `torch.utils.flop_counter` (its ``conv_flop_count``, ``mm_flop``, ``bmm_flop``). A step of an LSTM cell with
equal input and state widths costs 16 · hidden² FLOPs per sample: four gates with two matrix-vector products of hidden²
multiply-adds each. Attention: "Attention Is All You Need" (Vaswani et al., 2017), section 3.2.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Final

from annot.analyze.work.call import (
    Call,
    Cost,
    Formula,
    Gemms,
    Shape,
    UncountableError,
    broadcast,
    item_size,
    output_sizes,
)


def product(call: Call, macs: int, inputs: int, outputs: int, weights: int, bias: int = 0, gemms: Gemms = ()) -> Cost:
    """Return the cost of a matrix multiplication of inputs and weights, from multiply-adds and numbers of elements."""
    size, params = call.product_item, weights + bias
    flops = 2 * macs
    return Cost(
        flops, inputs * size, outputs * size, params * size, params, to_inputs=flops, to_weights=flops, gemms=gemms
    )


def _linear(call: Call) -> Cost:
    """Count ``y = x Wᵀ + b``: rows · in · out multiply-adds."""
    *rows_, width = call.shape() or (0,)
    rows, out = math.prod(rows_), call.number("out")
    bias = out * call.flag("bias")
    return product(call, rows * width * out, rows * width, rows * out, width * out, bias, ((1, rows, out, width),))


def _bilinear(call: Call) -> Cost:
    """Count ``y_k = x₁ᵀ A_k x₂ + b_k``: A_k x₂ first, then the dot product with x₁."""
    *rows_, first = call.shape(0)
    second, rows, out = call.shape(1)[-1], math.prod(rows_), call.number("out")
    weights = out * first * second
    macs = rows * out * first * (second + 1)
    return product(call, macs, rows * (first + second), rows * out, weights, out * call.flag("bias"))


def _convolution(call: Call, *, depthwise: bool = False) -> Cost:
    """Count ``N · out · prod(output) · in / groups · prod(kernel)`` multiply-adds; depthwise, filters per channel."""
    kernel = _kernel(call)
    batch, channels, sizes = call.spatial(len(kernel))
    out = channels * call.number("multiplier", 1) if depthwise else call.number("out")
    groups = channels if depthwise else call.number("groups", 1)
    outputs, inner = batch * math.prod(output_sizes(call, sizes, kernel)), channels // groups * math.prod(kernel)
    inputs, gemms = batch * channels * math.prod(sizes), ((groups, outputs, out // groups, inner),)
    bias = out * call.flag("bias")
    return product(call, outputs * out * inner, inputs, outputs * out, out * inner, bias, gemms)


def _transposed(call: Call) -> Cost:
    """Count ``N · in · prod(input) · out / groups · prod(kernel)`` multiply-adds: the gradient of a convolution."""
    out, kernel, groups = call.number("out"), _kernel(call), call.number("groups", 1)
    batch, channels, sizes = call.spatial(len(kernel))
    stride, padding = call.numbers("stride", len(kernel), 1), call.numbers("padding", len(kernel), 0)
    dilation, more = call.numbers("dilation", len(kernel), 1), call.numbers("output_padding", len(kernel), 0)
    positions = math.prod(
        (size - 1) * step - 2 * pad + wide * (length - 1) + extra + 1
        for size, step, pad, wide, length, extra in zip(sizes, stride, padding, dilation, kernel, more, strict=True)
    )
    columns, inputs, bias = out // groups * math.prod(kernel), batch * math.prod(sizes), out * call.flag("bias")
    weights, gemms = channels * columns, ((groups, inputs, columns, channels // groups),)
    return product(call, inputs * weights, inputs * channels, batch * out * positions, weights, bias, gemms)


def _kernel(call: Call) -> Shape:
    """Return the kernel sizes; the class name gives the number of dimensions."""
    value = call.arguments.get("kernel")
    dimensions = next((int(char) for char in call.name if char in "123"), 0)
    return call.numbers("kernel", len(value) if isinstance(value, tuple) else dimensions)


# ------------------------------------------------------------------ Keras


def _separable(call: Call) -> Cost:
    """Count a depthwise convolution without bias, then a pointwise convolution."""
    kernel = _kernel(call)
    batch, channels, sizes = call.spatial(len(kernel))
    positions = batch * math.prod(output_sizes(call, sizes, kernel))
    middle, out = channels * call.number("multiplier", 1), call.number("out")
    depth, point = middle * math.prod(kernel), middle * out
    inputs = batch * channels * math.prod(sizes)
    return product(call, positions * (depth + point), inputs, positions * out, depth + point, out * call.flag("bias"))


def _keras_transposed(call: Call) -> Cost:
    kernel = _kernel(call)
    batch, channels, sizes = call.spatial(len(kernel))
    stride, out = call.numbers("stride", len(kernel), 1), call.number("out")
    same = call.arguments.get("padding") == "same"
    positions = math.prod(
        size * step + (0 if same else max(length - step, 0))
        for size, step, length in zip(sizes, stride, kernel, strict=True)
    )
    weights, inputs = channels * out * math.prod(kernel), batch * math.prod(sizes)
    return product(call, inputs * weights, inputs * channels, batch * out * positions, weights, out * call.flag("bias"))


# ------------------------------------------------------------------ operations


def _linear_operation(call: Call) -> Cost:
    weight = call.shape(1)
    bias = len(call.tensors) > 2
    out = weight[0] if len(weight) > 1 else 1
    return _linear(Call("Linear", call.tensors, {**call.arguments, "out": out, "bias": bias}))


def _matmul(call: Call) -> Cost:
    """Count a matrix multiplication of two tensors, batched or not; both may need gradients."""
    first, second = call.shape(0), call.shape(1)
    if not first or not second:
        raise UncountableError
    rows, depth = (first[-2] if len(first) > 1 else 1), first[-1]
    columns = second[-1] if len(second) > 1 else 1
    if depth != second[-2 if len(second) > 1 else -1]:
        raise UncountableError
    batch, size = math.prod(broadcast(first[:-2], second[:-2])), call.product_item
    flops, outputs = 2 * batch * rows * columns * depth, batch * rows * columns * size
    inputs, gemms = (call.count(0) + call.count(1)) * size, ((batch, rows, columns, depth),)
    return Cost(flops, inputs, outputs, to_inputs=2 * flops, needs_inputs=True, gemms=gemms)


def _convolution_operation(call: Call, *, transposed: bool = False) -> Cost:
    weight = call.shape(1)
    out = weight[1] * call.number("groups", 1) if transposed else weight[0]
    arguments = {**call.arguments, "kernel": weight[2:], "out": out, "bias": len(call.tensors) > 2}
    return (_transposed if transposed else _convolution)(Call(call.name, call.tensors, arguments))


LINEAR_LAYERS: Final[dict[str, Formula]] = {
    "Linear": _linear,
    "Dense": _linear,
    "Bilinear": _bilinear,
    **{f"Conv{count}d": _convolution for count in (1, 2, 3)},
    **{f"ConvTranspose{count}d": _transposed for count in (1, 2, 3)},
    **{f"Conv{count}D": _convolution for count in (1, 2, 3)},
    **{f"Conv{count}DTranspose": _keras_transposed for count in (1, 2, 3)},
    **{f"DepthwiseConv{count}D": partial(_convolution, depthwise=True) for count in (1, 2)},
    **{f"SeparableConv{count}D": _separable for count in (1, 2)},
}
LINEAR_OPERATIONS: Final[dict[str, Formula]] = {
    "linear": _linear_operation,
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "mv", "dot"), _matmul),
    # b + x y
    **dict.fromkeys(("addmm", "baddbmm"), lambda call: _matmul(Call(call.name, call.tensors[1:], call.arguments))),
    **{f"conv{count}d": _convolution_operation for count in (1, 2, 3)},
    **{f"conv_transpose{count}d": partial(_convolution_operation, transposed=True) for count in (1, 2, 3)},
}


_GATES: Final = {"RNN": 1, "SimpleRNN": 1, "LSTM": 4, "GRU": 3}


def _embedding(call: Call, *, bag: bool = False) -> Cost:
    """Count the table rows as copied bytes; the backward adds to a dense gradient of the table.

    A bag takes one FLOP per element to reduce the rows; an unknown number of bags counts as one.
    """
    dim, size, rows = call.number("dim"), item_size(str(call.arguments.get("dtype", "f32"))), call.count()
    params, touched = call.number("num") * dim, rows * dim
    if bag:
        rows = call.shape()[0] if len(call.shape()) == 2 else call.count(1) if len(call.tensors) > 1 else 1
    cost = Cost(touched * bag, call.bytes_of(), rows * dim * size, touched * size, params, to_weights=touched)
    return replace(cost, differentiable=False, weight_gradients=params * size)


def _recurrent(call: Call) -> Cost:
    """Count tokens · gates · hidden · (input + state) multiply-adds per layer and direction."""
    *steps, width = call.shape()
    tokens, gates = math.prod(steps), _GATES[call.name.removesuffix("Cell")]
    keras = "units" in call.arguments
    hidden, proj = call.number("units" if keras else "hidden"), call.number("proj", 0)
    layers, directions = call.number("layers", 1), 1 + call.flag("bidirectional", default=False)
    state = proj or hidden
    first = directions * gates * hidden * width
    others = (layers - 1) * directions * gates * hidden * state * directions
    weights = first + others + layers * directions * hidden * (gates * state + proj)
    one_bias = keras and (gates != 3 or not call.flag("reset_after"))
    bias = layers * directions * gates * hidden * call.flag("bias") * (1 if one_bias else 2)
    last_only = keras and len(steps) > 1 and not call.flag("sequences", default=False)
    outputs = (steps[0] if last_only else tokens) * state * directions
    cost = product(call, tokens * weights, tokens * width, outputs, weights, bias)
    # Backpropagation through time computes gradients of the states even if the inputs need none.
    to_inputs = 2 * tokens * first
    return replace(cost, to_inputs=to_inputs, to_weights=2 * cost.flops - to_inputs)


def _attention_sizes(call: Call) -> tuple[int, int, int, int, int, int]:
    """Return batch, target length, source length, and the widths of query, key and value, in PyTorch's layout."""
    query, key, value = (call.shape(min(index, len(call.tensors) - 1)) for index in range(3))
    if not 2 <= len(query) == len(key) == len(value) <= 3:
        raise UncountableError
    if len(query) == 2:
        return 1, query[0], key[0], query[1], key[1], value[1]
    first = call.flag("batch_first", default=False)
    batch, length, source = (query[0], query[1], key[1]) if first else (query[1], query[0], key[0])
    return batch, length, source, query[2], key[2], value[2]


def _attention(call: Call) -> Cost:
    """Count four projections, and per query-key pair the score and the weighted sum: 2 · width multiply-adds."""
    batch, length, source, width, key, value = _attention_sizes(call)
    heads = call.number("heads", 1) or 1
    pairs = length * (source + call.flag("bias_kv", default=False) + call.flag("zero_attn", default=False))
    weights = width * (2 * width + key + value)
    projected = batch * (2 * length * width * width + source * width * (key + value))
    bias = 4 * width * call.flag("bias") + 2 * width * call.flag("bias_kv", default=False)
    inputs = batch * (length * width + source * (key + value) * (call.tensors[:1] * 2 != call.tensors[1:3]))
    cost = product(call, projected, inputs, batch * length * width, weights, bias)
    flops = cost.flops + 2 * 2 * batch * pairs * width
    gemms = (2, batch * length, width, width), (1, batch * source, width, key), (1, batch * source, width, value)
    mixes = (batch * heads, length, source, width // heads), (batch * heads, length, width // heads, source)
    return replace(cost, flops=flops, to_inputs=flops, to_weights=flops, gemms=gemms + mixes)


def _keras_attention(call: Call) -> Cost:
    """Count Keras's attention, with the inputs query, value, key in this order and separate head widths.

    The projections are inner layers and count in their own ranges, if they have any. Keras computes all query-key
    pairs, even with a causal mask.
    """
    query, value = call.shape(0), call.shape(min(1, len(call.tensors) - 1))
    key = call.shape(2) if len(call.tensors) > 2 else value
    if not len(query) == len(key) == len(value) == 3:
        raise UncountableError
    heads, wide = call.number("heads"), call.number("key_dim")
    deep, groups = call.number("value_dim", wide), call.number("kv_heads", heads)
    batch, length, width = query
    source, out = value[1], call.number("out", width)
    of_query, of_out = width * heads * wide, heads * deep * out
    of_key, of_value = key[2] * groups * wide, value[2] * groups * deep
    macs = batch * (length * (of_query + of_out) + source * (of_key + of_value))
    bias = (heads * wide + groups * (wide + deep) + out) * call.flag("bias")
    inputs, weights = batch * (length * width + source * value[2]), of_query + of_key + of_value + of_out
    cost = product(call, macs, inputs, batch * length * out, weights, bias)
    mixed = 2 * batch * length * source * heads * (wide + deep)
    if not call.alone:
        size = call.product_item
        heads_in = batch * (length * heads * wide + source * groups * (wide + deep))
        moved = heads_in * size, batch * length * heads * deep * size
        return Cost(mixed, *moved, to_inputs=2 * mixed, needs_inputs=True)
    flops = cost.flops + mixed
    return replace(cost, flops=flops, to_inputs=flops, to_weights=flops)


def _dot_products(call: Call) -> Cost:
    """Count scores and weighted sums of scaled dot-product attention on (…, heads, length, width).

    Grouped attention counts every query head. A causal mask counts only the unmasked pairs. PyTorch's flop_counter
    instead counts all pairs, and in the backward also the scores that a fused kernel recomputes.
    """
    query, key, value = call.shape(0), call.shape(1), call.shape(2)
    if min(len(query), len(key), len(value)) < 2:
        raise UncountableError
    length, source, heads = query[-2], key[-2], math.prod(query[:-2])
    causal = call.flag("is_causal", default=False)
    corner = min(length, source)
    pairs = corner * (corner + 1) // 2 + (length - corner) * source if causal else length * source
    flops = 2 * heads * pairs * (query[-1] + value[-1])
    size = call.product_item
    inputs = (call.count(0) + call.count(1) + call.count(2)) * size
    return Cost(flops, inputs, heads * length * value[-1] * size, to_inputs=2 * flops, needs_inputs=True)


SEQUENCE_LAYERS: Final[dict[str, Formula]] = {
    "Embedding": _embedding,
    "EmbeddingBag": partial(_embedding, bag=True),
    **dict.fromkeys(("RNN", "LSTM", "GRU", "SimpleRNN"), _recurrent),
    **dict.fromkeys(("RNNCell", "LSTMCell", "GRUCell", "SimpleRNNCell"), _recurrent),
    "MultiheadAttention": _attention,
    **dict.fromkeys(("MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention"), _keras_attention),
}
SEQUENCE_OPERATIONS: Final[dict[str, Formula]] = {"scaled_dot_product_attention": _dot_products}
