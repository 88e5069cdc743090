"""Repeated layers in the parts of the step: one item, with their number."""

from __future__ import annotations

import polars as pl
from tables import Rows

from annot.runs.run import Run


def test_parts_of_the_step_have_repeated_layers_once() -> None:
    """Twelve blocks are one item; its time and that of the others add up to the part."""
    rows = Rows()
    for number in range(12):
        start = 100 * number
        rows.range(f"layers.{number}.fc Linear |fwd", start, start + 60)
        rows.range(f"layers.{number}.norm Norm |fwd", start + 60, start + 90)
    summary = Run(rows.range("head Linear |fwd", 1200, 1205).build()).summary
    parts = summary.filter(section="parts").select("item", "count", "ns", "text").rows()
    assert parts == [
        ("forward", 12, 720, "layers.*.fc Linear ×12"), ("forward", 12, 360, "layers.*.norm Norm ×12"),
        ("forward", None, 5, "head Linear"),
    ]  # fmt: skip
    forward = summary.filter(pl.col("section") == "time", pl.col("item") == "forward")
    assert forward["ns"].item() == sum(ns for _, _, ns, _ in parts)
