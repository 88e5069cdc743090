"""With annot and without: the same bits, the same objects, the same PyTorch afterwards."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import pickle
import weakref
from pathlib import Path

import nets
import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

from annot import emit_ranges  # noqa: E402

LARGE_NETWORKS = ("alexnet", "vgg16", "resnet50", "unet")


@pytest.mark.parametrize(
    "name", ["lstm", "gpt", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE_NETWORKS)]
)
def test_outputs_losses_and_gradients_are_the_same_bits(tmp_path: Path, name: str) -> None:
    """Training with ranges gives every loss, gradient and parameter bit by bit as without."""
    plain = nets.train(getattr(nets, name)())
    net = getattr(nets, name)()
    traced: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(net.model):
            traced.extend(nets.train(net))

    captured = capture(tmp_path, body)
    assert len(captured.ranges) >= 20
    assert len(traced) == len(plain)
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))


def test_the_same_operations_run(tmp_path: Path) -> None:
    """The stream of ATen operations, forward and backward, is the same."""
    net = nets.small_resnet()

    def operations() -> list[str]:
        with torch.profiler.profile() as profile:
            net.loss().backward()
        return [event.name for event in profile.events() if event.name.startswith("aten::")]

    operations()
    plain = operations()
    traced: list[list[str]] = []

    def body() -> None:
        with emit_ranges(net.model):
            traced.append(operations())

    capture(tmp_path, body)
    assert traced == [plain]


def test_copies_pickles_and_state_dicts(tmp_path: Path) -> None:
    """Inside the block and after it, copies and pickles are plain models that work without annot."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.ones(2, 3)
    plain = model(x)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    kept: list[nn.Module] = []

    def body() -> None:
        with emit_ranges(model):
            model(x)
            kept.append(copy.deepcopy(model))
            kept.append(pickle.loads(pickle.dumps(model)))
            buffer = io.BytesIO()
            torch.save(model, buffer)
            buffer.seek(0)
            kept.append(torch.load(buffer, weights_only=False))
            assert list(model.state_dict()) == list(state)
            assert all("annot" not in key for key in vars(model))
            assert not model[0]._forward_hooks
        kept.append(copy.deepcopy(model))

    captured = capture(tmp_path, body)
    assert captured.trees == [("Sequential>", "0>", "1>")]
    for one in kept:
        assert torch.equal(one(x), plain)
        with torch.no_grad():
            one[0].weight.zero_()
    assert torch.equal(model(x), plain)


def test_the_block_keeps_nothing_alive(tmp_path: Path) -> None:
    """Model, graph and tensors die as they would without annot."""
    models = [nn.Sequential(nn.Linear(3, 3), nn.Tanh())]
    dead = weakref.ref(models[0][1])
    outputs: list[weakref.ref[torch.Tensor]] = []

    def body() -> None:
        with emit_ranges(models[0]):
            out = models[0](torch.ones(1, 3))
            outputs.append(weakref.ref(out))
            out.sum().backward()
            del out
            assert outputs[0]() is None

    capture(tmp_path, body)
    models.clear()
    gc.collect()
    assert dead() is None


def test_every_patch_is_gone_after_an_exception(tmp_path: Path) -> None:
    """An exception inside the block passes unchanged, and PyTorch is as before."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters())
    hooks = importlib.import_module("torch.optim.optimizer")

    def state() -> list[object]:
        return [
            nn.Module.__call__,
            torch.autograd.Variable._execution_engine,
            vars(torch.optim.SGD)["step"],
            vars(torch.optim.Optimizer)["_patch_step_function"],
            dict(hooks._global_optimizer_pre_hooks),
            dict(hooks._global_optimizer_post_hooks),
        ]

    before = state()
    error = KeyError("mine")

    def body() -> None:
        with pytest.raises(KeyError) as caught:
            train_and_fail()
        assert caught.value is error

    def train_and_fail() -> None:
        with emit_ranges(model):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            raise error

    capture(tmp_path, body)
    assert state() == before


def test_compiling_is_not_disturbed(tmp_path: Path) -> None:
    """`torch.compile` inside the block: one graph, no break, the same result."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(2, 3)
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    plain = model(x)

    def body() -> None:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        with emit_ranges(model):
            assert torch.equal(compiled(x), plain)
        assert torch.equal(compiled(x), plain)

    capture(tmp_path, body)
    assert len(graphs) == 1


def test_tracing_scripting_and_exporting_are_not_disturbed(tmp_path: Path) -> None:
    """`torch.fx`, `torch.jit` and `torch.export` see the model as it is."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    x = torch.ones(2, 3)

    def codes() -> list[str]:
        return [
            torch.fx.symbolic_trace(model).code,
            torch.jit.trace(model, x).code,
            torch.jit.script(model).code,
            str(torch.export.export(model, (x,)).graph),
        ]

    plain = codes()
    traced: list[list[str]] = []

    def body() -> None:
        with emit_ranges(model):
            traced.append(codes())

    capture(tmp_path, body)
    assert traced == [plain]


def test_functional_transforms_work(tmp_path: Path) -> None:
    """functorch's `grad`, `vmap` and `functional_call` give the same values."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    parameters = dict(model.named_parameters())
    x = torch.arange(6.0).view(2, 3)

    def values() -> list[torch.Tensor]:
        def loss(given: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, given, one).sum()

        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        return [*gradients.values(), torch.func.jacrev(model)(x)]

    plain = values()
    traced: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(model):
            traced.extend(values())

    capture(tmp_path, body)
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))


def test_symbolic_sizes_stay_symbolic(tmp_path: Path) -> None:
    """Looking at a fake tensor fixes none of its sizes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    model = nn.Linear(3, 2)

    def guards() -> list[str]:
        shapes = ShapeEnv()
        with FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True) as mode:
            x = mode.from_tensor(torch.ones(5, 3), static_shapes=False)
            out = model(x)
        return [str(guard.expr) for guard in shapes.guards] + [str(type(out.shape[0]))]

    plain = guards()
    traced: list[list[str]] = []

    def body() -> None:
        with emit_ranges(model):
            traced.append(guards())

    capture(tmp_path, body)
    assert traced == [plain]


def test_a_compiled_child_is_compiled_alike(tmp_path: Path) -> None:
    """`child.compile()` makes the same graphs inside a block as outside."""
    x = torch.ones(2, 3)

    def graphs() -> int:
        torch._dynamo.reset()
        seen: list[object] = []

        def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
            seen.append(graph)
            return graph.forward

        model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        model[1].compile(backend=backend)
        with emit_ranges(model):
            model(x)
            model(x)
        return len(seen)

    plain = graphs()
    inside: list[int] = []
    capture(tmp_path, lambda: inside.append(graphs()))
    assert inside == [plain]
