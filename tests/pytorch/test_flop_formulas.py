"""FLOPs of custom operators: those of formulas that the program registers in `torch.utils.flop_counter`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import forked
import polars as pl
import pytest
import torch
from commands import needs_recorder
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

import annot
from annot.analyze.work import layer_work
from annot.attribution.attribute import attribute
from annot.emit import client

pytestmark = needs_recorder


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """Operators with the names of PyTorch's functions that compute something else."""
    library: Any = torch.library.Library("annot_flops", "DEF")
    for name in ("linear", "matmul", "tanh", "exp"):
        library.define(f"{name}(Tensor a, Tensor b, int times=1) -> Tensor")
        library.impl(name, lambda a, b, times=1: a @ b * times, "CompositeExplicitAutograd")
    library.define("copy_(Tensor(a!) out, Tensor a) -> ()")
    library.impl("copy_", _copy, "CompositeExplicitAutograd")
    found = torch.ops.annot_flops
    formulas: dict[Any, Any] = {
        found.linear: _product,
        found.tanh: _raises,
        found.exp: _of_values,
        found.copy_: _elements,
    }
    for operator, formula in formulas.items():
        flop_counter.register_flop_formula(operator, get_raw=formula is _of_values)(formula)
    yield found
    for operator in formulas:
        del flop_counter.flop_registry[operator]
    library._destroy()


def _copy(out: torch.Tensor, a: torch.Tensor) -> None:
    out.copy_(a)


def _product(a: Any, b: Any, times: int = 1, *, out_shape: Any = None) -> int:
    return int(2 * a[0] * b[0] * out_shape[1] * times)


def _raises(*_: Any, **__: Any) -> int:
    raise RuntimeError("no FLOPs")


def _of_values(a: torch.Tensor, *_: Any, **__: Any) -> int:
    return int(a.sum())


def _elements(out: Any, *_: Any, **__: Any) -> int:
    return int(out[0] * out[1])


class Calls(torch.nn.Module):
    """Layer that calls one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.function(x)
        return x if out is None else out


def flops(
    folder: Path, layers: dict[str, Callable[..., Any]], *inputs: torch.Tensor, marks: Iterable[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return FLOPs, bytes read and bytes written of the forward of layers."""
    model = torch.nn.ModuleDict({name: Calls(function) for name, function in layers.items()})
    with annot.record(folder / "run.annot"), annot.emit_ranges(model, ops=True):
        for x in inputs:
            for layer in model.values():
                layer(x)
        for text in marks:
            client.mark(client.event(text))
    rows = layer_work(attribute(annot.load(folder / "run.annot"))).filter(phase="forward")
    return {row[0]: row[1:] for row in rows.select("layer", "flops", "bytes_read", "bytes_written").iter_rows()}


def test_registered_formulas_count(tmp_path: Path, operators: Any) -> None:
    """Each call counts with its own shapes and arguments, for a packet of overloads as for an overload."""
    layers = {
        "packet": lambda x: operators.linear(x, x.T, 3),
        "overload": lambda x: operators.linear.default(x, x.T),
        "written": lambda x: operators.copy_(torch.empty_like(x), x),
    }
    inputs = torch.ones(2, 4), torch.ones(3, 5), torch.ones(2, 4)
    macs = sum(len(x) * x.shape[1] * len(x) for x in inputs)
    read, written = (sum(4 * size(x) for x in inputs) for size in (torch.numel, lambda x: len(x) ** 2))
    assert flops(tmp_path, layers, *inputs) == {
        "packet": (6 * macs, 2 * read, written),
        "overload": (2 * macs, 2 * read, written),
        "written": (read // 4, 2 * read, read),
    }


def test_work_without_a_usable_formula_is_unknown(tmp_path: Path, operators: Any) -> None:
    """A formula that raises or reads values harms nothing. The formula of the same name is another function's."""
    layers = {
        "raises": lambda x: operators.tanh(x, x),
        "reads": lambda x: operators.exp(x, x),
        "unregistered": lambda x: operators.matmul(x, x),
        "known": lambda x: torch.matmul(x, x),
    }
    unknown = None, None, None
    assert flops(tmp_path, layers, torch.ones(2, 2)) == {
        **dict.fromkeys(("raises", "reads", "unregistered"), unknown),
        "known": (16, 32, 16),
    }


def test_operators_of_pytorch_name_their_arguments(tmp_path: Path) -> None:
    """Positional arguments count as in the function: the stride of a convolution, with and without an overload."""
    kernel, conv2d = torch.ones(8, 4, 3, 3), torch.ops.aten.conv2d
    layers = {
        "function": lambda x: torch.nn.functional.conv2d(x, kernel, stride=2),
        "operator": lambda x: conv2d(x, kernel, None, [2, 2]),
        "overload": lambda x: conv2d.default(x, kernel, None, [2, 2]),
    }
    of_each = flops(tmp_path, layers, torch.ones(2, 4, 9, 9))
    assert {work[0] for work in of_each.values()} == {2 * 2 * 8 * 4 * 4 * 4 * 9}


def test_the_formula_of_annot_comes_first(tmp_path: Path, operators: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula that the program registers for an operator of PyTorch does not change its numbers."""
    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.mm, lambda *_, **__: 1)
    assert flops(tmp_path, {"mm": lambda x: torch.ops.aten.mm(x, x)}, torch.ones(2, 2))["mm"] == (16, 32, 16)


@pytest.mark.parametrize(
    ("mark", "work"),
    [
        ("Work flops=-1 read=32 written=16 = {}", (16, 32, 16)),
        ("Work flops=17 read=32 written=16", (16, 32, 16)),
        ("Work flops=17 read=32 written=16 = {}+", (16, 32, 16)),
        ("Work flops=17 read=32 written=16 = {}", (None, None, None)),
    ],
)
def test_marks_are_not_trusted(tmp_path: Path, operators: Any, mark: str, work: tuple[Any, ...]) -> None:
    """Damaged marks count nothing. If marks differ for the same text, the work is unknown."""
    text = "custom Calls annot_flops::linear [2,2]f32 [2,2]f32 |op"
    layers = {"custom": lambda x: operators.linear(x, x.view(2, 2))}
    assert flops(tmp_path, layers, torch.ones(2, 2), marks=[mark.format(text)])["custom"] == work


@pytest.mark.filterwarnings("ignore:capture=True")
def test_windows_of_a_collector_have_the_formulas_of_the_warm_up(tmp_path: Path, operators: Any) -> None:
    """The mark of the first call is repeated in each window, in which a collector such as Nsight Systems starts."""
    model = Calls(lambda x: operators.linear(x, x))
    schedule = annot.schedule(warmup=1, active=1, repeat=2, capture=True)
    with annot.record(tmp_path / "run.annot"), annot.emit_ranges(model, ops=True, schedule=schedule) as block:
        for _ in range(4):
            model(torch.ones(2, 2))
            block.step()
    profile = annot.load(tmp_path / "run.annot")
    marks = profile.marks.filter(
        pl.col("text").str.ends_with(" = Operation Calls annot_flops::linear [2,2]f32 [2,2]f32 |op")
    )
    windows = profile.ranges.filter(text="capture").select("start", "end").rows()
    assert len(windows) == 2
    assert all(marks["start"].is_between(*window).sum() == 1 for window in windows)


@pytest.mark.slow  # PyTorch imports torch._dynamo for the mode
def test_modes_of_the_program_see_its_operators_only(tmp_path: Path, operators: Any) -> None:
    """The tensors without data for a formula are hidden from modes."""
    seen: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def call(x: torch.Tensor) -> Any:
        with Seen():
            return operators.linear(x, x)

    assert flops(tmp_path, {"custom": call}, torch.ones(2, 2))["custom"] == (16, 16, 16)
    assert seen == ["annot_flops.linear.default"]


@pytest.mark.slow  # PyTorch imports sympy for symbolic sizes
def test_symbolic_sizes_stay_symbolic(tmp_path: Path, operators: Any) -> None:
    """A formula would make PyTorch guard on the value of a size. Such a call has no FLOPs."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental import symbolic_shapes

    environment = symbolic_shapes.ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    sizes = [symbolic_shapes.DimDynamic.DYNAMIC, symbolic_shapes.DimDynamic.STATIC]
    context = symbolic_shapes.StatelessSymbolicContext(dynamic_sizes=sizes)
    x = mode.from_tensor(torch.ones(3, 5), symbolic_context=context)

    def call(x: torch.Tensor) -> Any:
        with mode:
            return operators.linear(x, x.T)

    assert flops(tmp_path, {"custom": call}, x)["custom"] == (None, None, None)
    assert environment.guards == []


_WITHOUT_COUNTER = """
import sys
import torch, annot
assert "torch.utils.flop_counter" not in sys.modules
twice = torch.library.custom_op("annot_flops::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
class Net(torch.nn.Module):
    def forward(self, x):
        return twice(x)
with annot.record(sys.argv[1]), annot.emit_ranges(net := Net(), ops=True):
    net(torch.ones(2))
from annot.analyze.work import layer_work
from annot.attribution.attribute import attribute
profile = annot.load(sys.argv[1])
assert "Operation Net annot_flops::twice [2]f32 |op" in profile.ranges["text"].to_list()
assert layer_work(attribute(profile))["flops"].to_list() == [None]
assert "torch.utils.flop_counter" not in sys.modules
"""


def test_the_counter_of_pytorch_is_not_loaded(tmp_path: Path) -> None:
    """A program without it runs without it, and the work of its operators is unknown."""
    done = forked.python(_WITHOUT_COUNTER, tmp_path / "run.annot")
    assert done.returncode == 0, done.stderr
