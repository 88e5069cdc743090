"""Expected work: what each layer has to compute and move, from the shapes and numbers in the texts of its ranges."""

from __future__ import annotations

from annot.analyze.work.call import Call, Cost, Uncountable, Work
from annot.analyze.work.formulas import cost, expected
from annot.analyze.work.layers import WORK_COLUMNS, layer_work, not_counted, with_work

__all__ = [
    "WORK_COLUMNS",
    "Call",
    "Cost",
    "Uncountable",
    "Work",
    "cost",
    "expected",
    "layer_work",
    "not_counted",
    "with_work",
]
