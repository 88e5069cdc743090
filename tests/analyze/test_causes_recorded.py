"""Causes of longer times in recorded runs of a small network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from annot import batches, emit_ranges, record
from annot.analyze.comparison.causes import Cause, causes
from annot.analyze.comparison.digest import Digest, digest
from annot.runs.run import Run

WIDTH, STEPS = 256, 12
ROW = ("1", "Own", "forward")

pytestmark = pytest.mark.slow


class Own(torch.nn.Linear):
    """A layer that multiplies several times."""

    def __init__(self, products: int) -> None:
        super().__init__(WIDTH, WIDTH)
        self.products = products

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.products):
            x = x @ self.weight
        return x


class Twice(torch.nn.Module):
    """A network that calls a layer several times."""

    def __init__(self, products: int, calls: int) -> None:
        super().__init__()
        self.calls = calls
        self.add_module("0", torch.nn.Linear(WIDTH, WIDTH))
        self.add_module("1", Own(products))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, own = self.children()
        x = first(x)
        for _ in range(self.calls):
            x = own(x)
        return x


def _loaded(rows: int, dtype: torch.dtype, products: int) -> Iterator[torch.Tensor]:
    for _ in range(STEPS):
        square = torch.eye(WIDTH)
        for _ in range(products):
            square = square @ square
        yield torch.ones(rows, WIDTH, dtype=dtype) * square[0, 0]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of an operation wait for each other, much longer where other programs run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _run(
    path: Path, products: int = 2, calls: int = 1, rows: int = 64, loading: int = 0, dtype: torch.dtype = torch.float32,
    **ranges: Any,
) -> Digest:  # fmt: skip
    model = Twice(products, calls).to(dtype)
    with torch.no_grad(), record(path), emit_ranges(model, **ranges):
        for batch in batches(_loaded(rows, dtype, loading)):
            model(batch)
    return digest(Run(path).attribution)


def _cause(folder: Path, row: tuple[str, str, str] | None, *, ops: bool = False, **change: Any) -> Cause:
    before, after = (
        _run(folder / f"{name}.sqlite", ops=ops, **options) for name, options in (("a", {}), ("b", change))
    )
    (cause,) = causes([before], [after], [row] if row else [], time="host_ns", step=row is None)
    assert cause.row == row
    return cause


def test_further_operations(tmp_path: Path) -> None:
    cause = _cause(tmp_path, ROW, products=40, ops=True)
    assert cause.kind == "work"
    assert "operations: 40 per step instead of 2" in cause.text


def test_further_operations_without_their_ranges(tmp_path: Path) -> None:
    cause = _cause(tmp_path, ROW, products=100)
    assert cause.kind == "slower work"
    assert "ops=True" in cause.text


def test_further_calls(tmp_path: Path) -> None:
    cause = _cause(tmp_path, ROW, calls=10)
    assert cause.kind == "work"
    assert "10 calls per step instead of 1" in cause.text


def test_larger_batches(tmp_path: Path) -> None:
    cause = _cause(tmp_path, ROW, rows=2048)
    assert cause.kind == "work"
    assert f"[2048,{WIDTH}]f32 instead of [64,{WIDTH}]f32" in cause.text


def test_double_precision(tmp_path: Path) -> None:
    cause = _cause(tmp_path, ROW, dtype=torch.float64)
    assert cause.kind == "work"
    assert f"[64,{WIDTH}]f64" in cause.text


def test_slow_data(tmp_path: Path) -> None:
    cause = _cause(tmp_path, None, loading=100)
    assert cause.kind == "waits"
    assert "waiting for data" in cause.text
