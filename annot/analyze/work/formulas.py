"""All formulas by the name of a class or operation, of PyTorch and of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from annot.analyze.work import elements, keras_layers, products, sequences
from annot.analyze.work.call import Call, Cost, Formula, UncountableError, Work
from annot.analyze.work.updates import UPDATES
from annot.tag import Tag

__all__ = ["LAYERS", "OPERATIONS", "UPDATES", "cost", "expected"]


def _encoder_layer(call: Call) -> Cost:
    """Count the activation and two residual sums; if PyTorch's fast path ran none of its layers, these as well."""
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
    **products.LAYERS,
    **sequences.LAYERS,
    **elements.LAYERS,
    **keras_layers.LAYERS,
    "TransformerEncoderLayer": _encoder_layer,
}
"""Formulas of layers, by class."""

OPERATIONS: Final[Mapping[str, Formula]] = {**products.OPERATIONS, **sequences.OPERATIONS, **elements.OPERATIONS}
"""Formulas of what a layer calls itself, by the name of the function."""


def cost(tag: Tag, *, alone: bool = True) -> Cost | None:
    """Return the cost of a call of a layer or operation, or of an optimizer's step; None if nobody knows it.

    Args:
        tag: what the text of its range says.
        alone: whether no layers ran inside.

    Example:
        >>> from annot.tag import parse
        >>> cost(parse("fc Linear [128,9216]f32 out=4096 |fwd")).flops == 2 * 128 * 9216 * 4096
        True
    """
    call = Call.of(tag, alone=alone)
    formula = _table(tag).get(call.name)
    if formula is None:
        return None
    try:
        return formula(call)
    except (UncountableError, IndexError, ValueError, ArithmeticError):  # sizes and numbers that do not fit
        return None


def _table(tag: Tag) -> Mapping[str, Formula]:
    if tag.phase == "optimizer":
        return {} if tag.layer else UPDATES  # a layer is what goes with a step, such as zero_grad
    return OPERATIONS if tag.op else LAYERS


def expected(tag: Tag, *, alone: bool = True) -> Work | None:
    """Return the work of the range that a tag describes; None if nobody knows it.

    Example:
        >>> from annot.tag import parse
        >>> expected(parse("fc Linear [2,3]f32 out=4 grad=weight |bwd"))
        Work(flops=48, bytes_read=56, bytes_written=64, params=16)
    """
    found = cost(tag, alone=alone)
    if found is None:
        return None
    if tag.phase == "backward":
        return found.backward(str(dict(tag.arguments).get("grad", "")))
    return found.forward()
