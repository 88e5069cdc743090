"""Formulas of all layers and operations of PyTorch and Keras, by name, and the cost of a parsed label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from annot.analyze.work import conv_linear, elementwise, keras_layers, sequences
from annot.analyze.work.call import CONTRADICTIONS, Call, Cost, Formula, Work
from annot.analyze.work.optimizers import UPDATES
from annot.labels.tag import Tag
from annot.util.entry_points import loaded

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
