"""Comparisons of attributed profiles, and decisions about them."""

from __future__ import annotations

from typing import Any

import polars as pl

from annot.analyze.comparison.compare import Comparison
from annot.analyze.comparison.compare import compare as compare_runs
from annot.analyze.comparison.digest import digest
from annot.analyze.comparison.gate import decide
from annot.attribution.attribute import Attribution


def compare(a: Attribution, b: Attribution, **options: Any) -> Comparison:
    """Compare two profiles."""
    return compare_runs([digest(a)], [digest(b)], **options)


def regressions(comparison: Comparison, above: float, **options: Any) -> pl.DataFrame:
    """Return the rows that a gate calls slower."""
    return decide(comparison, above=above, force=True, **options).rows
