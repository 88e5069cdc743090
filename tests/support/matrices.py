"""Parameters of tests, of which `make test` runs a part and `make test-all` all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def matrix(*axes: Iterable[Any], in_ci: bool = True) -> list[Any]:
    """Return all combinations of the options, as parameters of a test.

    The combinations on the diagonal have each option of each axis at least once. All others have the marker `slow`,
    and, for axes that hardly depend on each other, the marker `combination`: CI leaves them out.
    """
    others = [pytest.mark.slow] if in_ci else [pytest.mark.slow, pytest.mark.combination]
    options = [list(axis) for axis in axes]
    diagonal = {tuple(row % len(axis) for axis in options) for row in range(max(map(len, options)))}
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(options, places, strict=True)),
            marks=[] if places in diagonal else others,
        )
        for places in itertools.product(*(range(len(axis)) for axis in options))
    ]


def every_third(rows: Iterable[Any]) -> list[Any]:
    """Return all rows, tuples or single values, as parameters of a test. Only every third one is quick."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=[] if number % 3 == 0 else pytest.mark.slow)
        for number, row in enumerate(rows)
    ]
