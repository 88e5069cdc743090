"""A report for programs: JSON, JSON Lines, CSV, Parquet."""

from __future__ import annotations

import io
import json
from typing import Any, Final, Protocol

import polars as pl

__all__ = ["SCHEMA", "Tabular", "as_csv", "as_json", "as_jsonl", "as_parquet"]

SCHEMA: Final = 1
"""The number of the columns' and keys' meaning: it rises when one goes or changes, not when one is added."""


class Tabular(Protocol):
    """A report, as far as programs see it."""

    @property
    def name(self) -> str:
        """What the rows are, such as `layers`."""

    @property
    def rows(self) -> pl.DataFrame:
        """The rows."""

    @property
    def meta(self) -> dict[str, Any]:
        """What is true of all of them."""


def as_json(report: Tabular) -> str:
    """Return one object: `meta`, and the rows as a list named by what they stand for, such as `layers`."""
    return json.dumps({"meta": _meta(report), report.name: report.rows.to_dicts()}, indent=2) + "\n"


def as_jsonl(report: Tabular) -> str:
    """Return an object per row, a line each, without `meta`."""
    return report.rows.write_ndjson()


def as_csv(report: Tabular) -> str:
    """Return the rows with a header; lists of shapes are joined by ``; ``."""
    lists = [name for name, dtype in report.rows.schema.items() if isinstance(dtype, pl.List)]
    return report.rows.with_columns(pl.col(lists).list.join("; ")).write_csv()


def as_parquet(report: Tabular) -> bytes:
    """Return the rows as a Parquet file, with `meta` as JSON in its metadata under ``annot``."""
    file = io.BytesIO()
    report.rows.write_parquet(file, metadata={"annot": json.dumps(_meta(report))})
    return file.getvalue()


def _meta(report: Tabular) -> dict[str, Any]:
    return {"schema": SCHEMA, **report.meta}
