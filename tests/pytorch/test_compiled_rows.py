"""Reports on compiled models: the rows of eager mode, and fused kernels inside these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

from comparisons import compare  # noqa: E402
from compiled_nets import Block, X, nothing_compiled, step  # noqa: E402

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.attribution.layer_tables import (  # noqa: E402
    by_layer,
    by_line,
)
from annot.report.tree import Line, layer_lines  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path) -> Iterator[None]:
    """Start every test with nothing compiled."""
    with nothing_compiled(tmp_path / "inductor"):
        yield


class Deep(nn.Module):
    """Equal blocks in a list, which is called by no one, and a layer before and after these."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.LayerNorm(4)
        self.h = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.h:
            x = block(x)
        result: torch.Tensor = self.last(x)
        return result


def test_a_compiled_model_has_the_rows_of_eager_mode(tmp_path: Path) -> None:
    """Each row is one of the eager run, a graph, or a fused kernel inside such a row; `compare` answers by block."""
    model = Deep()
    sides = []
    for call in (model, torch.compile(model)):
        folder = tmp_path / str(len(sides))
        folder.mkdir()

        def body(call: Any = call) -> None:
            with emit_ranges(model):
                for _ in range(3):
                    step(call, model)

        capture(folder, body)
        sides.append(annot.open(str(next(folder.glob("*.sqlite")))).attribution)
    eager, found = (by_layer(side) for side in sides)
    known = set(eager.select("layer", "module", "phase").iter_rows())
    lines = layer_lines(by_line(sides[1]))
    above: list[Line] = []
    for line in lines:
        above[line.depth :] = [line]
        for phase, row in line.phases.items():
            key = (*line.key, phase)
            if row["own"] is not None and key not in known and not line.module.startswith("CompiledGraph"):
                outer = above[line.depth - 1].key
                members = line.key[0].split("+")
                assert len(members) > 1
                assert (*outer, phase) in known
                assert all(one == outer[0] or not outer[0] or one.startswith(f"{outer[0]}.") for one in members)
    assert {line.key for line in lines if line.depth == 1} >= {(f"h.{index}", "Block") for index in range(3)}
    assert found["host_self_ns"].sum() == pytest.approx(sides[1].nodes["host_self_ns"].sum())
    comparison = compare(*sides)
    shown = comparison.rows.filter(~pl.col("explained"))
    apart = shown.filter(pl.col("only_in").is_not_null() & ~pl.col("module").str.starts_with("CompiledGraph"))
    assert apart.is_empty()
    assert comparison.comparability.same_program
    assert comparison.rows["own_difference_ns"].sum() == pytest.approx(comparison.whole["difference_ns"])


class Flat(nn.Module):
    """Two layers of a list that no layer contains but the model; their backward is one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.list = nn.ModuleList([nn.ReLU(), nn.LayerNorm(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        relu, norm = self.list
        result: torch.Tensor = norm(relu(x))
        return result


def test_a_kernel_of_layers_of_a_list_is_in_the_model(tmp_path: Path) -> None:
    """A ModuleList is not called, so that it is no row, as in eager mode."""
    model = Flat()
    compiled = torch.compile(model)

    def body() -> None:
        with emit_ranges(model):
            compiled(torch.randn(4, 8, requires_grad=True)).sum().backward()

    capture(tmp_path, body)
    lines = layer_lines(by_line(annot.open(str(next(tmp_path.glob("*.sqlite")))).attribution))
    fused = [line for line in lines if "+" in line.key[0]]
    assert fused
    assert {line.depth for line in fused} == {1}
    assert "list" not in {line.key[0] for line in lines}


def test_a_buffer_that_is_written_back_keeps_the_layer(tmp_path: Path) -> None:
    """The running mean of a BatchNorm is written by a node without a layer: its kernel stays in the block."""
    model = nn.Sequential(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 4))
    call = torch.compile(model)

    def body() -> None:
        with emit_ranges(model):
            call(X)

    captured = capture(tmp_path, body)
    graph = next(one for one in captured.ranges if one.tag and one.tag.module.startswith("CompiledGraph"))
    layers = [one.tag.layer for one in graph.children if one.tag]
    assert any("0.0" in layer for layer in layers)
    assert not any("(model)" in layer or not layer for layer in layers)
