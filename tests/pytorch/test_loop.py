"""What stands around the model in a training loop: losses, clipping, zeroing, schedulers, scaling, stages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import Captured, capture
from commands import needs_recorder
from torch import nn

import annot
from annot import load
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.emit.client import IS_NATIVE
from annot.torch.patches import Patches

pytestmark = needs_recorder


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def train(model: nn.Module, steps: int = 2) -> list[torch.Tensor]:
    """A loop with everything; return losses, gradients and parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loss_of = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(torch.ones(5, 3)), torch.zeros(5, dtype=torch.long))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=0.1)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        seen += [loss.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]
    return [*seen, *(one.detach() for one in model.parameters())]


def ranged(folder: Path, body: Callable[[], object], model: nn.Module | None = None, **options: Any) -> Captured:
    def inside() -> None:
        with annot.emit_ranges(model if model is not None else nn.Identity(), **options):
            body()

    return capture(folder, inside)


def optimizing(captured: Captured) -> list[str]:
    return [text.removesuffix(" |opt") for text in captured.texts if text.endswith("|opt")]


def test_each_part_of_a_step_has_one_range(tmp_path: Path) -> None:
    """In the order of the loop, none inside another, and all the same bits."""
    model, seen = build(), []
    captured = ranged(tmp_path, lambda: seen.extend(train(model)), model)
    assert all(map(torch.equal, seen, train(build())))
    step = ["zero_grad SGD", "unscale_ GradScaler", "clip_grad_norm_", "clip_grad_value_"]
    step.append("Optimizer SGD params=26 momentum=True")
    step += ["update GradScaler", "lr_scheduler StepLR"]
    assert optimizing(captured) == ["lr_scheduler StepLR", *step, *step]
    assert {one.parent for one in captured.ranges if one.text.endswith("|opt")} == {None}


def test_everything_is_as_before(tmp_path: Path) -> None:
    """After the block, and after an exception; without ``optimizer`` nothing of it is touched."""

    def state() -> list[Any]:
        utils, schedulers = torch.nn.utils, torch.optim.lr_scheduler
        owners: list[tuple[Any, str]] = [
            (torch.optim.Optimizer, "zero_grad"), (utils, "clip_grad_norm_"), (utils.clip_grad, "clip_grad_value_"),
            (schedulers.LRScheduler, "step"), (schedulers.ReduceLROnPlateau, "step"), (torch.amp.GradScaler, "update"),
            (nn.Module, "_replicate_for_data_parallel"),
        ]  # fmt: skip
        return [vars(owner).get(name) for owner, name in owners]

    before = state()

    def fail() -> None:
        assert state() != before
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        ranged(tmp_path, fail)
    assert state() == before

    def look() -> None:
        assert state()[:6] == before[:6]

    ranged(tmp_path, look, optimizer=False)


def test_an_exception_in_a_part_closes_its_range(tmp_path: Path) -> None:
    """It is the user's own."""

    def body() -> None:
        with pytest.raises(RuntimeError, match="non-finite"):
            weight = nn.Parameter(torch.ones(1))
            weight.grad = torch.full((1,), float("nan"))
            torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
        with pytest.raises(TypeError):
            torch.nn.utils.clip_grad_norm_()  # type: ignore[call-arg]

    assert optimizing(ranged(tmp_path, body))[0] == "clip_grad_norm_"


def test_a_loss_is_a_layer_of_its_own(tmp_path: Path) -> None:
    """Forward and backward, by class; in the table too, and no longer than the block."""
    model, loss_of = build(), nn.MSELoss()
    x = torch.ones(5, 3)

    def body() -> None:
        loss_of(model(x), torch.zeros(5, 2)).backward()

    captured = ranged(tmp_path, body, model)
    assert [text for text in captured.texts if "Loss" in text] == [
        "Loss MSELoss [5,2]f32 [5,2]f32 |fwd",
        "Loss MSELoss [5,2]f32 [5,2]f32 |bwd",
    ]
    assert captured.trees == [
        ("Sequential>", "0>", "1>", "2>"), "Loss>",
        ("engine<", "Loss<", ("Sequential<", "2<", "1<", "0<")),
    ]  # fmt: skip
    with annot.record(tmp_path / "run.sqlite"):
        with annot.emit_ranges(model):
            body()
        body()
    table = by_layer(attribute(load(tmp_path / "run.sqlite")))
    losses = table.filter(table["layer"] == "Loss").select("module", "phase", "calls").rows()
    assert sorted(losses) == [("MSELoss", "backward", 1), ("MSELoss", "forward", 1)]


def test_a_loss_of_the_model_keeps_its_path(tmp_path: Path) -> None:
    """As a submodule, and compiled, where the compiler sees the original."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.criterion = nn.MSELoss()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.criterion(x, x + 1)  # type: ignore[no-any-return]

    model = Model()
    assert ranged(tmp_path, lambda: model(torch.ones(2)), model).names == ["Model>", "criterion>"]
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(nn.MSELoss(), backend=backend, fullgraph=True)

    def body() -> None:
        compiled(torch.ones(2), torch.zeros(2))

    body()
    ranged(tmp_path, body)
    body()
    assert len(graphs) == 1


@pytest.mark.parametrize("scheduled", ["never", "before", "inside"])
def test_a_closure_lies_outside_the_range_of_the_step(tmp_path: Path, scheduled: str) -> None:
    """SGD calls it once, LBFGS several times; what it runs is no part of the optimizer."""
    for cls, options in ((torch.optim.SGD, {}), (torch.optim.LBFGS, {"max_iter": 3})):

        def steps(ranges: bool, cls: Any = cls, options: Any = options) -> list[torch.Tensor]:
            model = build()
            optimizer = cls(model.parameters(), lr=0.1, **options)

            def schedule() -> None:
                torch.optim.lr_scheduler.StepLR(optimizer, 1)

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = model(torch.ones(5, 3)).square().sum()
                loss.backward()
                return loss

            def body() -> None:
                if scheduled == "inside":
                    schedule()
                optimizer.step(closure)
                optimizer.step(closure=closure)

            if scheduled == "before":
                schedule()
            if ranges:
                captured = ranged(tmp_path, body, model)
                spans = [one for one in captured.ranges if one.text.startswith(f"Optimizer {cls.__name__} params=")]
                forwards = [one for one in captured.ranges if one.name == "Sequential>"]
                assert len(spans) == len(forwards) >= 2
                assert not any(span.start < one.start < span.end for span in spans for one in forwards)
                assert (len(forwards) > 2) == (cls is torch.optim.LBFGS)
            else:
                body()
            return [one.detach() for one in model.parameters()]

        assert all(map(torch.equal, steps(False), steps(True)))


def test_stages_tell_evaluation_apart(tmp_path: Path) -> None:
    """Batches of another stage say so, and are no steps of training; alone, they are the steps."""

    def loop(*stages: str) -> Path:
        path = tmp_path / "-".join(["run", *stages])
        with annot.record(path):
            for stage in stages:
                for _ in annot.epochs(1, stage=stage):
                    for _ in annot.batches(range(3), stage=stage):
                        pass
        return path

    both = load(loop("", "validate"))
    texts = [text for text in both.ranges["text"].to_list() if "validate" in text]
    numbers = [f" {number}" if IS_NATIVE else "" for number in (0, 0, 1, 2)]
    titles = ["Epoch validate{} |epoch", *["Batch validate{} |step"] * 3]
    assert texts == [title.format(number) for title, number in zip(titles, numbers, strict=True)]
    assert attribute(both).steps.table.height == 3
    assert attribute(load(loop("validate"))).steps.table.height == 3
    rows = by_layer(attribute(both))
    assert {"", "validate"} == set(rows.filter(rows["layer"] == "(batch)")["module"])


def test_whoever_patches_on_top_keeps_working(tmp_path: Path) -> None:
    """A wrapper that somebody puts around ours stays, and ours is transparent from then on."""

    class Owner:
        calls = 0

        def work(self) -> int:
            self.calls += 1
            return self.calls

    patches, made = Patches(), []

    def event(*_: Any) -> Any:
        made.append(1)
        return None

    patches.surround(Owner, "work", "work", event)
    ours: Any = Owner.work
    Owner.work = lambda self: -ours(self)  # type: ignore[method-assign]
    owner = Owner()
    assert owner.work() == -1
    patches.undo()
    assert owner.work() == -2
    assert made == [1]


def test_a_compiled_step_is_compiled_alike(tmp_path: Path) -> None:
    """`step` of an optimizer and gradient clipping have the same graphs. The range of a step is around its graph."""

    def run(graphs: list[Any]) -> list[torch.Tensor]:
        torch._dynamo.reset()

        def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
            graphs.append(str(graph.code))
            return graph.forward

        model = build()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = torch.compile(optimizer.step, backend=backend)
        clip = torch.compile(lambda weights: torch.nn.utils.clip_grad_norm_(weights, 0.1), backend=backend)
        for _ in range(3):
            model(torch.ones(5, 3)).sum().backward()
            clip(list(model.parameters()))
            step()
        return [one.detach() for one in model.parameters()]

    plain: list[Any] = []
    graphs: list[Any] = []
    seen: list[torch.Tensor] = []
    expected = run(plain)
    captured = ranged(tmp_path, lambda: seen.extend(run(graphs)))
    assert all(map(torch.equal, seen, expected))
    assert graphs == plain
    assert optimizing(captured) == ["Optimizer SGD params=26"] * 3


def test_a_block_that_another_thread_leaves_amid_a_step_keeps_nothing_open(tmp_path: Path) -> None:
    """The hooks' range, which a scheduler made before the block needs, ends with the block."""
    blocks: list[Any] = []

    class Leaving(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            leaves = threading.Thread(target=blocks[0].pause)
            leaves.start()
            leaves.join()

    model = build()
    optimizer = Leaving(model.parameters(), 0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def body() -> None:
        with annot.emit_ranges(model) as block:
            blocks.append(block)
            optimizer.step()

    captured = capture(tmp_path, body)
    assert optimizing(captured) == ["Optimizer Leaving params=26"]
    assert captured.open_ranges == 0
