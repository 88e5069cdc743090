"""Forward ranges of PyTorch modules, as a real NVTX tool sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

from torch_block import Block  # noqa: E402

from annot import emit_ranges  # noqa: E402
from annot.torch import module_paths  # noqa: E402

Run = Callable[[nn.Module, Callable[[], object]], list[object]]


@pytest.fixture
def forward(tmp_path: Path) -> Run:
    """Run a body inside `emit_ranges(model, backward=False)`; return the trees that were recorded."""

    def run(model: nn.Module, body: Callable[[], object]) -> list[object]:
        def inside() -> None:
            with emit_ranges(model, backward=False):
                body()

        return capture(tmp_path, inside).trees

    return run


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test PyTorch is as it was."""
    before = nn.Module.__call__, torch.autograd.Variable._execution_engine
    yield
    assert (nn.Module.__call__, torch.autograd.Variable._execution_engine) == before


def test_ranges_carry_path_class_shape_and_dtype(tmp_path: Path) -> None:
    """The text of a range names the layer as PyTorch does, its class, and what came in."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Block2d())

    def body() -> None:
        with emit_ranges(model):
            model(torch.ones(2, 3, 8, 8))

    assert capture(tmp_path, body).texts == [
        "Forward Sequential [2,3,8,8]f32 |fwd",
        "0 Conv2d [2,3,8,8]f32 out=4 kernel=3,3 |fwd",
        "1 Block2d [2,4,6,6]f32 |fwd",
        "1.norm BatchNorm2d [2,4,6,6]f32 |fwd",
    ]


class Block2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def test_shapes_can_be_left_out(tmp_path: Path) -> None:
    """`shapes=False` leaves path and class."""
    model = nn.Linear(3, 3)

    def body() -> None:
        with emit_ranges(model, shapes=False):
            model(torch.ones(1, 3))
            model(torch.ones(2, 3))

    assert capture(tmp_path, body).texts == ["Forward Linear |fwd"] * 2


def test_dtypes_of_all_arguments_are_said(tmp_path: Path) -> None:
    """Tensors are found among positional and keyword arguments, and inside lists, tuples and dicts."""

    class Many(nn.Module):
        def forward(self, *args: object, **kwargs: object) -> int:
            return 1

    model = Many()
    half, long = torch.ones(2, dtype=torch.bfloat16), torch.ones(1, 4, dtype=torch.int64)

    def body() -> None:
        with emit_ranges(model):
            model(half, 3, "x", [long, (half,)], mask=torch.ones((), dtype=torch.bool), more={"a": long})
            model(torch.nn.Parameter(half), None, other=long)
            model(*[half] * 11)

    assert capture(tmp_path, body).texts == [
        "Forward Many [2]bf16 [1,4]i64 [2]bf16 []bool [1,4]i64 |fwd",
        "Forward Many [2]bf16 [1,4]i64 |fwd",
        "Forward Many " + "[2]bf16 " * 8 + "+3 |fwd",
    ]


def test_tensors_by_keyword_only(forward: Run) -> None:
    """A module that gets its tensors by keyword has its range like any other."""
    model = Block()
    assert forward(model, lambda: model(scale=2.0, x=torch.ones(2, 3))) == [("Block>", "fc>", "act>")]


@dataclass
class Output:
    value: torch.Tensor


@pytest.mark.parametrize(
    "wrap",
    [lambda t: (t, t), lambda t: {"a": t}, lambda t: Output(t), lambda t: [t, (t,)], lambda t: None],
    ids=["tuple", "dict", "dataclass", "nested", "none"],
)
def test_outputs_of_any_kind(forward: Run, wrap: Callable[[torch.Tensor], object]) -> None:
    """Whatever a module returns comes back as the same object."""
    given: list[object] = []

    class Wrapping(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            given.append(wrap(x))
            return given[-1]

    model = Wrapping()
    returned: list[object] = []
    tree = forward(model, lambda: returned.append(model(torch.ones(2, requires_grad=True))))
    assert tree == ["Wrapping>"]
    assert returned[0] is given[0]


def test_a_module_called_several_times(forward: Run) -> None:
    """Every call is a range of its own, recursion included."""

    class Repeat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            return self(self.fc(self.fc(x)), depth - 1) if depth else x

    model = Repeat()
    tree = forward(model, lambda: model(torch.ones(1, 3)))
    assert tree == [("Repeat>", "fc>", "fc>", ("Repeat>", "fc>", "fc>", "Repeat>"))]


def test_a_module_under_two_parents(forward: Run) -> None:
    """A shared module carries the path under which it is being called."""

    class Branch(nn.Module):
        def __init__(self, shared: nn.Module) -> None:
            super().__init__()
            self.shared = shared

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shared(x)

    shared = nn.Sequential(nn.Linear(3, 3))
    model = nn.ModuleDict({"left": Branch(shared), "right": Branch(shared)})

    def body() -> None:
        model["left"](torch.ones(1, 3))
        model["right"](torch.ones(1, 3))
        model["left"](torch.ones(1, 3))

    left = ("left>", ("left.shared>", "left.shared.0>"))
    right = ("right>", ("right.shared>", "right.shared.0>"))
    assert forward(model, body) == [left, right, left]


def test_exceptions_leave_no_range_open(forward: Run) -> None:
    """An exception passes unchanged through every range, KeyboardInterrupt included."""

    class Failing(nn.Module):
        def forward(self, error: BaseException) -> None:
            raise error

    model = nn.Sequential(Failing())
    errors = [ValueError("wrong"), KeyboardInterrupt(), SystemExit(3), StopIteration()]

    def body() -> None:
        for error in errors:
            with pytest.raises(type(error)) as caught:
                model(error)
            assert caught.value is error

    assert forward(model, body) == [("Sequential>", "0>")] * 4


def test_user_hooks_run_and_may_fail(forward: Run) -> None:
    """The user's own hooks see what they always saw, and their exceptions pass through."""
    model = Block()
    seen: list[str] = []

    def fail(*_: object) -> None:
        raise RuntimeError("hook")

    model.fc.register_forward_pre_hook(lambda *_: seen.append("pre"))
    model.fc.register_forward_hook(lambda *_: seen.append("post"))
    handle = model.act.register_forward_pre_hook(fail)

    def body() -> None:
        with pytest.raises(RuntimeError, match="hook"):
            model(torch.ones(1, 3))
        handle.remove()
        model(torch.ones(1, 3))

    assert forward(model, body) == [("Block>", "fc>", "act>")] * 2
    assert seen == ["pre", "post"] * 2


def test_modules_replaced_or_added_inside_the_block(forward: Run) -> None:
    """A module that comes later is found under its path; one that belongs to no model has no range."""
    model = nn.Sequential(Block())

    def body() -> None:
        model[0].fc = nn.Linear(3, 3)
        model[0].act = nn.Sequential(nn.Tanh())
        model(torch.ones(1, 3))
        model.append(nn.Identity())
        nn.Linear(3, 3)(torch.ones(1, 3))
        model(torch.ones(1, 3))

    first = ("0>", "0.fc>", ("0.act>", "0.act.0>"))
    assert forward(model, body) == [("Sequential>", first), ("Sequential>", first, "1>")]


def test_a_function_module_made_on_the_fly_has_no_range(forward: Run) -> None:
    """A module made inside forward is no part of the model, and costs no memory."""

    class OnTheFly(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.ReLU()(x)

    model = OnTheFly()
    assert forward(model, lambda: [model(torch.ones(1)) for _ in range(3)]) == ["OnTheFly>"] * 3


def test_nested_blocks_give_one_range_a_call(forward: Run) -> None:
    """An inner `emit_ranges` of the same model, or of a part of it, adds nothing; it takes nothing away either."""
    model = nn.Sequential(Block())

    def body() -> None:
        with emit_ranges(model), emit_ranges(model[0]):
            model(torch.ones(1, 3))
        model(torch.ones(1, 3))

    assert forward(model, body) == [("Sequential>", ("0>", "0.fc>", "0.act>"))] * 2


@pytest.mark.parametrize("model", [3, "model", nn.Module, None])
def test_a_model_of_another_kind_is_refused(model: object) -> None:
    """No PyTorch module: TypeError that says what is accepted and what came."""
    with pytest.raises(
        TypeError,
        match=rf"expects a torch\.nn\.Module or a layer or model of Keras 3, got builtins\.{type(model).__name__}",
    ):
        emit_ranges(model)


def test_without_a_tool_nothing_is_installed() -> None:
    """No tool: `Module.__call__` and the engine stay what they are."""
    model = Block()
    before = nn.Module.__call__, torch.autograd.Variable._execution_engine
    with emit_ranges(model):
        assert (nn.Module.__call__, torch.autograd.Variable._execution_engine) == before


def test_a_collected_module_frees_its_place(forward: Run) -> None:
    """Modules are not kept alive, and a new module at an old address is not taken for the old one."""
    model = nn.Sequential(nn.Identity())

    def body() -> None:
        for _ in range(200):
            model[0] = nn.Sequential(nn.Identity())
            model(torch.ones(1))

    tree = ("Sequential>", ("0>", "0.0>"))
    assert forward(model, body) == [tree] * 200


def test_attention_keeps_its_fast_paths(forward: Run) -> None:
    """TransformerEncoder and MultiheadAttention run the same fused kernels as without annot."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.ones(2, 3, 8)

    def operations() -> list[str]:
        with torch.inference_mode(), torch.profiler.profile() as profile:
            model(x)
            attention(x, x, x)
        return [event.name for event in profile.events() if event.name.startswith("aten::")]

    plain = operations()
    seen: list[list[str]] = []
    both = nn.ModuleList([model, attention])
    forward(both, lambda: seen.append(operations()))
    assert "aten::_transformer_encoder_layer_fwd" in plain
    assert "aten::_native_multi_head_attention" in plain
    assert seen == [plain]


def test_a_keyword_may_have_any_name(forward: Run) -> None:
    """No parameter of ours is in the way of the user's, `module` and `self` included."""

    class Takes(nn.Module):
        def forward(this, **given: object) -> list[str]:  # noqa: N805
            return sorted(given)

    model = Takes()
    kept: list[list[str]] = []
    forward(model, lambda: kept.append(model(module=1, args=2, original=3)))
    assert kept == [["args", "module", "original"]]


def test_arguments_that_do_not_let_themselves_be_looked_at(forward: Run) -> None:
    """What raises when it is looked at costs the shapes, not the call."""

    class Shy(dict[str, object]):
        def values(self) -> object:  # type: ignore[override]
            raise RuntimeError("do not look")

        __iter__ = values

    class Passes(nn.Module):
        def forward(self, x: object) -> object:
            return x

    model = Passes()
    shy = Shy(a=1)
    kept: list[object] = []
    assert forward(model, lambda: kept.append(model(shy))) == ["Passes>"]
    assert kept[0] is shy


def test_a_module_that_joins_the_model_later(forward: Run) -> None:
    """A module that was called inside a layer before it became part of it has its range from then on."""

    loose = nn.Identity()

    class Grows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = loose(x)
            self.joined = loose
            return x

    model = Grows()
    tree = forward(model, lambda: [model(torch.ones(1)) for _ in range(2)])
    assert tree == ["Grows>", ("Grows>", "joined>")]


class Hides(nn.Module):
    """Calls modules that PyTorch does not register: in a list, in a dict of lists, in an attribute, and a global."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 3))
        self.teachers = [nn.Sequential(nn.Linear(3, 3))]
        self.by_name = {"a": [nn.Sequential(nn.ReLU(), nn.Tanh())]}
        object.__setattr__(self, "frozen", nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.frozen(self.teachers[0](x)) + x
        return GLOBAL(self.by_name["a"][0][1](self.net(x)))


GLOBAL = nn.Sequential(nn.Linear(3, 3), nn.ReLU())


def test_modules_that_are_not_registered(forward: Run) -> None:
    """A layer has ranges where its model keeps it, registered or not; a global has the name of its class."""
    model = Hides()
    inside = (
        ("teachers.0>", "teachers.0.0>"), "frozen>", ("net>", "net.0>"), "by_name.a.0.1>",
        ("Sequential>", "Sequential.0>", "Sequential.1>"),
    )  # fmt: skip
    assert forward(model, lambda: [model(torch.ones(1, 3)) for _ in range(2)]) == [("Hides>", *inside)] * 2


def test_modules_that_are_not_registered_have_a_backward(tmp_path: Path) -> None:
    """What they compute is their own in the backward too."""
    model = Hides()

    def body() -> None:
        with emit_ranges(model):
            model(torch.ones(1, 3)).sum().backward()

    backward = [one.name for one in capture(tmp_path, body).ranges if one.name.endswith("<")]
    assert backward == [
        "engine<", "Hides<", "Sequential<", "Sequential.1<", "Sequential.0<", "by_name.a.0.1<", "net<", "net.0<",
    ]  # fmt: skip


def test_two_globals_of_a_class_are_two_layers(forward: Run) -> None:
    """Modules that are found nowhere are numbered, and the path is the same in every call; left out, they stay so."""
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)

    class Uses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return two(one(x))

    model = Uses()
    calls: Callable[[], object] = lambda: [model(torch.ones(1, 3)) for _ in range(3)]  # noqa: E731
    assert forward(model, calls) == [("Uses>", "Linear>", "Linear#2>")] * 3
    assert forward(nn.Sequential(model), lambda: [model(torch.ones(1, 3))]) == [("0>", "0.Linear>", "0.Linear#2>")]


def test_modules_outside_the_model_do_not_have_it_searched_again_and_again(
    forward: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a hidden teacher nor what is made anew in each call is looked for in the whole model each time."""
    teacher = nn.Sequential(*[nn.Linear(3, 3) for _ in range(50)])

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*[nn.ReLU() for _ in range(50)])
            self.hidden = [teacher]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(100):
                x = nn.ReLU()(x)
            return self.hidden[0](x)

    looked_at = 0
    children = module_paths.children

    def counting(module: nn.Module) -> Iterable[tuple[str, Any]]:
        nonlocal looked_at
        looked_at += 1
        return children(module)

    model = Uses()
    monkeypatch.setattr(module_paths, "children", counting)
    forward(model, lambda: [model(torch.ones(1, 3)) for _ in range(10)])
    assert looked_at < 6000


def test_what_only_a_model_called_is_forgotten_with_it(forward: Run) -> None:
    """When its block is over, modules that were discovered have no ranges, though another block is open."""
    hides = Hides()

    def body() -> None:
        with emit_ranges(hides):
            hides(torch.ones(1, 3))
        hides.teachers[0](torch.ones(1, 3))
        hides(torch.ones(1, 3))

    tree = forward(nn.Identity(), body)
    assert [one[0] for one in tree] == ["Hides>"]


def test_attributes_that_answer_anything(forward: Run) -> None:
    """A module whose `__getattr__` always answers, or raises something else, is a module like any other."""

    class Answers(nn.Module):
        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Raises(Answers):
        def __getattr__(self, name: str) -> Any:
            if name in ("_flatten_layers", "_orig_mod", "cls_to_become", "original_name", "fit"):
                raise RuntimeError(name)
            return super().__getattr__(name)

    for cls in (Answers, Raises):
        odd = cls()
        model = nn.Sequential(nn.Identity(), odd)
        assert forward(model, lambda model=model: [model(torch.ones(1))]) == [("Sequential>", "0>", "1>")]
        assert forward(odd, lambda odd=odd: [odd(torch.ones(1))]) == [f"{cls.__name__}>"]


def test_module_with_a_million_paths(forward: Run) -> None:
    """Of the 2^20 paths of a shared module, the first are enough: the block is entered at once, with all modules."""
    leaf, last = nn.Linear(3, 3), nn.Tanh()
    model = leaf
    for _ in range(20):
        model = nn.Sequential(model, model)
    model = nn.Sequential(model, last)
    first = "0." * 20 + "0"
    assert next(path for path, module in module_paths.paths(model) if module is leaf) == first
    assert sum(module is leaf for _, module in module_paths.paths(model)) == module_paths.MAX_PATHS
    assert forward(model, lambda: last(leaf(torch.ones(1, 3)))) == [f"{first}>", "1>"]
