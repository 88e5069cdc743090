"""Columns for the C parts, and calls of the C parts and of their Python fallbacks on the same columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal, assert_series_equal


def i32(values: list[Any]) -> pl.Series:
    """Return a column of 32-bit integers."""
    return pl.Series(values, dtype=pl.Int32)


def i64(values: list[Any]) -> pl.Series:
    """Return a column of 64-bit integers."""
    return pl.Series(values, dtype=pl.Int64)


def same_both_ways(ask: Callable[[], Any]) -> Any:
    """Assert that both implementations answer alike, and return the answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANNOT_DISABLE_NATIVE", "1")
        expected = ask()
        patch.delenv("ANNOT_DISABLE_NATIVE")
        found = ask()
    results = [part if isinstance(part, tuple) else (part,) for part in (found, expected)]
    for mine, other in zip(*results, strict=True):
        if isinstance(mine, pl.Series):
            assert_series_equal(mine, other)
        elif isinstance(mine, pl.DataFrame):
            assert_frame_equal(mine, other)
        else:
            assert mine == other
    return found
