"""Backward ranges of PyTorch modules, as a real NVTX tool sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nets
import node_owners
import pytest
from captured import Captured, capture

torch = pytest.importorskip("torch")
nn = torch.nn

from annot import emit_ranges, mark  # noqa: E402

Run = Callable[[nn.Module, Callable[[], object]], Captured]


@pytest.fixture
def both(tmp_path: Path) -> Run:
    """Run a body inside `emit_ranges(model)`; return what was recorded."""

    def run(model: nn.Module, body: Callable[[], object]) -> Captured:
        def inside() -> None:
            with emit_ranges(model):
                body()

        return capture(tmp_path, inside)

    return run


def backward_trees(captured: Captured) -> list[object]:
    """What lies inside each whole backward."""
    return [tree for tree in captured.trees if "engine<" in tree]


class Residual(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        y += x
        return self.act(y)


def test_in_place_relu_after_convolution_and_batch_norm(both: Run) -> None:
    """In-place operations neither raise nor lose their layer."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), Residual())
    captured = both(model, lambda: model(torch.ones(2, 3, 5, 5)).sum().backward())
    inside = ("Sequential<", ("2<", "2.act<", "2.norm<", "2.conv<"), "1<", "0<")
    assert backward_trees(captured) == [("engine<", inside)]


def test_backward_ranges_carry_the_shapes_of_the_forward(both: Run) -> None:
    """Forward and backward of one call say the same layer, class and shapes, and differ in the phase."""
    model = nn.Sequential(nn.Linear(3, 2))
    texts = both(model, lambda: model(torch.ones(5, 3)).sum().backward()).texts
    assert "0 Linear [5,3]f32 out=2 |fwd" in texts
    assert "0 Linear [5,3]f32 out=2 grad=weight |bwd" in texts


class InDouble(nn.Linear):
    """A layer that casts its inputs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.double())


def test_layers_that_cast_to_double_say_so(both: Run) -> None:
    """The dtype of their inputs does not; that of inputs in float64 does."""
    model = nn.Sequential(InDouble(3, 2).double(), nn.Linear(2, 2).double())
    texts = both(model, lambda: model(torch.ones(5, 3)).sum().backward()).texts
    assert {"0 InDouble [5,3]f32 weights=f64 |fwd", "1 Linear [5,2]f64 out=2 |fwd"} <= {*texts}


@pytest.mark.parametrize("name", ["small_resnet", "small_vgg16", "gpt", "unet", "lstm", "alexnet"])
def test_every_node_runs_inside_its_layer(tmp_path: Path, name: str) -> None:
    """Each autograd node runs inside the backward range of the layer whose forward made it.

    The truth comes from forward hooks that write down sequence numbers, and from a hook behind every node that
    sets a mark; neither is how annot finds layers.
    """
    net = getattr(nets, name)()
    truth, found = node_owners.owners(tmp_path, net.model, net.loss)
    assert len(truth) > 10
    assert found == truth


def test_first_layer_without_gradient_and_frozen_parameters(both: Run) -> None:
    """A layer has a backward range exactly if it made a node."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    captured = both(model, lambda: model(torch.ones(1, 3)).sum().backward())
    assert backward_trees(captured) == [("engine<", ("Sequential<", "2<", "1<"))]


def test_no_grad_has_no_backward(both: Run) -> None:
    """Without a graph there is no backward range."""
    model = nn.Linear(3, 3)

    def body() -> None:
        with torch.no_grad():
            model(torch.ones(1, 3))

    assert both(model, body).trees == ["Linear>"]


def test_several_losses_and_gradient_accumulation(both: Run) -> None:
    """Each run of the engine has its own ranges, over the layers that its graph goes through."""
    model = nn.ModuleDict({"body": nn.Linear(3, 3), "a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})

    def body() -> None:
        hidden = model["body"](torch.ones(1, 3))
        model["a"](hidden).sum().backward(retain_graph=True)
        model["b"](hidden).sum().backward()
        for _ in range(2):
            model["body"](torch.ones(1, 3)).sum().backward()

    run = "engine<"
    assert backward_trees(both(model, body)) == [
        (run, "a<", "body<"),
        (run, "b<", "body<"),
        (run, "body<"),
        (run, "body<"),
    ]


def test_retain_graph_many_times(both: Run) -> None:
    """A graph that is kept has the same ranges every time, and no hook stays on it."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def body() -> None:
        loss = model(torch.ones(1, 3)).sum()
        for _ in range(5):
            loss.backward(retain_graph=True)

    inside = ("engine<", ("Sequential<", "1<", "0<"))
    assert backward_trees(both(model, body)) == [inside] * 5


def test_double_backward(both: Run) -> None:
    """The graph of a gradient belongs to the layers whose backward made it."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(1, 3, requires_grad=True)

    def body() -> None:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    captured = both(model, body)
    first, second = backward_trees(captured)
    assert first == ("engine<", ("Sequential<", "1<", "0<"))
    layers = {one.tag.layer for one in captured.ranges if one.tag and one.tag.phase == "backward"}
    assert layers == {"", "0", "1"}
    assert str(second).count("0<") >= 1
    assert str(second).count("1<") >= 1


def test_grad_of_some_inputs(both: Run) -> None:
    """`torch.autograd.grad` and `backward(inputs=)` skip nodes and still run the others inside their layers."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    def body() -> None:
        torch.autograd.grad(model(torch.ones(1, 3)).sum(), model[2].weight)
        model(torch.ones(1, 3)).sum().backward(inputs=[model[0].weight])

    first, second = backward_trees(both(model, body))
    assert first == ("engine<", ("Sequential<", "2<"))
    assert second == ("engine<", ("Sequential<", "2<", "1<", "0<"))


def test_exceptions_in_backward_and_in_user_hooks(both: Run) -> None:
    """An exception out of the engine is the user's own, and no range stays open."""

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            raise ValueError("in backward")

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Failing.apply(x)

    model = nn.Sequential(nn.Linear(3, 3), Fails(), nn.Tanh())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def body() -> None:
        with pytest.raises(ValueError, match="in backward"):
            model(torch.ones(1, 3)).sum().backward()
        out = model[0](torch.ones(1, 3))
        out.register_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model[2](out).sum().backward()
        model[0](torch.ones(1, 3)).sum().backward()

    assert backward_trees(both(model, body)) == [
        ("engine<", ("Sequential<", "2<", "1<")),
        ("engine<", "2<"),
        ("engine<", "0<"),
    ]


def test_threads_with_colliding_sequence_numbers(tmp_path: Path) -> None:
    """A graph that one thread made and another runs has the layers of the thread that made it."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    other = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.ReLU())

    def body() -> None:
        losses: list[torch.Tensor] = []

        def make() -> None:
            # As many nodes as the main thread has made, so that the numbers collide.
            losses.append(model(torch.ones(1, 3)))

        with emit_ranges(nn.ModuleList([model, other])):
            for _ in range(3):
                other(torch.ones(3, requires_grad=True))
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
            losses[0].sum().backward()

    assert backward_trees(capture(tmp_path, body)) == [("engine<", ("0<", "0.2<", "0.1<", "0.0<"))]


def test_backward_in_several_threads(tmp_path: Path) -> None:
    """Threads that train at the same time each have balanced ranges on their own thread."""
    models = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)]
    barrier = threading.Barrier(4)

    def work(model: nn.Module) -> None:
        barrier.wait()
        for _ in range(10):
            model(torch.ones(1, 3)).sum().backward()

    def body() -> None:
        with emit_ranges(nn.ModuleList(models)):
            threads = [threading.Thread(target=work, args=(model,)) for model in models]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    captured = capture(tmp_path, body)
    trees = backward_trees(captured)
    assert sorted(map(str, trees)) == sorted(
        str(("engine<", (f"{i}<", f"{i}.1<", f"{i}.0<"))) for i in range(4) for _ in range(10)
    )


def test_deep_reentrant_checkpoints_on_worker_threads(both: Run) -> None:
    """Past depth 60 the engine runs on threads of its own; ranges opened there are closed there."""
    from torch.utils.checkpoint import checkpoint

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, depth: int = 70) -> torch.Tensor:
            x = self.fc(x)
            return checkpoint(self.forward, x, depth - 1, use_reentrant=True) if depth else x

    model = Deep()
    captured = both(model, lambda: model(torch.ones(1, 2, requires_grad=True)).sum().backward())
    assert len({one.thread for one in captured.ranges}) >= 2
    assert sum(one.name == "fc<" for one in captured.ranges) == 71
    assert sum(one.name == "fc>" for one in captured.ranges) == 71
    assert len({one.thread for one in captured.ranges if one.name == "fc>>"}) >= 2


def test_recomputed_forwards_carry_their_path(both: Run) -> None:
    """Under activation checkpointing what runs again is a range of its own phase inside the backward."""
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def body() -> None:
        for reentrant in (False, True):
            x = torch.ones(1, 3, requires_grad=True)
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    captured = both(model, body)
    recomputed = [one for one in captured.ranges if one.name == "0>>"]
    assert all(any(up.name == "engine<" for up in ancestors(one)) for one in recomputed)
    assert (captured.names.count("0>"), len(recomputed)) == (2, 2)
    assert sum(one.name == "0<" for one in captured.ranges) == 2


def ancestors(one: Any) -> list[Any]:
    """The ranges around this one."""
    found = []
    while one.parent is not None:
        one = one.parent
        found.append(one)
    return found


def test_a_backward_after_the_block_ended(tmp_path: Path) -> None:
    """The graph outlives the block; its backward works, and emits nothing."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))

    def body() -> None:
        with emit_ranges(model):
            loss = model(torch.ones(1, 3)).sum()
        loss.backward()

    captured = capture(tmp_path, body)
    assert captured.trees == [("Sequential>", "0>", "1>")]
    assert model[0].weight.grad is not None


def test_a_graph_from_before_the_block(both: Run) -> None:
    """A backward of a graph that was made before the block runs, as a whole backward without layers."""
    model = nn.Linear(3, 3)
    loss = model(torch.ones(1, 3)).sum()
    assert backward_trees(both(model, loss.backward)) == ["engine<"]


def test_shared_module_has_one_backward_range_a_call(both: Run) -> None:
    """Three calls of one layer: three backward ranges."""
    model = nn.Sequential(nn.Linear(3, 3))

    def body() -> None:
        x = torch.ones(1, 3)
        for _ in range(3):
            x = model(x)
        x.sum().backward()

    assert backward_trees(both(model, body)) == [("engine<", *[("Sequential<", "0<")] * 3)]


def test_whole_phases(both: Run) -> None:
    """Forward, backward and optimizer step stand side by side."""
    model = nn.Sequential(nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(model.parameters())

    def body() -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    texts = [one.text for one in both(model, body).ranges if one.parent is None]
    assert texts == [
        "Forward Sequential [1,3]f32 |fwd",
        "Backward |bwd",
        "Optimizer AdamW params=12 weight_decay=decoupled |opt",
    ]


@pytest.mark.parametrize("when", ["before", "inside"])
def test_optimizer_steps_of_every_kind(both: Run, when: str) -> None:
    """SGD, a subclass with a step of its own, a closure that raises, a scheduler made before or inside."""

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model = nn.Linear(3, 1)
    stepped: list[Any] = []

    def make() -> None:
        stepped.extend(cls(model.parameters(), lr=0.1) for cls in (torch.optim.SGD, Own, torch.optim.LBFGS))
        torch.optim.lr_scheduler.StepLR(stepped[0], 1)

    def fail() -> float:
        raise ArithmeticError("closure")

    def body() -> None:
        if when == "inside":
            make()
        model(torch.ones(1, 3)).sum().backward()
        stepped[0].step()
        stepped[1].step()
        with pytest.raises(ArithmeticError):
            stepped[2].step(fail)
        stepped[0].step()

    if when == "before":
        make()
    before = {cls: vars(cls)["step"] for cls in (torch.optim.SGD, torch.optim.LBFGS)}
    captured = both(model, body)
    texts = [text for text in captured.texts if text.startswith("Optimizer")]
    assert texts == [f"Optimizer {name} params=4 |opt" for name in ("SGD", "Own", "SGD")]  # the closure of LBFGS raises
    assert when == "inside" or {cls: vars(cls)["step"] for cls in before} == before


def test_nodes_between_threads_have_no_layer(tmp_path: Path) -> None:
    """What one thread computes outside any module is not taken for a layer that another thread calls."""
    encoder, decoder = nn.Linear(3, 3), nn.Sequential(*[nn.Tanh() for _ in range(20)])
    out: list[torch.Tensor] = []

    def on_a_thread(work: Callable[[], object]) -> None:
        # A new thread counts its nodes from 0, so the numbers of the two collide.
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def encode() -> None:
        between = (encoder(torch.ones(1, 3)) * 2).exp()
        between.grad_fn.register_hook(lambda *_: mark("between"))
        out.append(between)

    def body() -> None:
        with emit_ranges(nn.ModuleList([encoder, decoder])):
            on_a_thread(encode)
            on_a_thread(lambda: out.append(decoder(out[0])))
            out[1].sum().backward()

    captured = capture(tmp_path, body)
    (at, _, thread) = captured.marks[0]
    inside = captured.innermost(at, thread)
    assert inside is not None
    assert inside.name == "engine<"
    assert {"1.0<", "1.19<", "0<"} <= set(captured.names)


def test_a_graph_that_is_run_again_without_being_kept(both: Run) -> None:
    """A graph that saves nothing may be run again: the same ranges each time, and no second hook on its nodes."""

    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model = nn.Sequential(Adds())
    x = torch.ones(1, requires_grad=True)
    calls: list[int] = []

    def body() -> None:
        loss = model(x).sum()
        node = loss.grad_fn.next_functions[0][0]
        for _ in range(4):
            loss.backward()
            calls.append(len(node.metadata))

    assert backward_trees(both(model, body)) == [("engine<", ("Sequential<", "0<"))] * 4
    assert len(set(calls)) == 1


def test_an_interrupt_just_inside_the_engine(both: Run) -> None:
    """An interrupt between the opening of the whole backward and its first node leaves nothing open."""
    model = nn.Linear(3, 3)

    class Root(torch.Tensor):
        @property
        def grad_fn(self) -> Any:
            raise KeyboardInterrupt

    def body() -> None:
        engine = torch.autograd.Variable._execution_engine
        with pytest.raises(KeyboardInterrupt):
            engine.run_backward((torch.ones(1).as_subclass(Root),), (None,), False, False, ())
        model(torch.ones(1, 3)).sum().backward()

    assert backward_trees(both(model, body)) == ["engine<", ("engine<", "Linear<")]
