"""Formulas of all layers and operations of PyTorch and Keras, by name, and the cost of a parsed label."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from annot.analyze.work import conv_linear, elementwise, keras_layers, sequences
from annot.analyze.work.call import Call, Cost, Formula, UncountableError, Work
from annot.analyze.work.optimizers import UPDATES
from annot.labels.tag import Tag
from annot.util.entry_points import Extension, loaded

__all__ = ["LAYERS", "OPERATIONS", "UPDATES", "cost", "expected"]


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
    **conv_linear.LAYERS,
    **sequences.LAYERS,
    **elementwise.LAYERS,
    **keras_layers.LAYERS,
    "TransformerEncoderLayer": _encoder_layer,
}
"""Formulas of layers, by class."""

OPERATIONS: Final[Mapping[str, Formula]] = {**conv_linear.OPERATIONS, **sequences.OPERATIONS, **elementwise.OPERATIONS}
"""Formulas of operations that layers call directly, by function name."""

EXPECTED: Final = (UncountableError, IndexError, ValueError, ArithmeticError)
"""Exceptions of a formula if shapes and arguments contradict each other."""


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
    except EXPECTED:
        return None


@cache
def _layers() -> Mapping[str, Formula]:
    """Return `LAYERS` and the formulas of other packages: entry points of the group ``annot.formulas``, by class."""
    return {**LAYERS, **{one.name: _isolated(one) for one in loaded("annot.formulas", ("__call__",))}}


def _isolated(extension: Extension) -> Formula:
    """Return the formula of another package, whose errors mean that the work is unknown."""

    def formula(call: Call) -> Cost:
        try:
            result = extension.target(call)
        except EXPECTED:
            raise
        except Exception as error:
            extension.leave_out(extension.failure(error))
            raise UncountableError from error
        if not isinstance(result, Cost):
            extension.leave_out(f"returned a {type(result).__name__}, not a Cost")
            raise UncountableError
        return result

    return formula


def expected(tag: Tag, *, alone: bool = True) -> Work | None:
    """Return the work of a range; None if it is unknown. `alone` is that of `cost`."""
    found = cost(tag, alone=alone)
    if found is None:
        return None
    if tag.phase == "backward":
        return found.backward(str(dict(tag.arguments).get("grad", "")))
    return found.forward()
