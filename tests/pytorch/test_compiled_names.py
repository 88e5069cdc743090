"""torch.compile: the layers of compiled code are those of the run without it, however the code reached the modules."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured import Captured, capture
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn

from compiled_nets import Block, X, nothing_compiled  # noqa: E402
from matrices import matrix  # noqa: E402

from annot import emit_ranges  # noqa: E402
from annot.torch import compiled_ranges, traced_variables  # noqa: E402

Program = Callable[..., Any]
NAMES = ("student", "teacher")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(autouse=True)
def fresh(folder: Path) -> Iterator[None]:
    """Start every test with nothing compiled in this process."""
    with nothing_compiled(folder):
        yield


class Net(nn.Module):
    """A block, and a block after a layer that torch.compile does not compile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.log, self.last = Block(), Log(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call one layer after the other."""
        result: torch.Tensor = self.last(self.log(self.first(x)))
        return result


class Log(nn.Module):
    """A layer that breaks the graph."""

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x`."""
        return x


def rows(captured: Captured) -> set[tuple[str, str]]:
    """Path and phase of the layers that have ranges, fused ones apart, without compiled graphs."""
    tags = [one.tag for one in captured.ranges if one.tag and not one.tag.module.startswith("CompiledGraph")]
    layers = [(layer, tag.phase) for tag in tags for layer in tag.layer.split("+")]
    return {(layer, phase) for layer, phase in layers if phase in ("forward", "backward") and layer}


def record(tmp_path: Path, student: Any, teacher: Any, *calls: Callable[[], Any]) -> set[tuple[str, str]]:
    """Return the rows of forward and backward of calls."""

    def body() -> None:
        with emit_ranges(student, name="student"), emit_ranges(teacher, name="teacher"):
            for call in calls:
                call().square().sum().backward()

    return rows(capture(tmp_path, body))


def argument(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are arguments."""
    call = wrap(lambda one, other, x: one(x) + other(x).tanh())
    return lambda x: call(student, teacher, x)


def items(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are in a list in a dict."""
    call = wrap(lambda nets, x: nets["all"][0](x) + nets["all"][1](x).tanh())
    return lambda x: call({"all": [student, teacher]}, x)


def closure(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are variables around the function."""
    result: Program = wrap(lambda x: student(x) + teacher(x).tanh())
    return result


def inlined(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are variables around a function that the compiled function calls."""

    def both(x: Any) -> Any:
        return student(x) + teacher(x).tanh()

    call = wrap(lambda f, x: f(x) * 2)
    return lambda x: call(both, x)


def partial(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are arguments of a partial function."""
    call = wrap(lambda f, x: f(x) * 2)
    return lambda x: call(functools.partial(lambda one, other, x: one(x) + other(x).tanh(), student, teacher), x)


def method(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are attributes of a trainer with a compiled method."""

    class Trainer:
        def __init__(self) -> None:
            self.student, self.others = student, SimpleNamespace(teacher=teacher)

        def step(self, x: Any) -> Any:
            return self.student(x) + self.others.teacher(x).tanh()

    result: Program = wrap(Trainer().step)
    return result


def bound(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules have compiled forwards."""
    one, other = wrap(student.forward), wrap(teacher.forward)
    return lambda x: one(x) + other(x).tanh()


def variable(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are global variables."""
    space: dict[str, Any] = {"one": student, "other": teacher}
    exec("def call(x): return one(x) + other(x).tanh()", space)
    result: Program = wrap(space["call"])
    return result


def wrapped(wrap: Program, student: Any, teacher: Any) -> Program:
    """The modules are compiled."""
    one, other = wrap(student), wrap(teacher)
    return lambda x: one(x) + other(x).tanh()


WAYS = (argument, items, closure, inlined, partial, method, bound, variable, wrapped)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "net"), matrix(WAYS, [Block, Net], in_ci=False))
def test_rows_of_compiled_code_are_rows_of_the_run_without(tmp_path: Path, way: Program, net: Any) -> None:
    """Two models of one class, in one graph or several: each row is one of eager mode, and each model has rows."""
    student, teacher = net(), net()
    eager = record(tmp_path, student, teacher, lambda: way(lambda f: f, student, teacher)(X))
    call = way(torch.compile, student, teacher)
    compiled = record(tmp_path, student, teacher, lambda: call(X), lambda: call(X))
    assert compiled <= eager | {("Loss", "forward")}
    wanted = [f"{name}.fc" if net is Block else f"{name}.{part}.fc" for name in NAMES for part in ("first", "last")]
    assert {(path, phase) for path in wanted for phase in ("forward", "backward")} <= compiled


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(("net", "nets", "by", "make")), st.sampled_from(NAMES), st.booleans()),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_random_programs_have_the_rows_of_eager_mode(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, str, bool]]
) -> None:
    """A compiled function that reaches two models by any route, with breaks between the calls."""
    torch._dynamo.reset()
    models = {name: Block() for name in NAMES}
    scope = SimpleNamespace(
        student=models["student"], teacher=models["teacher"], nets=list(models.values()), by=dict(models),
        make=functools.partial(lambda one, other, name: one if name == "student" else other, *models.values()),
    )  # fmt: skip

    def program(scope: Any, x: Any) -> Any:
        for route, name, breaks in calls:
            if route == "net":
                net = scope.student if name == "student" else scope.teacher
            elif route == "nets":
                net = scope.nets[NAMES.index(name)]
            elif route == "by":
                net = scope.by[name]
            else:
                net = scope.make(name)
            x = net(x)
            if breaks:
                torch._dynamo.graph_break()
        return x

    run = functools.partial(record, tmp_path_factory.mktemp("run"), models["student"], models["teacher"])
    eager, fast = run(lambda: program(scope, X)), torch.compile(program)
    compiled = run(lambda: fast(scope, X))
    assert compiled <= eager
    assert {layer.split(".")[0] for layer, _ in compiled} == {name for _, name, _ in calls}


def test_one_graph_names_the_modules_of_each_run(tmp_path: Path) -> None:
    """The same graph runs for other modules: every run has their paths, and so has its backward, in any order."""
    student, teacher = Block(), Block()
    call = torch.compile(lambda one, other, x: one(x) + other(x.cos()))
    found = []

    def body() -> None:
        with emit_ranges(student, name="student"), emit_ranges(teacher, name="teacher"):
            found.extend([call(student, teacher, X), call(student, student, X)])
            found.append(call(teacher, student, X))
            for out in (found[1], found[0], found[2]):
                out.sum().backward()

    captured = capture(tmp_path, body)
    graphs = [one for one in captured.ranges if one.tag and one.tag.module.startswith("CompiledGraph")]
    fc = [
        [one.tag.layer for one in graph.children if one.tag and one.tag.module == "Linear"][:2]
        for graph in graphs
        if graph.tag and graph.tag.phase != "backward"
    ]
    assert fc == [["student.fc", "teacher.fc"], ["student.fc"] * 2, ["teacher.fc", "student.fc"]]
    backward = [one for one in captured.ranges if one.tag and one.tag.phase == "backward" and one.tag.layer]
    runs = [one for one in graphs if one.tag and one.tag.phase == "backward"]
    layers = [{one.tag.layer.split(".")[0] for one in backward if one.tag and one.parent is run} for run in runs]
    assert layers == [{"student"}, {"student", "teacher"}, {"student", "teacher"}]


def test_a_run_for_a_module_without_ranges_names_no_other(tmp_path: Path) -> None:
    """A graph that was compiled for a model runs for one outside the block: the range of the graph has its time."""
    student, other = Block(), Block()
    call = torch.compile(lambda net, x: net(x))

    def body() -> None:
        with emit_ranges(student, name="student"), torch.no_grad():
            call(student, X)
            call(other, X)

    captured = capture(tmp_path, body)
    assert [one.tag.layer for one in captured.ranges if one.tag and one.tag.module == "Linear"] == ["student.fc"]
    graphs = [one for one in captured.ranges if one.tag and one.tag.module.startswith("CompiledGraph")]
    assert [len(one.children) for one in graphs] == [2, 2, 0, 0]  # kernels without a layer have the graph's name


def test_the_modules_of_a_run_die_as_without_annot(tmp_path: Path) -> None:
    """Neither a graph nor its node in autograd keeps the modules that it ran for."""
    student = Block()
    call = torch.compile(lambda net, x: net(x).sum())
    alive = []

    def body() -> None:
        with emit_ranges(nn.ModuleList([student])):
            for _ in range(3):
                other = Block()
                out = call(other, X)
                alive.append(weakref.ref(other))
                del other, out
            gc.collect()
            assert [one() for one in alive] == [None] * 3

    capture(tmp_path, body)


class Branches(nn.Module):
    """Two layers, of which the input chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        """Call one of the layers."""
        return torch.cond(x.sum() > 0, self.one, self.other, (x,))


def test_branches_of_a_condition_name_their_layers(tmp_path: Path) -> None:
    """The kernels of the branch that runs belong to its layer alone, not also to the code of the condition."""
    model = Branches()
    call = torch.compile(model)

    def body() -> None:
        with emit_ranges(model), torch.no_grad():
            call(X.abs())
            call(-X.abs())

    captured = capture(tmp_path, body)
    assert [one.tag.layer for one in captured.ranges if one.tag and one.tag.module == "Linear"] == ["one", "other"]


@pytest.mark.parametrize(
    ("expression", "parsed"),
    [
        ("L['a'].b[0]", ("L", "a", ("b", 0))),
        ("G['a']._modules['x y'].c", ("G", "a", ("_modules", "x y", "c"))),
        ("L['f'].__closure__[-1]", ("L", "f", ("__closure__", -1))),
        (".b", ("", "", ("b",))),
        ("type(L['a']).b", None),
        ("L['a'].b(1)", None),
    ],
)
def test_an_expression_is_read_as_a_whole_or_not_at_all(expression: str, parsed: Any) -> None:
    """What the grammar lacks is another kind of expression, of which no part is taken."""
    assert traced_variables.parse(expression) == parsed


def test_no_user_code_runs_to_reach_a_module() -> None:
    """Properties and `__getattr__` are code of the user."""

    class Loud:
        def __init__(self) -> None:
            self.net = 1

        @property
        def other(self) -> Any:
            raise AssertionError

        def __getattr__(self, name: str) -> Any:
            raise AssertionError

    class Slots:
        __slots__ = ("net",)
        shared = (5,)

        def __init__(self) -> None:
            self.net = [4]

    assert traced_variables.reached(Loud(), ("net",)) == 1
    assert not isinstance(traced_variables.reached(Loud(), ("other",)), int)
    assert traced_variables.reached(Slots(), ("net", 0)) == 4
    assert traced_variables.reached(Slots(), ("shared", 0)) == 5
    assert traced_variables.reached([[1]], (0, 3, "net")) is None
    assert traced_variables.reached(Loud(), ("missing",)) is None


def test_heads_are_read_from_generated_code() -> None:
    """Quotes of both kinds in an expression survive the literal in the code."""
    path = compiled_ranges.by_expression("""L['a']["it's"]""", ".b", "(Net).b")
    text = compiled_ranges.encode("forward", [(path, "Linear"), (".c", "Tanh")], [])
    assert compiled_ranges.heads_in(f"def call():\n    annot_push({text!r})\n") == ("""L['a']["it's"]""",)
    assert compiled_ranges.heads_in("annot_push('forward\\t1\\t.c\\tTanh')") == ()
