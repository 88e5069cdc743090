"""Ranges of operations: what a layer calls, with what, and that nothing else feels it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import nets
import pytest
from captured import Captured, capture

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

import annot  # noqa: E402
from annot import correlate, emit_ranges  # noqa: E402
from annot.attribution.attribute import attribute  # noqa: E402
from annot.attribution.layer_tables import by_op  # noqa: E402
from annot.torch import operations  # noqa: E402

Recorded = Callable[..., Captured]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """Run a body inside `emit_ranges(model, ops=True)`; return what was recorded."""

    def run(model: nn.Module, body: Callable[[], object], **options: bool) -> Captured:
        def inside() -> None:
            with emit_ranges(model, ops=True, **options):
                body()
            assert torch._C._len_torch_function_stack() == 0

        return capture(tmp_path, inside)

    return run


def operations_in(captured: Captured) -> list[str]:
    """The texts of the ranges of operations."""
    return [one.text for one in captured.ranges if one.tag is not None and one.tag.phase == "op"]


def test_a_convolution_says_what_it_was_called_with(recorded: Recorded) -> None:
    """Layer, class, function, shapes and dtypes of its tensors, names and values of its other arguments."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(inplace=True))
    captured = recorded(model, lambda: model(torch.ones(2, 3, 8, 8)))
    assert captured.trees == [
        (
            "Sequential>",
            ("0>", "0 Conv2d conv2d [2,3,8,8]f32 [4,3,3,3]f32 [4]f32 stride=2,2 padding=1,1 dilation=1,1 groups=1 |op"),
            ("1>", "1 ReLU relu [2,4,4,4]f32 inplace=True |op"),
        )
    ]


class Every(nn.Module):
    """Calls functions with arguments of every kind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.view(2, 3).view((3, 2)) + 1
        y = functional.interpolate(y[None, ..., 0:1], size=4, mode="linear") * 0.5
        y = torch.cat([y, y], dim=-1).to(torch.bfloat16)[0, :, 1:5:2]
        assert x.size(0) == 6
        assert x.dtype is torch.float32
        assert not x.is_cuda
        return y.float().sum().add(True)


def test_arguments_of_every_kind(recorded: Recorded) -> None:
    """Numbers, strings, dtypes, slices; and what only asks for shape or dtype has no range."""
    model = Every()
    assert operations_in(recorded(model, lambda: model(torch.ones(6)))) == [
        "Operation Every view [6]f32 shape=2,3 |op",
        "Operation Every view [2,3]f32 shape=3,2 |op",
        "Operation Every add [3,2]f32 other=1 |op",
        'Operation Every __getitem__ [3,2]f32 idx=None,"...","0:1" |op',
        "Operation Every interpolate [1,3,1]f32 size=4 scale_factor=None mode=linear align_corners=None "
        "recompute_scale_factor=None antialias=False |op",
        "Operation Every mul [1,3,4]f32 other=0.5 |op",
        "Operation Every cat [1,3,4]f32 [1,3,4]f32 dim=-1 |op",
        "Operation Every to [1,3,8]f32 dtype=bf16 |op",
        'Operation Every __getitem__ [1,3,8]bf16 idx=0,":","1:5:2" |op',
        "Operation Every float [3,2]bf16 |op",
        "Operation Every sum [3,2]f32 |op",
        "Operation Every add []f32 other=True |op",
    ]


@pytest.mark.parametrize("name", ["alexnet", "unet", "lstm", "gpt"])
def test_the_same_bits(recorded: Recorded, name: str) -> None:
    """Training gives every loss, gradient and parameter as without, and layers keep their ranges."""
    builder = nets.small_vgg16 if name == "alexnet" else getattr(nets, name)
    plain = nets.train(builder())
    net = builder()
    traced: list[torch.Tensor] = []
    captured = recorded(net.model, lambda: traced.extend(nets.train(net)))
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))
    layers = [one for one in captured.ranges if one.name.endswith((">", "<"))]
    without: list[torch.Tensor] = []
    again = builder()
    bare = recorded(again.model, lambda: without.extend(nets.train(again)))
    assert [one.name for one in layers] == [one.name for one in bare.ranges if one.name.endswith((">", "<"))]
    assert len(operations_in(captured)) >= len(list(net.model.modules())) // 2


def test_only_the_model_is_seen(recorded: Recorded) -> None:
    """PyTorch outside the model, before, between and after its calls, has no ranges, nor has another thread."""
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)

    def body() -> None:
        torch.ones(2).sum()
        model(torch.ones(1, 2)).sum().backward()
        other(torch.ones(1, 2)).relu()
        thread = threading.Thread(target=lambda: model(torch.ones(3, 2)).exp())
        thread.start()
        thread.join()
        assert torch._C._len_torch_function_stack() == 0

    assert operations_in(recorded(model, body)) == [
        "Operation Linear linear [1,2]f32 [2,2]f32 [2]f32 |op",
        "Operation Linear linear [3,2]f32 [2,2]f32 [2]f32 |op",
    ]


def test_exceptions_close_their_ranges(recorded: Recorded) -> None:
    """An operation that raises closes its range, and the mode is gone."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))

    def body() -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(1, 2))
        assert torch._C._len_torch_function_stack() == 0
        model[1](torch.ones(1, 3))

    texts = operations_in(recorded(model, body))
    assert [text.split()[:3] for text in texts] == [["0", "Linear", "linear"]] + [["1", "Linear", "linear"]] * 2


def test_modes_of_the_user(recorded: Recorded) -> None:
    """A mode entered around the model, or in it, sees what it would see without; it may even be left open."""
    seen: list[str] = []

    class Mine(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Inside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with Mine():
                return x * 2

    model = nn.Sequential(nn.Linear(2, 2), Inside())

    def run() -> list[str]:
        seen.clear()
        with Mine():
            model(torch.ones(1, 2))
        return list(seen)

    plain = run()
    traced: list[list[str]] = []
    captured = recorded(model, lambda: traced.append(run()))
    assert [[name for name in names if name != "__get__"] for names in traced] == [["ones", "linear", "mul", "mul"]]
    assert [name for name in plain if name != "__get__"] == ["ones", "linear", "mul", "mul"]
    assert len(operations_in(captured)) == 2


def test_tensors_of_a_class_of_its_own_are_not_asked(recorded: Recorded) -> None:
    """The class sees the operations of the program, and not that annot looks at shapes."""
    seen: list[str] = []

    class Logging(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[misc]

    model = nn.Linear(2, 2)
    x = torch.ones(1, 2).as_subclass(Logging)
    model(x)
    plain = list(seen)
    seen.clear()
    captured = recorded(model, lambda: model(x))
    assert (seen, plain) == (["linear"], ["linear"])
    assert [text.split()[:4] for text in operations_in(captured)] == [["Operation", "Linear", "linear", "[1,2]f32"]]


def test_fast_paths_are_taken(recorded: Recorded) -> None:
    """In evaluation, encoder and attention run as the one fused operation that they are without annot."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    models = [nn.TransformerEncoder(layer, 2).eval(), nn.MultiheadAttention(8, 2, batch_first=True).eval()]
    x = torch.randn(2, 4, 8)

    def run(model: nn.Module) -> tuple[torch.Tensor, list[str]]:
        with torch.no_grad(), torch.profiler.profile() as profile:
            out = model(x) if isinstance(model, nn.TransformerEncoder) else model(x, x, x)[0]
        return out, [event.name for event in profile.events() if event.name.startswith("aten::")]

    for model in models:
        run(model)
        plain, names = run(model)
        assert {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"} & set(names)
        traced: list[Any] = []
        recorded(model, lambda model=model, traced=traced: traced.append(run(model)))
        assert torch.equal(traced[0][0], plain)
        assert traced[0][1] == names


def test_training_an_encoder(recorded: Recorded) -> None:
    """In training there is no fast path, and every operation has its range."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    texts = operations_in(recorded(model, lambda: model(torch.ones(2, 4, 8)).sum().backward()))
    assert {"multi_head_attention_forward", "linear", "layer_norm"} <= {text.split()[2] for text in texts}


def test_tracing_scripting_and_exporting_are_not_disturbed(recorded: Recorded) -> None:
    """`torch.fx`, `torch.jit`, `make_fx` and `torch.export` see the model as it is."""
    from torch.fx.experimental.proxy_tensor import make_fx

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.fc(x), x.view(-1, 3)[:, 0:3] * 2])

    model = Net().eval()
    x = torch.ones(2, 3)

    def codes() -> list[str]:
        return [
            torch.fx.symbolic_trace(model).code,
            torch.jit.trace(model, x).code,
            torch.jit.script(model).code,
            make_fx(model)(x).code,
            str(torch.export.export(model, (x,)).graph),
            str(torch.export.export(model, (x,), strict=True).graph),
        ]

    plain = codes()
    traced: list[list[str]] = []
    captured = recorded(model, lambda: traced.append(codes()))
    assert traced == [plain]
    # Only make_fx lets the model run.
    assert [text.split()[2] for text in operations_in(captured)] == ["linear", "view", "__getitem__", "mul", "cat"]


def test_compiled_parts_are_left_alone(recorded: Recorded) -> None:
    """What is compiled is compiled as without annot, once: whole model, child, or function that a layer calls."""
    x = torch.ones(2, 3)

    def graphs(compile_it: Callable[[nn.Module, Any], Callable[..., object]], block: bool) -> list[int]:
        torch._dynamo.reset()
        seen: list[int] = []

        def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
            seen.append(len([node for node in graph.graph.nodes if node.op == "call_function"]))
            return graph.forward

        model = nn.Sequential(nn.Linear(3, 3), Block())
        run = compile_it(model, backend)
        for _ in range(3):
            with emit_ranges(model, ops=True) if block else nullcontext():
                run(x)
            if compile_it is not function:  # which would be compiled for each set of modes that it is called under
                run(x)
        return seen

    def whole(model: nn.Module, backend: Any) -> Any:
        return torch.compile(model, backend=backend, fullgraph=True)

    def child(model: nn.Module, backend: Any) -> Any:
        model[1].compile(backend=backend, fullgraph=True)
        return model

    def wrapped(model: nn.Module, backend: Any) -> Any:
        model[1] = torch.compile(model[1], backend=backend, fullgraph=True)
        return model

    def function(model: nn.Module, backend: Any) -> Any:
        compiled = torch.compile(lambda x: torch.tanh(x).sum(), backend=backend, fullgraph=True)
        model.append(Calling(compiled))
        return model

    for compile_it in (whole, child, wrapped, function):
        plain = graphs(compile_it, block=False)
        inside: list[list[int]] = []
        recorded(nn.Linear(1, 1), lambda it=compile_it, inside=inside: inside.append(graphs(it, block=True)))
        assert inside == [plain], compile_it.__name__


def test_a_mode_that_is_left_open_stays(recorded: Recorded) -> None:
    """What the user enters in a layer and does not leave is on the stack afterwards, and nothing else is."""

    class Mine(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    mine = Mine()

    class Enters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(2, 1).eval()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with Mine():
                self.attention(x, x, x)
            mine.__enter__()
            return x * 3

    model = Enters()

    def body() -> None:
        model(torch.ones(1, 1, 2))
        assert torch.overrides._get_current_function_mode_stack() == [mine]
        mine.__exit__(None, None, None)

    assert operations_in(recorded(model, body))[-1] == "Operation Enters mul [1,1,2]f32 other=3 |op"


class Block(nn.Module):
    """A layer with its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


class Calling(nn.Module):
    """Calls a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_tracing_inside_a_layer(recorded: Recorded) -> None:
    """What a layer traces in its forward is traced as without annot, and has no ranges."""
    codes: list[str] = []

    class Traces(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            codes.append(str(torch.jit.trace(lambda x: x.view(-1) * 2, x, check_trace=False).code))
            return x + 1

    model = Traces()
    model(torch.ones(2, 3))
    captured = recorded(model, lambda: model(torch.ones(2, 3)))
    assert codes[0] == codes[1]
    assert operations_in(captured) == ["Operation Traces add [2,3]f32 other=1 |op"]


def test_texts_are_bounded(recorded: Recorded) -> None:
    """A value that changes with every call makes so many texts and no more; long arguments are left out."""

    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for value in range(operations.MAX_VARIANTS + 20):
                x = x * float(value)
            return x.reshape([1] * 9 + [2]) + torch.tensor([1.0] * 9)[0]

    model = Changing()
    texts = operations_in(recorded(model, lambda: model(torch.ones(2))))
    products = [text for text in texts if " mul " in text]
    assert len(products) == operations.MAX_VARIANTS + 20
    assert len(set(products)) == operations.MAX_VARIANTS + 1
    assert products[-1] == "Operation Changing mul [2]f32 |op"
    assert "Operation Changing reshape [2]f32 |op" in texts


def test_without_shapes(recorded: Recorded) -> None:
    """`shapes=False` leaves layer and function."""
    model = nn.Linear(2, 2)
    texts = operations_in(recorded(model, lambda: model(torch.ones(1, 2)), shapes=False))
    assert texts == ["Operation Linear linear |op"]


def test_recomputation_and_functional_transforms(recorded: Recorded) -> None:
    """Operations that run again lie in the recomputed layer; functorch's tensors are looked at without harm."""
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.arange(6.0).view(2, 3)

    def values() -> list[torch.Tensor]:
        checkpoint(model, x, use_reentrant=False).sum().backward()
        return [torch.func.jacrev(model)(x), torch.func.vmap(model)(x)]

    plain = values()
    traced: list[torch.Tensor] = []
    captured = recorded(model, lambda: traced.extend(values()))
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))
    again = next(one for one in captured.ranges if one.name == "0>>")
    assert [child.text for child in again.children] == ["0 Linear linear [2,3]f32 [3,3]f32 [3]f32 |op"]
    assert "0 Linear linear [3]f32 [3,3]f32 [3]f32 |op" in captured.texts


def test_reports_keep_operations_apart(tmp_path: Path) -> None:
    """Operations have their own rows by operation, and the rows of the layers are those of a run without them."""
    net = nets.gpt()

    def rows(*, ops: bool) -> Any:
        path = tmp_path / f"{ops}.annot"
        with annot.record(path), emit_ranges(net.model, ops=ops):
            net.loss().backward()  # type: ignore[no-untyped-call]
        return annot.load(path)

    with_ops, without = rows(ops=True), rows(ops=False)
    columns = ["layer", "module", "phase", "calls", "shapes"]
    assert correlate(with_ops).select(columns).equals(correlate(without).select(columns))
    found = {row[0]: row[2] for row in by_op(attribute(with_ops)).iter_rows()}
    assert found["linear"] == 17
    assert found["scaled_dot_product_attention"] == 4
    assert by_op(attribute(without)).is_empty()
