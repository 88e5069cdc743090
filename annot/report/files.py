"""A report for programs: JSON, CSV, Parquet."""

from __future__ import annotations

import io
import json
from typing import Final

import polars as pl

from annot.report import Report

__all__ = ["as_csv", "as_json", "as_parquet"]

_NAMES: Final = {
    "layer": "layers", "module": "modules", "phase": "phases", "kernel": "kernels", "step": "steps",
}  # fmt: skip


def as_json(report: Report) -> str:
    """Return one object: `meta`, and the rows as a list named by what they stand for, such as `layers`."""
    return json.dumps({"meta": report.meta, _NAMES[report.by]: report.rows.to_dicts()}, indent=2) + "\n"


def as_csv(report: Report) -> str:
    """Return the rows with a header; lists of shapes are joined by ``; ``."""
    lists = [name for name, dtype in report.rows.schema.items() if isinstance(dtype, pl.List)]
    return report.rows.with_columns(pl.col(lists).list.join("; ")).write_csv()


def as_parquet(report: Report) -> bytes:
    """Return the rows as a Parquet file, with `meta` as JSON in its metadata under ``annot``."""
    file = io.BytesIO()
    report.rows.write_parquet(file, metadata={"annot": json.dumps(report.meta)})
    return file.getvalue()
