"""Expected work of each layer: FLOPs, bytes and parameters, from the shapes and arguments in its range labels."""

from __future__ import annotations

from annot.analyze.work.call import Cost, Work
from annot.analyze.work.formulas import cost, expected
from annot.analyze.work.layer_work import (
    by_layer_with_work,
    by_text,
    by_work,
    layer_work,
    not_counted,
    with_work,
)

__all__ = [
    "Cost",
    "Work",
    "by_layer_with_work",
    "by_text",
    "by_work",
    "cost",
    "expected",
    "layer_work",
    "not_counted",
    "with_work",
]
