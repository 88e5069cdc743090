"""Layers whose time a change makes shorter or longer, from the profiles of two checked runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import digest
from annot.errors import AnnotError
from annot.runs.run import Run
from annot.trial.answer import LayerChange

_SHOWN: Final = 6
"""Most layers."""
_LEAST: Final = 0.01
"""Least change, as a share of the time of a step."""


def changed_layers(base: Path | None, other: Path | None) -> list[LayerChange]:
    """Return the layers whose time differs most between two profiles, the largest difference first.

    A layer whose change is that of layers inside it is left out, as in `annot compare`.

    Args:
        base, other: the profiles; None: there is none, and so no layer.
    """
    if base is None or other is None:
        return []
    try:
        comparison = compare([digest(Run(base).attribution)], [digest(Run(other).attribution)])
    except (AnnotError, ValueError):  # a profile without layers or without times
        return []
    least = _LEAST * max(comparison.whole["a_ns"] or 0.0, comparison.whole["b_ns"] or 0.0)
    changes = pl.col("difference_ns").abs()
    rows = comparison.rows.filter(~pl.col("explained"), changes >= least).sort(changes, descending=True)
    return [
        LayerChange(
            layer=row["layer"],
            module=row["module"],
            phase=row["phase"],
            before_ns=row["a_ns"] or 0.0,
            after_ns=row["b_ns"] or 0.0,
        )
        for row in rows.head(_SHOWN).iter_rows(named=True)
    ]
