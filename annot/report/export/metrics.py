"""Metrics of a profile for experiment trackers, such as Weights & Biases and MLflow: numbers by name.

The name of a metric is the row, its label, its phase and the column: ``layer/blocks.0.attn/forward/gpu_ms``. Times are
in ms. MLflow accepts letters, digits, ``_-. /`` and at most 250 characters in names that are normalized paths
(`mlflow.utils.validation`). Other characters become ``_``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from annot.attribution.gpu_time import UNATTRIBUTED
from annot.report.table import Table
from annot.report.tree import row_label
from annot.report.views import View

_BRACKETS: Final = re.compile(r"[()\[\]]")
_FORBIDDEN: Final = re.compile(r"[^\w\-. /]|(?<![^/])\.*(?![^/])", re.ASCII)
"""Characters that names cannot have, and parts of paths that are empty or consist of dots."""
_LONGEST: Final = 200
"""Characters of a layer or kernel in a name, the last ones. Other parts follow."""


def as_metrics(table: Table) -> Iterator[str]:
    """Yield the text of one object with the metrics of a table."""
    yield json.dumps(metrics(table), indent=2) + "\n"


def metrics(table: Table) -> dict[str, float]:
    """Return the columns of a table by row, and its totals as ``run/...``. Unknown numbers are left out.

    Raises:
        ValueError: the rows of the view have no names.

    Example:
        >>> import polars as pl
        >>> from annot.report.views import find_view
        >>> row = {"layer": "fc", "module": "Linear", "phase": "forward", "calls": 2, "host_ns": 3_000_000}
        >>> totals = {"kernels": 0, "copies": 0, "host_ns": 3_000_000, "step_ns": None}
        >>> metrics(Table(find_view("layer"), pl.DataFrame([row]), totals))["layer/fc/forward/host_ms"]
        3.0
    """
    view = table.view
    if not view.keys:
        raise ValueError(f"metrics need rows with names, got by {view.by} with columns {view.group}")
    columns = [column.name for column in view.shown if column.name not in view.keys and table.knows(column.name)]
    rows = ((f"{label}/{name}", row.get(name)) for label, row in _by_label(table) for name in columns)
    steps = {f"step/{name}_ns": ns for name, ns in (table.meta.get("step_ns") or {}).items() if name != "warmup"}
    totals = ((f"run/{name}", number) for name, number in (table.meta | steps).items())
    return dict(_in_ms(name, number) for name, number in (*rows, *totals) if _is_number(number))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _in_ms(name: str, number: float) -> tuple[str, float]:
    return (f"{name[:-2]}ms", number / 1e6) if name.endswith("_ns") else (name, number)


def _by_label(table: Table) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows, each with the first part of the names of its metrics, which no other row has."""
    used = set[str]()
    for row in table.rows.iter_rows(named=True):
        label = _label(row, table.view)
        while label in used:
            label += "_"
        used.add(label)
        yield label, row


def _label(row: Mapping[str, Any], view: View) -> str:
    title, remark = row_label(row, view.label)
    if view.label == "layer" and row["layer"] in ("", UNATTRIBUTED):
        title = f"{title} {remark}".strip()
    parts = [f"rank{row['rank']}"] if "rank" in row else []
    parts += [view.by, title[-_LONGEST:], *([row["phase"]] if "phase" in view.keys and view.label != "phase" else [])]
    return _FORBIDDEN.sub("_", _BRACKETS.sub("", "/".join(parts)))
