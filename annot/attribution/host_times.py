"""Null host times for profiles without a host clock, such as those of Nsight Compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

__all__ = ["known", "without_unknown"]

_COLUMNS: Final = (
    "host_ns", "host_self_ns", "start_ns", "step_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "warmup",
)  # fmt: skip


def known(meta: Mapping[str, Any]) -> bool:
    """Return whether the profile with this `meta` has host times."""
    return meta.get("host_times", True) is not False


def without_unknown(rows: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows, with null host times if the profile lacks host times."""
    if known(meta):
        return rows
    return rows.with_columns(pl.lit(None, rows.schema[name]).alias(name) for name in _COLUMNS if name in rows.columns)
