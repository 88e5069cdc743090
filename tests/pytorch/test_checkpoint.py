"""Activation checkpointing: what runs again for the backward is told apart, and closes its ranges however it stops."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captured import Captured, capture

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop  # noqa: E402

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.cli.main import main  # noqa: E402

Recorded = Callable[..., Captured]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """Take a step with and without ranges, compare gradients bit by bit, and return what was recorded."""

    def run(model: nn.Module, step: Callable[[], object], **options: bool) -> Captured:
        plain = gradients(model, step)
        traced: list[torch.Tensor] = []

        def body() -> None:
            with emit_ranges(model, **options):
                traced.extend(gradients(model, step))

        captured = capture(tmp_path, body)
        assert plain
        assert len(plain) == len(traced)
        assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))
        return captured

    return run


def gradients(model: nn.Module, step: Callable[[], object]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model.zero_grad()
    step()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


class Wrapped(nn.Module):
    """Runs its block under a checkpoint."""

    def __init__(self, block: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.block = block
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())


def x() -> torch.Tensor:
    return torch.ones(2, 3, requires_grad=True)


def test_what_runs_again_is_told_apart(recorded: Recorded) -> None:
    """Without re-entering the engine: the block runs again inside the backward of its last layer."""
    model = nn.Sequential(nn.Linear(3, 3), Wrapped(pair(), reentrant=False), nn.ReLU())
    captured = recorded(model, lambda: model(x()).sum().backward())
    again = ("1.block>>", "1.block.0>>", "1.block.1>>", "1.block.2>>")
    assert captured.trees == [
        ("Sequential>", "0>", ("1>", ("1.block>", "1.block.0>", "1.block.1>", "1.block.2>")), "2>"),
        (
            "engine<",
            ("Sequential<", "2<", ("1<", ("1.block<", ("1.block.2<", again), "1.block.1<", "1.block.0<")), "0<"),
        ),
    ]
    texts = [one.text for one in captured.ranges if one.name == "1.block.0>>"]
    assert texts == ["1.block.0 Linear [2,3]f32 out=3 |re"]


def test_backward_of_what_ran_again(recorded: Recorded) -> None:
    """Re-entering the engine: the backward of what ran again lies in the layers too."""
    model = nn.Sequential(nn.Linear(3, 3), Wrapped(pair(), reentrant=True), nn.ReLU())
    captured = recorded(model, lambda: model(x()).sum().backward())
    again = ("1.block>>", "1.block.0>>", "1.block.1>>", "1.block.2>>")
    inner = ("engine<", ("1.block<", "1.block.2<", "1.block.1<", "1.block.0<"))
    assert captured.trees[1:] == [("engine<", ("Sequential<", "2<", ("1<", again, inner), "0<"))]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_nested_checkpoints(recorded: Recorded, reentrant: bool) -> None:
    """A checkpoint inside a checkpoint: every time that a layer runs again counts, and each knows its path."""
    inner = nn.Sequential(nn.Linear(3, 3), Wrapped(pair(), reentrant=reentrant))
    model = nn.Sequential(Wrapped(inner, reentrant=reentrant), nn.Linear(3, 3))
    captured = recorded(model, lambda: model(x()).sum().backward())
    names = captured.names
    assert names.count("0.block.1.block.0>") == 1
    # Without re-entering the engine, the outer one stops early, where the inner one would begin.
    assert names.count("0.block.1.block.0>>") == (2 if reentrant else 1)
    assert names.count("0.block.0>>") == 1
    assert names.count("1>>") == 0
    assert {"0.block.1.block.2<", "0.block.1.block.0<", "0.block.0<", "1<"} <= set(names)


@pytest.mark.parametrize("early_stop", [True, False])
def test_early_stop_closes_its_ranges(recorded: Recorded, early_stop: bool) -> None:
    """The exception by which PyTorch ends a recomputation early passes through the layers."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Flatten()), nn.Flatten())

    def step() -> None:
        with set_checkpoint_early_stop(early_stop):
            checkpoint(model, x(), use_reentrant=False).sum().backward()
        model(x())

    captured = recorded(model, step)
    assert captured.names.count("1.0>>") == 1
    assert captured.names.count("2>>") == (0 if early_stop else 1)
    assert captured.trees[-1] == ("Sequential>", "0>", ("1>", "1.0>", "1.1>"), "2>")


def test_an_error_while_running_again(recorded: Recorded) -> None:
    """An exception of the user's, on the second run only, ends in the user's hands and all ranges are closed."""

    class Fails(nn.Module):
        runs = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            if self.runs % 2 == 0:
                raise KeyError("again")
            return x.tanh()

    model = nn.Sequential(nn.Linear(3, 3), Fails())

    def step() -> None:
        with pytest.raises(KeyError, match="again"):
            checkpoint(model, x(), use_reentrant=False).sum().backward()
        model[0](x()).sum().backward()

    names = recorded(model, step).names
    assert names.count("1>>") == 1
    assert names[-1] == "0<"


def test_a_module_in_several_places_runs_again_where_it_ran(recorded: Recorded) -> None:
    """A shared layer has the path under which it ran, also when nothing but the backward is around it."""
    shared = nn.Linear(3, 3)
    model = nn.Sequential(nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared, nn.Sigmoid()))

    def step() -> None:
        y = model[0](x())
        checkpoint(lambda y: model[1][1](shared(y)), y, use_reentrant=False).sum().backward()

    captured = recorded(model, step)
    assert [name for name in captured.names if name.endswith(">>")] == ["1.0>>", "1.1>>"]


def test_without_backward_ranges(recorded: Recorded) -> None:
    """`backward=False` tells recomputation apart as well; shapes may be left out."""
    model = nn.Sequential(Wrapped(pair(), reentrant=False))
    captured = recorded(model, lambda: model(x()).sum().backward(), backward=False, shapes=False)
    assert captured.texts[-4:] == [
        "0.block Sequential |re",
        "0.block.0 Linear |re",
        "0.block.1 Dropout |re",
        "0.block.2 Tanh |re",
    ]
    assert len(captured.texts) == 10


def test_modules_called_in_a_backward(recorded: Recorded) -> None:
    """Whatever calls a module inside the backward makes it recomputation, and what comes after is forward again."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * model[1](ctx.saved_tensors[0])

    def step() -> None:
        Again.apply(model(x())).sum().backward()
        model(x())

    names = recorded(model, step).names
    assert names == ["Sequential>", "0>", "1>", "engine<", "1>>", "Sequential<", "1<", "0<", "Sequential>", "0>", "1>"]


def test_other_threads_go_forward_meanwhile(recorded: Recorded) -> None:
    """What another thread calls while a backward runs is no recomputation."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def call_elsewhere(grad: torch.Tensor) -> None:
        thread = threading.Thread(target=lambda: model(x()))
        thread.start()
        thread.join()

    def step() -> None:
        y = model[0](x())
        y.register_hook(call_elsewhere)
        model[1](y).sum().backward()

    captured = recorded(model, step)
    assert captured.names.count("Sequential>") == 1
    assert not [name for name in captured.names if name.endswith(">>")]


def test_segments_of_a_sequential(recorded: Recorded) -> None:
    """`checkpoint_sequential` runs the layers one by one, so each runs again by itself."""
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    captured = recorded(model, lambda: checkpoint_sequential(model, 2, x(), use_reentrant=False).sum().backward())
    assert [name for name in captured.names if name.endswith(">>")] == ["0>>", "1>>"]


def test_a_report_has_recomputation_as_a_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of what ran again stand beside forward and backward of the layer, and times add up."""
    model = nn.Sequential(Wrapped(pair(), reentrant=False), nn.Linear(3, 3))
    path = tmp_path / "run.annot"
    with annot.record(path), emit_ranges(model):
        model(x()).sum().backward()
    profile = annot.load(path)
    rows = annot.correlate(profile).filter(layer="0.block.0").select("phase", "module", "calls").rows()
    assert sorted(rows) == [("backward", "Linear", 1), ("forward", "Linear", 1), ("recompute", "Linear", 1)]
    assert main(["report", str(path), "--format", "json", "--by", "phase"]) == 0
    report = json.loads(capsys.readouterr().out)
    times = {row["phase"]: row["host_ns"] for row in report["phases"]}
    assert times["recompute"] > 0
    whole = {row[1:3]: row[4] for row in annot.correlate(profile).filter(layer="").iter_rows()}
    assert sum(times.values()) == report["meta"]["whole_ns"]
    del times["(unattributed)"]
    assert sum(times.values()) == whole["Sequential", "forward"] + whole["", "backward"]
    assert main(["report", str(path), "--all"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert any(line.split()[:4] == ["Layer", "Forward", "Backward", "Recompute"] for line in table)
    assert not any(line.split()[-1:] == ["recompute"] for line in table)
