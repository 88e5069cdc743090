"""Unusual autograd graphs: deep ones, ones that several threads made, ones whose numbers do not fall."""

from __future__ import annotations

import copy
import gc
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import node_owners
import pytest
from captured import Captured, capture
from commands import needs_recorder

torch = pytest.importorskip("torch")
nn = torch.nn

from torch_block import Block  # noqa: E402

from annot import emit_ranges, mark  # noqa: E402
from annot.torch.module_sites import Site  # noqa: E402

# ---------------------------------------------------------------- deep graphs

DEEP = """
import gc, sys, threading, annot, torch
from torch import nn

STEPS = 20_000

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.ones(()))
    def forward(self, x, steps=STEPS):
        for _ in range(steps):
            x = x * self.k
        return x

class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, gradient): return gradient

def backward(): cell(x).sum().backward()

def never_run():
    y = x
    for _ in range(STEPS): y = cell(y, 1)

def one_call_a_step():
    y = x
    for _ in range(STEPS): y = cell(y, 1)
    y.sum().backward()

def custom_functions():
    y = cell(x, 1)
    for _ in range(STEPS): y = Identity.apply(y)
    y.sum().backward()

def freed_from_the_middle():
    middle = cell(x)
    loss = cell(middle).sum()
    loss.backward(retain_graph=True)
    del loss
    del middle

def freed_on_another_thread():
    kept = [cell(x).sum()]
    kept[0].backward(retain_graph=True)
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()

def many_outputs():
    outputs = [x]
    for _ in range(STEPS): outputs.append(cell(outputs[-1], 1))
    torch.stack(outputs).sum().backward()
    while outputs: outputs.pop(0)

def train():
    with annot.emit_ranges(cell):
        globals()[sys.argv[1]]()

cell, x = Cell(), torch.ones(4)
threading.stack_size(1 << 20)  # an eighth of the usual, so that fewer steps show it
thread = threading.Thread(target=train)
thread.start()
thread.join()
print("freed")
"""


@pytest.mark.parametrize(
    "way",
    [
        "backward",
        "never_run",
        *(
            pytest.param(way, marks=pytest.mark.slow)
            for way in ("one_call_a_step", "custom_functions", "freed_on_another_thread", "many_outputs")
        ),
        "freed_from_the_middle",
    ],
)
def test_a_deep_graph_is_freed_on_a_small_stack(way: str) -> None:
    """A chain of 20,000 operations is freed without a stack overflow, as it is without ranges."""
    environment = {**os.environ, "ANNOT_ENABLE": "1"}
    done = forked.python(DEEP, way, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "freed\n", "")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_large_graph_starts_no_garbage_collections(enabled: bool, tmp_path: Path) -> None:
    """The walk creates some 70,000 Python objects: they start one collection, and those that are off stay off."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(10_000):
                x = x * self.weight
            return x

    model, started, found = Loop(), list[int](), list[bool]()

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started.append(info["generation"])

    def body() -> None:
        with emit_ranges(model):
            loss = model(torch.ones(()))
            gc.collect()
            if not enabled:
                gc.disable()
            gc.callbacks.append(count)
            try:
                loss.backward()
                found.append(gc.isenabled())
            finally:
                gc.callbacks.remove(count)
                gc.enable()

    capture(tmp_path, body)
    assert found == [enabled]
    assert len(started) <= 3 * enabled


def test_a_deep_graph_has_its_layers(tmp_path: Path) -> None:
    """Depth costs no ranges: each call of a long loop has its backward range."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(1500):
                x = self.cell(x)
            return x

    model = Loop()

    def body() -> None:
        with emit_ranges(model):
            model(torch.ones(1, 1)).sum().backward()

    assert capture(tmp_path, body).names.count("cell<") == 1500


# ---------------------------------------------------------------- numbers that do not fall


class WritesAView(nn.Module):
    """Writes its activation through another view, so that the view gets a node when the next layer reads it."""

    def __init__(self, *, first: bool = False) -> None:
        super().__init__()
        self.first = first
        self.c1, self.c2, self.c3 = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.c1(x).flip(0)
        view = whole.view(2, 2, 3, 3)
        if self.first:
            whole[:, 0] = 0
        else:
            view[:, 0] = 0
        return self.c3(self.act(self.c2(view)))


class ReadsAViewTwice(nn.Module):
    """Two layers read a view whose base a third layer has written."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.first(x)
        left, right = whole[:2], whole[2:]
        whole *= self.third(x)
        return self.second(left) + self.third(right) + self.second(right)


@pytest.mark.parametrize("model", [WritesAView(), WritesAView(first=True)])
def test_a_view_that_was_written_through_another_view(tmp_path: Path, model: nn.Module) -> None:
    """The node that a stale view gets has a greater number than its consumer; both run inside their layer."""
    truth, found = node_owners.owners(tmp_path, model, lambda: model(torch.ones(2, 1, 3, 3)).sum())
    assert {"c1", "c2", "act", "c3"} <= set(truth.values())
    assert found == truth


def test_views_of_one_written_base(tmp_path: Path) -> None:
    """Several views of a base that changed under them: every node runs inside its layer."""
    model = ReadsAViewTwice()
    truth, found = node_owners.owners(tmp_path, model, lambda: model(torch.ones(4, 4)).sum())
    assert {"first", "second", "third"} <= set(truth.values())
    assert found == truth


# ---------------------------------------------------------------- gradients to the last bit


class ReturnsAStaleView(nn.Module):
    """Writes the base of its output after the output was made."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)
        self.hidden = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.fc(x)
        out = self.hidden.flatten()
        self.hidden += 0.1
        return out


def gradient_through_a_stale_view(model: Any, *, elsewhere: bool = False) -> torch.Tensor:
    torch.manual_seed(3)
    if elsewhere:  # a second thread that calls modules
        thread = threading.Thread(target=lambda: model.fc(torch.ones(1, 64)))
        thread.start()
        thread.join()
    out = model(torch.randn(8, 64))
    weights = [torch.randn(8, 64) * 10**power for power in range(3)]
    loss = sum((model.hidden * weight).sum() for weight in weights)
    used = model.fc(out.view(8, 64)) if elsewhere else out
    (loss + (used * torch.randn(used.shape)).sum()).backward()
    gradient: torch.Tensor = model.fc.weight.grad
    return gradient


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_view_gets_its_node_early(tmp_path: Path, elsewhere: bool) -> None:
    """A node that is made early changes the order in which gradients are added up, and so their last bits."""
    torch.manual_seed(0)
    plain = ReturnsAStaleView()
    traced = copy.deepcopy(plain)
    gradients = [gradient_through_a_stale_view(plain, elsewhere=elsewhere)]

    def body() -> None:
        with emit_ranges(traced):
            gradients.append(gradient_through_a_stale_view(traced, elsewhere=elsewhere))

    capture(tmp_path, body)
    assert torch.equal(*gradients)


# ---------------------------------------------------------------- several threads


def on_a_thread(work: Callable[[], object]) -> None:
    """Run `work` on a new thread, which counts its nodes from 0."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def marked(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Set a mark when the node of this tensor has run."""
    node: Any = tensor.grad_fn
    node.register_hook(lambda *_: mark(name))
    return tensor


def test_a_loss_from_a_thread_that_calls_no_module(tmp_path: Path) -> None:
    """Nodes of a thread without layers belong to no layer, whatever their numbers mean on the thread of the model."""
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(10)])
    out: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(model):
            out.append(marked(model(torch.ones(1, 3)), "model"))
            on_a_thread(lambda: out.append(marked(marked(marked(out[0] * 2, "a").exp(), "b").sum(), "c")))
            out[1].backward()

    captured = capture(tmp_path, body)
    assert node_owners.layer_of_each_mark(captured) == {"a": "engine", "b": "engine", "c": "engine", "model": "9"}


def test_inputs_from_a_thread_that_calls_no_module(tmp_path: Path) -> None:
    """The same below a model: what another thread computed from parameters is no layer of this one."""
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(10)])
    x = torch.ones(1, 3, requires_grad=True)
    made: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(model):
            model(torch.ones(1, 3))  # the numbers of the other thread are those of these layers
            on_a_thread(lambda: made.append(marked(marked(x * 2, "a").exp(), "b")))
            marked(model(made[0]), "model").sum().backward()

    found = node_owners.layer_of_each_mark(capture(tmp_path, body))
    assert found == {"model": "9", "a": "engine", "b": "engine"}


@pytest.mark.parametrize("outputs", ["view", "list of objects"])
def test_a_graph_of_a_thread_that_has_ended(tmp_path: Path, outputs: str) -> None:
    """Whatever a model returns, its layers are found when another thread runs the backward."""

    class Answer:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.flatten() if outputs == "view" else [Answer(x * 2)]

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), Last())
    made: list[Any] = []

    def body() -> None:
        with emit_ranges(model):
            on_a_thread(lambda: made.append(model(torch.ones(1, 3))))
            model[0](torch.ones(1, 3))
            result = made[0] if outputs == "view" else made[0][0].tensor
            result.sum().backward()

    trees = [tree for tree in capture(tmp_path, body).trees if "engine<" in tree]
    assert trees == [("engine<", ("Sequential<", "2<", "1<", "0<"))]


NO_PROC = """
import os
real_open = os.open
def no_proc(path, *arguments, **options):
    if path == "/proc/self/mem":
        raise PermissionError(path)
    return real_open(path, *arguments, **options)
os.open = no_proc
import annot, torch
from annot.torch import autograd_nodes
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
with annot.record("run.sqlite"), annot.emit_ranges(model):
    model(torch.ones(1, 3)).sum().backward()
print(autograd_nodes.find_layout())
"""


@needs_recorder
def test_layers_without_access_to_proc(tmp_path: Path) -> None:
    """Where the memory of nodes cannot be read, a program with one thread has its backward ranges."""
    done = forked.python(NO_PROC, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
    assert Captured(tmp_path / "run.sqlite", 0, 0).trees[-1] == ("engine<", ("Sequential<", "1<", "0<"))


def test_nothing_is_kept_of_blocks_that_are_over(tmp_path: Path) -> None:
    """What threads have called is forgotten with the last open block, and not while that is paused."""
    model = Block()

    def sites() -> int:
        return sum(type(one) is Site for one in gc.get_objects())

    def body() -> None:
        for _ in range(3):
            with emit_ranges(model) as block:
                loss = model(torch.ones(1, 3)).sum()
                block.pause()
                block.resume()
                loss.backward()
                assert sites() > before
            gc.collect()
            assert sites() == before

    gc.collect()
    before = sites()
    captured = capture(tmp_path, body)
    assert captured.names.count("fc<") == 3


def test_many_threads_end_before_the_backward(tmp_path: Path) -> None:
    """A hundred threads make a part of the graph each; all layers are there, and no other thread's."""
    model = nn.ModuleList([nn.Linear(2, 2) for _ in range(100)])
    made: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(model):
            for place, layer in enumerate(model):
                on_a_thread(lambda layer=layer, place=place: made.append(marked(layer(torch.ones(1, 2)), str(place))))
            torch.stack(made).sum().backward()

    found = node_owners.layer_of_each_mark(capture(tmp_path, body))
    assert found == {str(place): str(place) for place in range(100)}


def test_custom_functions_know_their_thread(tmp_path: Path) -> None:
    """Nodes of `torch.autograd.Function` are told apart by thread as well."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    class Scales(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return marked(Scale.apply(x), "inside")

    model = nn.Sequential(nn.Linear(3, 3), Scales(), nn.Linear(3, 3))
    made: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(model):
            out = model(torch.ones(1, 3))
            on_a_thread(lambda: made.append(marked(Scale.apply(out), "other thread")))
            made[0].sum().backward()

    found = node_owners.layer_of_each_mark(capture(tmp_path, body))
    assert found == {"other thread": "engine", "inside": "1"}


def test_roots_that_are_no_nodes(tmp_path: Path) -> None:
    """An object that only looks like a node is the engine's to refuse; annot does not read its memory."""

    class Pretender:
        next_functions = ()
        metadata: dict[str, Any] = {}  # noqa: RUF012

        def _sequence_nr(self) -> int:
            return 1

    model = nn.Linear(3, 3)

    def body() -> None:
        edge = torch.autograd.graph.GradientEdge(Pretender(), 0)
        with emit_ranges(model), pytest.raises((TypeError, RuntimeError)):
            torch.autograd.Variable._execution_engine.run_backward((edge,), (torch.ones(1),), False, False, ())

    capture(tmp_path, body)


@pytest.mark.slow
def test_a_graph_that_is_older_than_the_notes_is_said(tmp_path: Path) -> None:
    """Whoever keeps a graph over tens of thousands of calls hears why its layers are missing."""
    model = nn.Sequential(nn.Linear(1, 1))
    x = torch.ones(1, 1)

    def body() -> None:
        with emit_ranges(model, shapes=False):
            kept = model(x)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model(x).sum().backward()
                assert not caught
                for _ in range(1 << 16):
                    model(x)
                kept.sum().backward()
            assert [str(one.message) for one in caught if "no longer has their layers" in str(one.message)]

    assert capture(tmp_path, body).names.count("0<") == 1
