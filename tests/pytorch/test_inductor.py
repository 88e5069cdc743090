"""What annot reads of Inductor where a release of PyTorch does not store it, against a release that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

from compiled_nets import Net, nothing_compiled, step  # noqa: E402
from torch._guards import TracingContext  # noqa: E402
from torch._guards import tracing as tracing_in  # noqa: E402
from torch._inductor import compile_fx  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

from annot import emit_ranges  # noqa: E402
from annot.torch import inductor  # noqa: E402

STACK = "fwd_nn_module_stack"


@pytest.mark.slow
def test_stacks_and_kinds_of_graphs_are_those_of_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a backward have the stacks, and graphs the kind, that this release stores with them.

    Only nodes before the first that reads a gradient have none, and a sum of gradients has that of its layer.
    """
    kinds, stacks = list[tuple[bool, bool, bool]](), list[tuple[Any, Any]]()
    passes, run = compile_fx._recursive_joint_graph_passes, compile_fx.CompiledFxGraph.__call__
    write = inductor.is_backward

    def compare_stacks(gm: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = {node: node.meta.pop(STACK) for node in gm.graph.nodes if node.meta.get(STACK)}
        inductor.copy_stacks(gm.graph.nodes)
        nodes = list(gm.graph.nodes)
        reads = [any("tangents" in read.name for read in node.all_input_nodes) for node in nodes]
        stacks.extend((wanted.get(node), node.meta.get(STACK)) for node in nodes[reads.index(True) :])
        return passes(gm, *args, **kwargs)

    def compare_writing(graph: Any) -> bool:
        kinds.append((graph.is_backward, write(graph), write(object())))
        return write(graph)

    def compare_running(graph: Any, *args: Any) -> Any:
        _, wanted = inductor.graph_id(graph)
        kinds.append((graph.fx_kwargs["is_backward"], wanted, inductor.graph_id(_without_options(graph))[1]))
        return run(graph, *args)

    monkeypatch.setattr(compile_fx, "_recursive_joint_graph_passes", compare_stacks)
    monkeypatch.setattr(inductor, "is_backward", compare_writing)
    monkeypatch.setattr(compile_fx.CompiledFxGraph, "__call__", compare_running)
    model = Net()
    with nothing_compiled(tmp_path / "inductor"):
        capture(tmp_path, lambda: _step_in_block(model))
    assert sum(wanted is not None for wanted, _ in stacks) >= 6
    assert all(wanted == got for wanted, got in stacks if wanted), [pair for pair in stacks if pair[0] != pair[1]]
    assert sum(got is not None and wanted is None for wanted, got in stacks) <= 1
    assert {kind[0] for kind in kinds} == {False, True}
    assert all(len(set(kind)) == 1 for kind in kinds), kinds


def _step_in_block(model: nn.Module) -> None:
    with emit_ranges(model):
        step(torch.compile(model), model)


def _without_options(graph: Any) -> Any:
    return SimpleNamespace(source_code=graph.source_code)


def test_the_number_of_a_graph_is_in_its_code() -> None:
    """PyTorch 2.4 writes number and kind of a graph only there. Code may have neither."""
    code = "\n# AOT ID: ['12_backward']\nfrom ctypes import c_void_p\n"
    assert inductor.graph_id(SimpleNamespace(source_code=code)) == (12, True)
    assert inductor.graph_id(SimpleNamespace(source_code=code.replace("back", "for"))) == (12, False)
    assert inductor.graph_id(SimpleNamespace(source_code=None)) == (None, False)


@pytest.mark.parametrize(
    ("path", "has"),
    [("Net.forward", True), ("Old|Net.forward", True), ("step", True), ("Old.forward", False), ("Net.old", False)],
)
def test_a_renamed_class_is_looked_up_by_all_its_names(path: str, has: bool) -> None:
    """And a function that is in no class in its module."""
    assert (inductor.find("compiled_nets", path) is not None) == has
    assert inductor.find("compiled_nets", path, "no_such_parameter") is None


class Unregistered(nn.Module):
    """A layer that calls another without registering it."""

    def __init__(self) -> None:
        super().__init__()
        self.call: list[Callable[..., Any]] = [nn.Linear(2, 2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the other layer."""
        result: torch.Tensor = self.call[0](x)
        return result


@pytest.mark.parametrize("traces", [False, True])
def test_a_copy_that_torch_compile_calls_while_it_traces_is_no_layer(tmp_path: Path, traces: bool) -> None:
    """Up to PyTorch 2.4, the tracer calls copies of modules with fake tensors."""

    def body() -> None:
        model = Unregistered()
        with emit_ranges(model), tracing_in(TracingContext(FakeTensorMode()) if traces else None):
            model(torch.ones(1, 2))

    assert capture(tmp_path, body).names == ["Unregistered>", *(() if traces else ["call.0>"])]
