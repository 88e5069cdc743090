"""Expected work: what each layer has to compute and move, from the shapes and numbers in the texts of its ranges."""

from __future__ import annotations

from annot.analyze.work.call import Call, Cost, UncountableError, Work
from annot.analyze.work.formulas import cost, expected
from annot.analyze.work.layers import WORK_COLUMNS, by_text, layer_work, not_counted, with_work
from annot.analyze.work.rows import by_layer_with_work, by_work

__all__ = [
    "WORK_COLUMNS",
    "Call",
    "Cost",
    "UncountableError",
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
