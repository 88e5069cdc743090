"""Models as people set them up: mixed precision, transforms, captured graphs, unusual tensors: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captured import Captured, capture

torch = pytest.importorskip("torch")
nn = torch.nn

from annot import emit_ranges  # noqa: E402

Values = Callable[[], list[Any]]
Same = Callable[..., Captured]


@pytest.fixture
def same(tmp_path: Path) -> Same:
    """Compute values with and without ranges, compare them bit by bit, and return what was recorded."""

    def run(model: nn.Module, values: Values, **options: bool) -> Captured:
        torch.manual_seed(0)
        plain = values()
        traced: list[Any] = []

        def body() -> None:
            torch.manual_seed(0)
            with emit_ranges(model, **options):
                traced.extend(values())

        captured = capture(tmp_path, body)
        assert len(plain) == len(traced)
        assert all(alike(a, b) for a, b in zip(plain, traced, strict=True))
        return captured

    return run


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same; of meta tensors there is only shape and dtype to compare."""
    if not isinstance(one, torch.Tensor) or one.device.type == "meta":
        return bool(type(one) is type(other) and str(one) == str(other))
    return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def x() -> torch.Tensor:
    return torch.arange(6.0).view(2, 3)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


LAYERS = ("Sequential>", "0>", "1>", "2>")
BACKWARD = ("engine<", ("Sequential<", "2<", "1<", "0<"))


# ------------------------------------------------------------------ precision and gradients


def test_autocast_is_said(same: Same) -> None:
    """Under autocast the texts say to which dtype it casts, where it is on, beside the dtype that came in."""
    model = net()

    def values() -> list[Any]:
        out = [model(x())]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out += [model(x()), model[0](input=x())]
            with torch.autocast("cpu", enabled=False):
                out.append(model[0](x()))
        with torch.autocast("cpu", dtype=torch.float16):
            out.append(model[0](x()))
        return out

    assert same(model, values).texts == [
        "Forward Sequential [2,3]f32 |fwd",
        "0 Linear [2,3]f32 out=4 |fwd",
        "1 Tanh [2,4]f32 |fwd",
        "2 Linear [2,4]f32 out=2 |fwd",
        "Forward Sequential [2,3]f32 autocast=bf16 |fwd",
        "0 Linear [2,3]f32 out=4 autocast=bf16 |fwd",
        "1 Tanh [2,4]bf16 autocast=bf16 |fwd",
        "2 Linear [2,4]bf16 out=2 autocast=bf16 |fwd",
        "0 Linear [2,3]f32 out=4 autocast=bf16 |fwd",
        "0 Linear [2,3]f32 out=4 |fwd",
        "0 Linear [2,3]f32 out=4 autocast=f16 |fwd",
    ]


def test_mixed_precision_with_a_gradient_scaler(same: Same) -> None:
    """Autocast, a scaled loss, a skipped step: the same parameters and the same scale."""

    def values() -> list[Any]:
        torch.manual_seed(0)
        for layer in model[::2]:
            layer.reset_parameters()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x()).float().square().sum()
            scaler.scale(loss * float("inf") if step == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [*(p.detach().clone() for p in model.parameters()), scaler.get_scale()]

    model = net()
    captured = same(model, values)
    assert captured.trees.count(LAYERS) == 4
    assert captured.trees.count(BACKWARD) == 4
    assert captured.names.count("Optimizer SGD params=26 |opt") == 3


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_gradients(same: Same, mode: str) -> None:
    """The forward ranges are there, and a training step afterwards has its layers."""
    model = net()

    def values() -> list[Any]:
        with getattr(torch, mode)():
            out = model(x())
        model(x()).sum().backward()
        return [out, out.is_inference(), *gradients(model)]

    assert same(model, values).trees == [LAYERS, LAYERS, BACKWARD]


# ------------------------------------------------------------------ functional use


def test_functorch(same: Same) -> None:
    """`grad`, `vmap`, `jacrev`, `jacfwd` and `hessian` of a module's call: shapes are those that the layer sees."""
    model = net()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(given: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, given, one).sum()

    def values() -> list[Any]:
        return [
            *torch.func.grad(loss)(parameters, x()).values(),
            *torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x()).values(),
            torch.func.jacrev(model)(x()),
            torch.func.jacfwd(model)(x()),
            torch.func.hessian(model)(x()[0]),
        ]

    captured = same(model, values)
    assert [tree for tree in captured.trees if tree == LAYERS]
    assert captured.names.count("0>") == 5
    assert "0 Linear [2,3]f32 out=4 |fwd" in captured.texts
    assert "0 Linear [3]f32 out=4 |fwd" in captured.texts


def test_an_ensemble(same: Same) -> None:
    """`vmap` over the stacked parameters of several models calls one of them, whose layers have ranges."""
    models = [net(), net()]
    parameters, buffers = torch.func.stack_module_state(models)

    def call(given: Any, kept: Any, one: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(models[0], (given, kept), (one,))

    captured = same(models[0], lambda: [torch.func.vmap(call, (0, 0, None))(parameters, buffers, x())])
    assert captured.trees == [LAYERS]


def test_functional_call_with_a_backward(same: Same) -> None:
    """Other parameters in the same layers: the backward is the layers' own."""
    model = net()
    other = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}

    def values() -> list[Any]:
        out = torch.func.functional_call(model, other, (x(),))
        return [*torch.autograd.grad(out.sum(), list(other.values()))]

    assert same(model, values).trees == [LAYERS, BACKWARD]


def test_parametrizations(same: Same) -> None:
    """A parametrization is a layer below the one whose weight it makes, forward and backward."""
    model = net()
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.orthogonal(model[2])

    def values() -> list[Any]:
        model(x()).sum().backward()
        with nn.utils.parametrize.cached():
            out = [model(x()), model(x())]
        return [*out, *gradients(model)]

    captured = same(model, values)
    weight = "0.parametrizations.weight"
    assert captured.trees[0][1] == ("0>", (f"{weight}>", f"{weight}.0>"))  # type: ignore[index]
    assert f"{weight}.0<" in captured.names
    assert "2.parametrizations.weight.0<" in captured.names
    assert captured.names.count(f"{weight}.0>") == 2


def test_lazy_modules(same: Same) -> None:
    """A layer that gets its weights in the first call is called what it becomes."""

    def values() -> list[Any]:
        torch.manual_seed(0)
        model[0] = nn.LazyLinear(4)
        model(x()).sum().backward()
        return [model(x()), *gradients(model)]

    model = nn.Sequential(nn.Identity(), nn.Tanh())
    captured = same(model, values)
    assert captured.texts.count("0 Linear [2,3]f32 out=4 |fwd") == 2
    assert "0 Linear [2,3]f32 out=4 grad=weight |bwd" in captured.texts
    assert not any("Lazy" in text for text in captured.texts)


# ------------------------------------------------------------------ captured graphs


def test_fx_graph_modules(same: Same) -> None:
    """A traced graph calls the layers by the paths that they had."""
    model = torch.fx.symbolic_trace(net())

    def values() -> list[Any]:
        model(x()).sum().backward()
        return [torch.fx.Interpreter(model).run(x()), *gradients(model)]

    top = type(model).__name__
    captured = same(model, values)
    assert captured.trees[0] == (f"{top}>", "0>", "1>", "2>")
    assert captured.trees[1] == ("engine<", (f"{top}<", "2<", "1<", "0<"))
    assert captured.trees[2:5] == ["0>", "1>", "2>"]


def test_exported_programs(same: Same) -> None:
    """An exported program has lost its modules and is one layer; unflattened, it has them again."""
    program = torch.export.export(net(), (x(),))
    flat, tree = program.module(), torch.export.unflatten(program)
    captured = same(flat, lambda: [flat(x())])
    assert len(captured.trees) == 1
    captured = same(tree, lambda: [tree(x())])
    assert captured.trees == [("UnflattenedModule>", "0>", "1>", "2>")]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_parts(same: Same, how: str) -> None:
    """What TorchScript runs is one range, called as the class it was made from; its backward lies in it."""
    inner = net()
    inner = torch.jit.script(inner) if how == "script" else torch.jit.trace(inner, x())
    model = nn.Sequential(nn.Linear(3, 3), inner)

    def values() -> list[Any]:
        for _ in range(3):  # the executor specialises the graph meanwhile
            out = model(x())
        out.sum().backward()
        return [out, *gradients(model)]

    captured = same(model, values)
    assert captured.trees == [("Sequential>", "0>", "1>")] * 3 + [("engine<", ("Sequential<", "1<", "0<"))]
    assert captured.texts[2] == "1 Sequential [2,3]f32 |fwd"
    assert same(inner, lambda: [inner(x())]).trees == ["Sequential>"]


# ------------------------------------------------------------------ unusual tensors


@pytest.mark.filterwarnings("ignore")
def test_quantised_models(same: Same) -> None:
    """Dynamic and static quantisation: the layers keep their paths, and texts say the quantised dtype."""
    quantization = torch.ao.quantization
    dynamic = quantization.quantize_dynamic(net().eval(), {nn.Linear}, dtype=torch.qint8)
    captured = same(dynamic, lambda: [dynamic(x())])
    assert captured.trees == [LAYERS]
    static = nn.Sequential(quantization.QuantStub(), nn.Linear(3, 2), quantization.DeQuantStub()).eval()
    static.qconfig = quantization.default_qconfig
    quantization.prepare(static, inplace=True)
    static(x())
    quantization.convert(static, inplace=True)
    captured = same(static, lambda: [static(x())])
    assert captured.texts == [
        "Forward Sequential [2,3]f32 |fwd",
        "0 Quantize [2,3]f32 |fwd",
        "1 Linear [2,3]quint8 |fwd",
        "2 DeQuantize [2,2]quint8 |fwd",
    ]


def test_meta_tensors(same: Same) -> None:
    """A model without data: shapes flow through the layers, forward and backward."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def values() -> list[Any]:
        out = model(torch.ones(2, 3, device="meta"))
        out.sum().backward()
        return [out.detach(), *gradients(model)]

    captured = same(model, values)
    assert captured.trees == [LAYERS, BACKWARD]
    assert captured.texts[3] == "2 Linear [2,4]f32 out=2 |fwd"


def test_fake_tensors(same: Same) -> None:
    """The same with fake tensors, as compilers use them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

        def values() -> list[Any]:
            out = model(torch.ones(2, 3))
            out.sum().backward()
            return [str(out.shape), *(str(g.shape) for g in gradients(model))]

        captured = same(model, values)
    assert captured.trees == [LAYERS, BACKWARD]
    assert captured.texts[3] == "2 Linear [2,4]f32 out=2 |fwd"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (lambda: x().to_sparse(), "[2,3]f32"),
        (lambda: x().to_sparse_csr(), "[2,3]f32"),
        (lambda: x().to(torch.complex64), "[2,3]c64"),
        (lambda: x().to(torch.float8_e4m3fn), "[2,3]float8_e4m3fn"),
        (lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged), "[2,?]f32"),
        (lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]), "[?]f32"),
        (lambda: torch.tensor(1.5), "[]f32"),
        (lambda: torch.empty(0, 7), "[0,7]f32"),
    ],
    ids=["sparse", "csr", "complex", "float8", "jagged", "nested", "scalar", "empty"],
)
def test_tensors_of_every_kind(same: Same, make: Callable[[], torch.Tensor], spec: str) -> None:
    """Whatever comes in goes through untouched, and the text says of it what it tells."""
    model = nn.Identity()
    one = make()

    def values() -> list[Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = model(one)
        return [model(one) is one, again is one]

    for ops in (False, True):
        texts = same(model, values, ops=ops).texts
        assert texts == [f"Forward Identity {spec} autocast=bf16 |fwd", f"Forward Identity {spec} |fwd"]


def test_wrappers_add_no_name_to_a_path(same: Same) -> None:
    """Averaged, checkpointed and data-parallel modules have the paths that they have alone, also one in another."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.optim.swa_utils import AveragedModel

    model = nn.DataParallel(AveragedModel(nn.Sequential(checkpoint_wrapper(nn.Linear(3, 3)), nn.Tanh())))
    trees = same(model, lambda: [model(x()).detach()]).trees
    assert trees == [("DataParallel>", ("AveragedModel>", ("Sequential>", ("0>", "0>"), "1>")))]
