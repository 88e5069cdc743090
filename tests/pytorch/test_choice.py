"""Which modules have ranges, and switching them off and on while training runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nets
import pytest
from captured import Captured, capture

torch = pytest.importorskip("torch")
nn = torch.nn

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.torch import module_paths  # noqa: E402
from annot.torch.ranges import choose  # noqa: E402

Run = Callable[..., Captured]
X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test PyTorch is as it was."""
    before = nn.Module.__call__, torch.autograd.Variable._execution_engine
    yield
    assert (nn.Module.__call__, torch.autograd.Variable._execution_engine) == before


@pytest.fixture
def step(tmp_path: Path) -> Run:
    """Run forward and backward of a model inside `emit_ranges(model, **options)`."""

    def run(model: nn.Module, **options: Any) -> Captured:
        def body() -> None:
            with emit_ranges(model, **options):
                model(X).sum().backward()

        return capture(tmp_path, body)

    return run


class Marked(torch.autograd.Function):
    """The identity; its backward sets a mark."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        annot.mark("here")
        return gradients[0]


class Probe(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Marked.apply(x)  # type: ignore[no-any-return]


def net() -> nn.Sequential:
    """Paths: "", a, a.0, a.1, a.2, b, b.0, b.0.0, b.0.1."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("a", nn.Sequential(nn.Linear(3, 3), nn.ReLU(), Probe()))
    model.add_module("b", nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh())))
    return model


def forward_layers(captured: Captured) -> list[str]:
    """The paths of the layers with a forward range, in order."""
    return [one.tag.layer for one in captured.ranges if one.tag and one.tag.phase == "forward"]


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"include": "a.*"}, ["a.0", "a.1", "a.2"]),
        ({"include": "a.**"}, ["a", "a.0", "a.1", "a.2"]),
        ({"include": "*"}, ["a", "b"]),
        ({"include": ["", "**.1"]}, ["", "a.1", "b.0.1"]),
        ({"include": "**.0"}, ["a.0", "b.0", "b.0.0"]),
        ({"include": "[!a].*"}, ["b.0"]),
        ({"include": nn.Linear}, ["a.0", "b.0.0"]),
        ({"include": (nn.Linear, "b")}, ["a.0", "b", "b.0.0"]),
        ({"exclude": "a"}, ["", "a.0", "a.1", "a.2", "b", "b.0", "b.0.0", "b.0.1"]),
        ({"exclude": [nn.Sequential, "**.?"]}, []),
        ({"include": "b.**", "exclude": nn.Linear}, ["b", "b.0", "b.0.1"]),
        ({"depth": 0}, [""]),
        ({"depth": 1}, ["", "a", "b"]),
        ({"depth": 2, "exclude": "a.**"}, ["", "b", "b.0"]),
    ],
)
@pytest.mark.filterwarnings("ignore:include, exclude and depth leave")
def test_only_the_chosen_modules_have_ranges(step: Run, options: dict[str, Any], layers: list[str]) -> None:
    """Patterns, classes and depth decide; forward and backward have the same layers, in the same nesting."""
    captured = step(net(), **options)
    assert forward_layers(captured) == layers
    backward = {one.name[:-1] for one in captured.ranges if one.tag and one.tag.phase == "backward" and one.tag.module}
    assert backward == {layer or "Sequential" for layer in layers}


@pytest.mark.parametrize("options", [{"exclude": Probe}, {"exclude": "a.2"}, {"depth": 1}])
def test_backward_of_a_module_left_out_goes_to_the_layer_around_it(step: Run, options: dict[str, Any]) -> None:
    """What it does runs inside the range of its nearest ancestor that has one."""
    captured = step(net(), **options)
    [(at, _, thread)] = captured.marks
    innermost = captured.innermost(at, thread)
    assert innermost is not None
    assert innermost.name == "a<"


def test_the_choice_changes_no_bit(tmp_path: Path) -> None:
    """Losses, gradients and parameters are those of a plain run."""
    plain = nets.train(nets.gpt())
    traced: list[torch.Tensor] = []
    net = nets.gpt()

    def body() -> None:
        with emit_ranges(net.model, include=["blocks.*.attn.**", nn.Embedding]):
            traced.extend(nets.train(net))

    captured = capture(tmp_path, body)
    assert set(forward_layers(captured)) == {"tokens", "positions"} | {
        f"blocks.{i}.attn{part}" for i in range(4) for part in ("", ".qkv", ".proj")
    }
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))


def test_modules_that_come_later_obey(tmp_path: Path) -> None:
    """A module that is put into the model inside the block has ranges if it is chosen."""
    model = net()

    def body() -> None:
        with emit_ranges(model, exclude=nn.Tanh, depth=2):
            model.b.append(nn.Linear(3, 3))
            model.b.append(nn.Tanh())
            model.b.append(nn.Sequential(nn.ReLU()))
            model(X)

    assert forward_layers(capture(tmp_path, body)) == ["", "a", "a.0", "a.1", "a.2", "b", "b.0", "b.1", "b.3"]


def test_modules_left_out_are_looked_for_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a module without ranges does not search the model again."""
    model, searched = net(), []
    search = module_paths._path_below

    def counting(top: nn.Module, module: nn.Module, *, deep: bool) -> str | None:
        searched.append(module)
        return search(top, module, deep=deep)

    monkeypatch.setattr(module_paths, "_path_below", counting)

    def body() -> None:
        with emit_ranges(model, exclude=nn.Linear):
            late = nn.Linear(3, 3)
            model.b.append(late)
            for _ in range(3):
                model(X)
            assert searched == [late]

    capture(tmp_path, body)


def test_the_place_of_a_dead_module_is_free(tmp_path: Path) -> None:
    """A module made where one that was left out has died is judged by itself."""
    model, dead = nn.Sequential(), 0

    def at_its_place() -> nn.Module | None:
        model.append(nn.Tanh())
        model(X)
        place = id(model[0])
        del model[0]
        made = [nn.ReLU() for _ in range(1000)]
        return next((one for one in made if id(one) == place), None)

    def body() -> None:
        nonlocal dead
        with emit_ranges(model, exclude=nn.Tanh):
            made = None
            while made is None and dead < 50:  # Python does not always use the memory again
                dead, made = dead + 1, at_its_place()
            assert made is not None
            model.append(made)
            model(X)

    assert forward_layers(capture(tmp_path, body)) == [""] * dead + ["", "0"]


@pytest.mark.parametrize("name", ["Lo", "Loss", None])
def test_the_layer_of_a_loss_is_chosen_by_its_own_path(tmp_path: Path, name: str | None) -> None:
    """No name of a model is cut off from it, also where it begins as the name does."""

    class Weighted(nn.L1Loss):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Linear(3, 3)

        def forward(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return super().forward(self.weight(outputs), target)

    model, loss = net(), Weighted()

    def body() -> None:
        with emit_ranges(model, name=name, include=["", "Loss", "Loss.weight"]):
            loss(model(X), X)

    assert forward_layers(capture(tmp_path, body)) == [name or "", "Loss", "Loss.weight"]


def test_a_shared_module_has_ranges_where_it_is_chosen(step: Run) -> None:
    """Of several places of one module, those that are chosen name its ranges."""
    model = net()
    model.add_module("c", nn.Sequential(model.a[0]))
    captured = step(model, exclude="a.0")
    assert forward_layers(captured).count("a.0") == 0
    assert forward_layers(captured)[-2:] == ["c", "c.0"]


def test_overlapping_blocks_add_up(tmp_path: Path) -> None:
    """What either block of the same model chooses has ranges while that block is there."""
    model = net()

    def body() -> None:
        with emit_ranges(model, include="a"):
            with emit_ranges(model, include="b"):
                model(X)
            model(X)

    assert forward_layers(capture(tmp_path, body)) == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"include": 3}, TypeError, "include must contain path patterns and subclasses of torch.nn.Module, got 3"),
        ({"exclude": [int]}, TypeError, "exclude must contain"),
        ({"exclude": nn.Linear(1, 1)}, TypeError, "exclude must contain"),
        ({"include": "a.[z-a]"}, ValueError, r"'a.\[z-a\]' is not a valid path pattern"),
        ({"depth": -1}, ValueError, "depth must not be negative, got -1"),
        ({"depth": True}, TypeError, "depth must be an int or None, got True"),
        ({"depth": 1.0}, TypeError, "depth must be an int"),
        ({"schedule": 3}, TypeError, "schedule must come from annot.schedule, got int"),
    ],
)
def test_wrong_options_are_said(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """They fail at once, also with no tool attached."""
    with pytest.raises(error, match=message):
        emit_ranges(nn.Linear(1, 1), **options)


def test_a_choice_that_leaves_nothing_is_said(tmp_path: Path) -> None:
    """A pattern with a slip of the pen does not end in silence."""

    class Lonely(nn.Module):
        pass

    def body() -> None:
        with (
            pytest.warns(RuntimeWarning, match="exclude every module of Lonely"),
            emit_ranges(Lonely(), include="typo.*"),
        ):
            pass

    capture(tmp_path, body)


def test_patterns() -> None:
    """Stars stay inside names, two stars do not; all else is taken as it is."""
    takes = {
        "a.**.b": ("a.b", "a.x.b", "a.x.y.b"), "**": ("", "a", "a.b"), "": ("",), "layer[1-3].*": ("layer2.conv",),
        "a?": ("ab",), "[!ab]": ("c",), "x[": ("x[",), "a+b": ("a+b",), "[]]": ("]",), "**.*.w": ("a.w", "a.b.w"),
    }  # fmt: skip
    leaves = {
        "a.**.b": ("axb", "a.b.c"), "**": (), "": ("a",), "layer[1-3].*": ("layer4.conv", "layer1.a.b"),
        "a?": ("a", "a.", "abc"), "[!ab]": ("a", "."), "x[": ("x",), "a+b": ("aab",), "*": ("", "a.b"),
        "**.*.w": ("w",),
    }  # fmt: skip
    module = nn.Identity()
    assert {(p, path) for p, found in takes.items() for path in found if not choose(p).takes(path, module)} == set()
    assert {(p, path) for p, found in leaves.items() for path in found if choose(p).takes(path, module)} == set()


# ------------------------------------------------------------------ switching


def test_off_between_forward_and_backward(tmp_path: Path) -> None:
    """A graph built while on and run while off has no ranges, and the same gradients."""
    model, call, engine = net(), nn.Module.__call__, torch.autograd.Variable._execution_engine
    model(X).sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    def body() -> None:
        with emit_ranges(model) as block:
            loss = model(X).sum()
            block.pause()
            block.pause()
            assert (nn.Module.__call__, torch.autograd.Variable._execution_engine) == (call, engine)
            loss.backward()
            model(X)
            block.resume()
            block.resume()
            model(X)

    captured = capture(tmp_path, body)
    assert [one for one in captured.names if one.endswith("<")] == []
    assert captured.names.count("Sequential>") == 2
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), plain, strict=True))


def test_off_and_on_between_forward_and_backward(tmp_path: Path) -> None:
    """A graph that was built before a pause has the ranges of its layers after it."""
    model = net()

    def body() -> None:
        with emit_ranges(model) as block:
            loss = model(X).sum()
            for _ in range(2):
                block.pause()
                block.resume()
            loss.backward()

    (run,) = [one.tree() for one in capture(tmp_path, body).ranges if one.name == "engine<"]
    assert run == (
        "engine<", ("Sequential<", ("b<", ("b.0<", "b.0.1<", "b.0.0<")), ("a<", "a.2<", "a.1<", "a.0<")),
    )  # fmt: skip


def test_off_for_the_forward_alone(tmp_path: Path) -> None:
    """A graph built while off belongs to no layer, also when layers have been called before and after."""
    model = net()

    def body() -> None:
        with emit_ranges(model) as block:
            first = model(X).sum()
            block.pause()
            unseen = model(X).sum()
            block.resume()
            last = model(X).sum()
            for loss in (unseen, first, last):
                loss.backward()

    captured = capture(tmp_path, body)
    runs = [one.tree() for one in captured.ranges if one.name == "engine<"]
    assert runs[0] == "engine<"
    assert len(runs) == 3
    assert isinstance(runs[2], tuple)


@pytest.mark.parametrize("options", [{}, {"forward": False}, {"backward": False}])
def test_switching_inside_a_forward(tmp_path: Path, options: dict[str, Any]) -> None:
    """Another thread takes one block away and enters another, while a call is on its way: its range closes."""
    model, other = net(), nn.Linear(3, 3)
    first, second = emit_ranges(model), emit_ranges(other, **options)

    def switch(*_: object) -> None:
        def run() -> None:
            first.pause()
            second.__enter__()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    model.a[1].register_forward_pre_hook(switch)

    def body() -> None:
        with first:
            model(X).sum().backward()
            second.__exit__(None, None, None)
            model.a[1]._forward_pre_hooks.clear()
            first.resume()
            model(X)

    captured = capture(tmp_path, body)
    assert captured.trees[0] == ("Sequential>", ("a>", "a.0>", "a.1>"))
    assert captured.names.count("b>") == 1


def test_switching_inside_a_backward(tmp_path: Path) -> None:
    """The run that is on its way keeps its ranges and closes them; the next has none."""
    model = net()

    def body() -> None:
        with emit_ranges(model) as block:
            x = X.clone().requires_grad_()
            out = model.a(x)
            out.register_hook(lambda _: block.pause())
            out.sum().backward()
            model(X).sum().backward()

    captured = capture(tmp_path, body)
    assert "a.0<" in captured.names
    assert captured.names.count("engine<") == 1


def test_a_tool_that_comes_inside_the_block(tmp_path: Path) -> None:
    """`resume` looks again: a recording that starts in the middle has ranges."""
    model = net()
    with emit_ranges(model) as block:
        model(X)

        def body() -> None:
            model(X)
            block.resume()
            model(X)

        captured = capture(tmp_path, body)
    assert captured.names.count("Sequential>") == 1


def test_blocks_that_are_entered_twice(tmp_path: Path) -> None:
    """One object may be entered again while it is open; it is off after the last exit."""
    model, call = net(), nn.Module.__call__
    block = emit_ranges(model, backward=False)

    def body() -> None:
        block.pause()
        with block:
            assert nn.Module.__call__ is call
            block.resume()
            with block:
                model(X)
            model(X)
        model(X)
        block.resume()
        assert nn.Module.__call__ is call

    assert capture(tmp_path, body).names.count("Sequential>") == 2
