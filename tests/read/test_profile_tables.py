"""The tables of a profile: their columns, types and what is refused."""

from __future__ import annotations

import polars as pl
import pytest

from annot.profile import KERNELS, RANGES, Profile


def test_missing_tables_and_columns_are_filled() -> None:
    """A table that is not given is empty with its schema; a column that is not given is null."""
    profile = Profile.build({"source": "x"}, kernels=pl.DataFrame({"start": [1], "end": [2], "name": ["k"]}))
    assert dict(profile.ranges.schema) == dict(RANGES)
    assert dict(profile.kernels.schema) == dict(KERNELS)
    assert profile.kernels.row(0, named=True)["correlation"] is None
    assert profile.meta == {"source": "x", "format": "", "producer": "", "notes": []}


def test_unknown_column_is_refused() -> None:
    """A column outside the schema is an error that names it and the columns that there are."""
    with pytest.raises(ValueError, match=r"columns must be among id, .*, got colour"):
        Profile.build({}, ranges=pl.DataFrame({"colour": [1]}))


def test_wrong_type_is_refused() -> None:
    """Times that went through floating point are refused rather than rounded."""
    with pytest.raises(TypeError, match="column start must be Int64, got Float64"):
        Profile.build({}, ranges=pl.DataFrame({"start": [1.0]}))
