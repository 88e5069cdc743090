"""Work of PyTorch's operators (``aten::…``), and of layers from the operators that run in them.

The inputs of operators are those in a trace of torch.profiler. The formulas are those of the layers: an operator
becomes the call of the layer that it implements. A backward operator computes the gradients of that layer; its
``output_mask`` names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import polars as pl

from annot.analyze.work.call import CONTRADICTIONS, NAMES, Call, Cost, Formula, UncountableError, Work, item_size
from annot.analyze.work.formulas import LAYERS, OPERATIONS
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution
from annot.attribution.nesting import Key
from annot.attribution.range_trees import Forest
from annot.labels.tag import Tag, TensorSpec, Value, parse
from annot.read.kineto.operator_calls import EXPERTS, VIEWS

_Count: TypeAlias = Callable[[Call], Work]


def operator_work(tag: Tag) -> Work | None:
    """Return the work of a call of an operator; None if it is unknown.

    Args:
        tag: the call, as in the column ``call`` of `annot.profile.RANGES`.

    Example:
        >>> from annot.labels.tag import parse
        >>> operator_work(parse("aten mm [2,3]f32 [3,4]f32 |op"))
        Work(flops=48, bytes_read=72, bytes_written=32, params=0)
    """
    count = _OPERATORS.get(tag.op) or (_experts if EXPERTS.search(tag.op) else None)
    try:
        return None if count is None else count(Call.of(tag))
    except CONTRADICTIONS:
        return None


def operator_cost(tag: Tag) -> Cost | None:
    """Return the cost of the forward of an operator that multiplies matrices, with its GEMMs; None: unknown.

    Example:
        >>> from annot.labels.tag import parse
        >>> operator_cost(parse("aten mm [2,3]f32 [3,4]f32 |op")).gemms
        ((1, 2, 4, 3),)
    """
    formula = _convolution if "conv" in tag.op else _attention if "attention" in tag.op else OPERATIONS.get(tag.op)
    try:
        return None if formula is None or tag.op.endswith("_backward") else formula(Call.of(tag))
    except CONTRADICTIONS:
        return None


def _forward(formula: Formula, *required: str) -> _Count:
    """Count the forward of a formula. Without one of the `required` arguments the work is unknown."""

    def count(call: Call) -> Work:
        _require(call, *required)
        return formula(call).forward()

    return count


def _require(call: Call, *names: str) -> None:
    if not all(name in call.arguments for name in names):
        raise UncountableError


_CONVOLVED: Final = ("stride", "padding", "dilation", "groups")


def _convolution(call: Call) -> Cost:
    _require(call, *_CONVOLVED)
    transposed = call.flag("transposed", default="transpose" in call.name)
    return OPERATIONS[f"conv{'_transpose' if transposed else ''}{len(call.shape(1)) - 2}d"](call)


def _convolution_backward(call: Call) -> Work:
    mask = call.arguments.get("output_mask")
    if not isinstance(mask, tuple) or len(mask) != 3:
        raise UncountableError
    of_input, of_weight, _ = mask
    if not of_input and not of_weight:
        raise UncountableError
    cost = _convolution(replace(call, tensors=call.tensors[1:]))
    return cost.backward("" if of_input and of_weight else "input" if of_input else "weight")


def _gradient(formula: Formula, inputs: slice = slice(1, None)) -> _Count:
    """Count the gradients of a formula; `inputs` are those tensors of the operator that the forward had."""
    return lambda call: formula(replace(call, tensors=call.tensors[inputs])).backward()


def _attention(call: Call) -> Cost:
    _require(call, "is_causal")
    return OPERATIONS["scaled_dot_product_attention"](replace(call, tensors=call.tensors[:3]))


def _layer(name: str) -> Formula:
    """Return the formula of a layer without parameters."""
    return lambda call: LAYERS[name](replace(call, name=name))


def _normalised(call: Call, *, name: str) -> Cost:
    weight, bias = (call.arguments.get(argument, True) is not None for argument in ("weight", "bias"))
    arguments = {**call.arguments, "affine": weight, "bias": bias}
    return LAYERS[name](replace(call, name=name, arguments=arguments))


def _pool(call: Call, *, average: bool) -> Cost:
    """Count a pooling. Without a stride, windows do not overlap."""
    name = f"{'Avg' if average else 'Max'}Pool{_dimensions(call)}d"
    _require(call, "kernel", "stride", "padding", "ceil")
    stride = call.arguments["stride"] or call.arguments["kernel"]
    return LAYERS[name](replace(call, name=name, arguments={**call.arguments, "stride": stride}))


def _adaptive(call: Call) -> Cost:
    _require(call, "out")
    return LAYERS[f"AdaptiveAvgPool{_dimensions(call)}d"](call)


def _adaptive_backward(call: Call) -> Work:
    arguments = {"out": call.shape(0)[-2:]}
    return LAYERS["AdaptiveAvgPool2d"](replace(call, tensors=call.tensors[1:], arguments=arguments)).backward()


def _dimensions(call: Call) -> int:
    return int(next(char for char in call.name if char in "123"))


def _dropout(call: Call) -> Cost:
    _require(call, "train")
    return LAYERS["Dropout"](call) if call.flag("train") else Cost(0, 0, 0)


def _embedding(call: Call) -> Cost:
    (num, dim), dtype = call.shape(0), call.tensors[0].dtype
    arguments: dict[str, Value] = {"num": num, "dim": dim, "dtype": dtype}
    return LAYERS["Embedding"](Call("Embedding", call.tensors[1:], arguments))


def _embedding_backward(call: Call) -> Work:
    """Count the gradient of the table: each row of the gradient is added to the row of its index."""
    params = call.number("num") * call.shape(0)[-1]
    return Work(call.count(0), call.bytes_of(0) + call.bytes_of(1), params * call.item, params)


def _experts(call: Call) -> Work:
    """Count the two or three GEMMs of the experts of a mixture, for each token and each of its experts.

    Weights are read of as many experts as the tokens can reach at most, because the choice of experts is unknown.
    """
    mixture = mixture_of(call.tensors)
    if mixture is None:
        raise UncountableError
    tokens, experts, chosen, width, inner, first = mixture
    rows, weights = tokens * chosen, (first + inner) * width
    reached = min(experts, rows) * weights * item_size(call.tensors[1].dtype)
    moved = tokens * width * call.item
    return Work(2 * rows * weights, moved + reached, moved, experts * weights)


class Mixture(NamedTuple):
    """Sizes of a call of the experts of a mixture."""

    tokens: int
    experts: int
    chosen: int
    """Experts of each token."""
    width: int
    inner: int
    """Inputs of the second GEMM."""
    first: int
    """Outputs of the first GEMM: `inner`, or twice as many with a gate."""


def mixture_of(tensors: Sequence[TensorSpec]) -> Mixture | None:
    """Return the sizes of the experts from the shapes of tokens, both weights and the weights of the chosen experts.

    Example:
        >>> from annot.labels.tag import parse
        >>> shapes = "[16,8]bf16 [4,12,8]bf16 [4,8,6]bf16 [16,2]f32"
        >>> mixture_of(parse(f"vllm fused_moe {shapes} |op").tensors)
        Mixture(tokens=16, experts=4, chosen=2, width=8, inner=6, first=12)
    """
    shapes = [tuple(size or 0 for size in tensor.shape) for tensor in tensors]
    weights = [shape for shape in shapes if len(shape) == 3]
    tokens = next((shape for shape in shapes if len(shape) == 2), None)
    if tokens is None or len(weights) < 2 or weights[0][0] != weights[1][0]:
        return None
    (experts, first, width), (_, back, inner) = weights[:2]
    chosen = [shape[1] for shape in shapes if len(shape) == 2 and shape[0] == tokens[0] and 0 < shape[1] < experts]
    if (tokens[1], back) != (width, width) or first not in (inner, 2 * inner) or not chosen:
        return None
    return Mixture(tokens=tokens[0], experts=experts, chosen=min(chosen), width=width, inner=inner, first=first)


_OVER_LIST: Final = ("sum", "mean", "amax", "amin", "logsumexp")
_OVER_DIMENSION: Final = ("argmax", "argmin")
"""Reductions over a list of dimensions, and over one. A number after the input of the former is a dtype."""
REDUCTIONS: Final = (*_OVER_LIST, *_OVER_DIMENSION)
"""Names of operators that reduce dimensions."""


def reduced_dimensions(call: Call) -> tuple[int, ...]:
    """Return the dimensions that a reduction (`REDUCTIONS`) reduces, in order; without a list all of the input."""
    rank, dimensions = len(call.shape()), call.arguments.get("dim")
    if call.name in _OVER_DIMENSION and type(dimensions) is int:
        dimensions = (dimensions,)
    listed = dimensions if isinstance(dimensions, tuple) else ()
    return tuple(sorted({size % rank for size in listed if isinstance(size, int)} if rank else ())) or (*range(rank),)


def _reduction(call: Call) -> Cost:
    """Count one FLOP per element of the input, and one output for each slice over the reduced dimensions."""
    outputs = call.count() // max(math.prod(call.shape()[size] for size in reduced_dimensions(call)), 1)
    return Cost(call.count(), call.bytes_of(), outputs * call.item)


_REDUCTIONS: Final = {0: "none", 1: "mean", 2: "sum"}


def _loss(call: Call, *, name: str) -> Cost:
    arguments = {"reduction": _REDUCTIONS[call.number("reduction")]}
    return LAYERS[name](replace(call, name=name, tensors=call.tensors[:2], arguments=arguments))


_OPERATORS: Final[Mapping[str, _Count]] = {
    **{name: _forward(OPERATIONS[name]) for name in NAMES.names["operators"]},
    **{f"{name}_": _forward(OPERATIONS[name]) for name in NAMES.names["in_place"]},
    **dict.fromkeys(NAMES.names["convolutions"], _forward(_convolution)),
    **{f"conv{kind}{count}d": _forward(_convolution) for kind in ("", "_transpose") for count in (1, 2, 3)},
    "_scaled_mm": _forward(OPERATIONS["mm"]),
    **dict.fromkeys(REDUCTIONS, _forward(_reduction)),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(NAMES.names["attention"], _forward(_attention)),
    **{f"{name}_backward": _gradient(_attention) for name in NAMES.names["attention"] if name.startswith("_")},
    "batch_norm": _forward(partial(_normalised, name="BatchNorm2d")),
    "native_batch_norm_backward": _gradient(partial(_normalised, name="BatchNorm2d")),
    "cudnn_batch_norm_backward": _gradient(partial(_normalised, name="BatchNorm2d"), slice(1)),
    "miopen_batch_norm_backward": _gradient(partial(_normalised, name="BatchNorm2d"), slice(1)),
    "layer_norm": _forward(partial(_normalised, name="LayerNorm"), "over"),
    # Older releases name the tensors in another order, with the same shapes.
    "native_layer_norm_backward": _gradient(partial(_normalised, name="LayerNorm")),
    "group_norm": _forward(partial(_normalised, name="GroupNorm")),
    "rms_norm": _forward(partial(_normalised, name="RMSNorm"), "over"),
    "embedding": _forward(_embedding),
    "embedding_dense_backward": _embedding_backward,
    **{f"max_pool{count}d": _forward(partial(_pool, average=False)) for count in (1, 2, 3)},
    **{f"avg_pool{count}d": _forward(partial(_pool, average=True)) for count in (1, 2, 3)},
    "max_pool2d_with_indices_backward": _gradient(partial(_pool, average=False)),
    "avg_pool2d_backward": _gradient(partial(_pool, average=True)),
    **{f"adaptive_avg_pool{count}d": _forward(_adaptive) for count in (1, 2, 3)},
    "_adaptive_avg_pool2d_backward": _adaptive_backward,
    **dict.fromkeys(("dropout", "dropout_"), _forward(_dropout)),
    **{f"{name}_backward": _gradient(_layer(layer)) for name, layer in NAMES.layer_of["gradients"].items()},
    "_softmax_backward_data": _gradient(_layer("Softmax")),
    "_log_softmax_backward_data": _gradient(_layer("LogSoftmax")),
    "native_dropout_backward": _gradient(_layer("Dropout"), slice(1)),
    "mse_loss": _forward(partial(_loss, name="MSELoss")),
    "mse_loss_backward": _gradient(partial(_loss, name="MSELoss")),
    "cross_entropy_loss": _forward(partial(_loss, name="CrossEntropyLoss")),
}

FREE: Final = VIEWS | {f"aten::{name}" for name in NAMES.names["free_operators"]}
"""Operators without computation, as in `annot.analyze.work.elementwise`: views, new tensors and copies."""


Calls: TypeAlias = list[tuple[Work | None, int]]
"""Work of the calls of a layer in one phase, with the numbers of calls; None: unknown."""

_NOTHING: Final = Work(0, 0, 0, 0)
_ROLES: Final = ("operator", "backward")


def operator_calls(attribution: Attribution) -> dict[Key, Calls]:
    """Return the work of the operators in each layer and phase, if the profile has the inputs of operators.

    Operators are nested: ``aten::conv2d`` calls ``aten::convolution``, which calls another operator. The outermost
    one with known work counts. The work of a layer is unknown if one of its kernels runs outside such operators.
    """
    forest = attribution.forest
    if not forest.labels["call"].str.ends_with("|op").any():
        return {}
    works = work_of_labels(forest)
    has_work = pl.Series([work is not None for work in works], dtype=pl.Boolean).gather(forest.tree["label"])
    inside = column_ops.inside(has_work, forest.tree["parent"])
    names, keys = forest.keys.names, forest.nodes.keys
    work_by_key: dict[Key, Calls] = {names[key]: [(_NOTHING, 1)] for key in keys}
    outermost = forest.tree.filter(has_work & ~inside & (forest.tree["path"] != column_ops.NONE))
    for path, label, calls in outermost.group_by("path", "label").len().sort("path", "label").iter_rows():
        work_by_key[names[keys[path]]].append((works[label], calls))
    for path in _uncounted(attribution, has_work | inside):
        work_by_key[names[keys[path]]].append((None, 1))
    return work_by_key


def work_of_labels(forest: Forest) -> list[Work | None]:
    """Return the work of a call of each label of the ranges; None: unknown."""
    return [_work(text, call) for text, call in forest.labels.select("text", "call").iter_rows()]


def _work(text: str, call: str | None) -> Work | None:
    if text in FREE:
        return _NOTHING
    tag = parse(call) if call else None
    return None if tag is None else operator_work(tag)


def _uncounted(attribution: Attribution, counted: pl.Series) -> pl.Series:
    """Return the nodes with kernels outside the counted operators. Without a device, with uncounted operators."""
    tree, nodes = attribution.forest.tree, attribution.nodes
    if not nodes["kernels"].sum():
        return (
            tree["path"].filter(_computing(attribution.forest) & ~counted & (tree["path"] != column_ops.NONE)).unique()
        )
    own = attribution.range_work("kernels").to_series()
    kernels = column_ops.Sums(nodes.height)
    kernels.add(tree["path"].filter(counted), own.filter(counted))
    return (nodes["kernels"] > kernels.result()).arg_true()


def _computing(forest: Forest) -> pl.Series:
    """Return which ranges are operators that call no other operator. Backward operations call operators to compute."""
    role = forest.labels["role"].gather(forest.tree["label"])
    callers = column_ops.known(forest.tree["parent"].filter(role.is_in(_ROLES))).drop_nulls().unique()
    rows = pl.int_range(forest.tree.height, dtype=pl.Int32, eager=True)
    return (role == "operator") & ~rows.is_in(callers.implode())
