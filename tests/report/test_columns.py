"""Columns of a view by name."""

from __future__ import annotations

import pytest

from annot.report.columns import COLUMNS, of_names


def test_a_text_names_several_columns_or_one_with_a_heading() -> None:
    assert of_names(["calls kernels"]) == [COLUMNS["calls"], COLUMNS["kernels"]]
    (column,) = of_names(["gpu_ns=Time in total"])
    assert (column.name, column.title) == ("gpu_ns", "Time in total")


@pytest.mark.parametrize(
    ("names", "unknown"), [("calls", "c"), (["calls speed"], "speed"), (["calls kernels=Both"], "calls kernels")]
)
def test_a_column_that_annot_lacks_is_named(names: list[str], unknown: str) -> None:
    with pytest.raises(ValueError, match=f"name of a column of annot, got '{unknown}'"):
        of_names(names)
