"""Tables that are made from slices of many ranges do not depend on the size of a slice."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shared_data import unpacked

from annot.analyze import layer_details, roofline, step_parts
from annot.analyze.advice import Facts
from annot.attribution import range_trees
from annot.attribution.attribute import attribute
from annot.read.formats import load

layer_work = import_module("annot.analyze.work.layer_work")  # the package has a function of this name
LIMITS = ((range_trees, "_PART"), (layer_work, "_SLICE"), (layer_details, "_SLICE"), (roofline, "_SLICE"))


def results(path: Path) -> list[Any]:
    """Tables of the layers, details and operators of a profile, the shares of its time, and its backward operations."""
    attribution = attribute(load(path))
    operators = roofline.operator_table(attribution)
    tables = [layer_work.by_layer_with_work(attribution), layer_details.by_detail(attribution), operators.rows]
    kernels = operators.kernels.sort("group", "name").rows()
    pairs = sorted(attribution.forest.pairs.items())
    return [
        *(table.rows() for table in tables),
        kernels,
        operators.groups.to_list(),
        dict(Facts(attribution).shares),
        pairs,
    ]


@pytest.mark.parametrize("name", ["ginda_mfu_2gpu_before.2026.2", "athrun_lm_attn_windows.2026.2"])
def test_sizes_of_slices(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand ranges at a time, and all at once; ranges inside others add nothing to the shares of the time."""
    path = unpacked(f"nsys/{name}.sqlite.gz", tmp_path)
    at_once = results(path)
    for module, limit in LIMITS:
        monkeypatch.setattr(module, limit, 1000)
    none = lambda chosen, _: pl.repeat(False, len(chosen), dtype=pl.Boolean, eager=True)  # noqa: E731
    monkeypatch.setattr(step_parts, "_are_nested", none)
    for first, second in zip(at_once, results(path), strict=True):
        assert first == second
