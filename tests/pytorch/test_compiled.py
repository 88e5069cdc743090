"""torch.compile: ranges around compiled graphs and the layers of their kernels, and nothing compiled otherwise."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured import Captured, Range, capture

torch = pytest.importorskip("torch")
nn = torch.nn

from compiled_nets import Block, Net, X, nothing_compiled, same, step  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor.codegen import wrapper as generated  # noqa: E402
from torch._inductor.compile_fx import CompiledFxGraph  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

from annot import emit_ranges, load  # noqa: E402
from annot.attribution.attribute import attribute  # noqa: E402
from annot.attribution.layer_tables import by_line  # noqa: E402
from annot.emit import client  # noqa: E402
from annot.emit.layer_filter import EVERYTHING  # noqa: E402
from annot.report.tree import layer_lines  # noqa: E402
from annot.torch import compiled, compiled_ranges, module_sites  # noqa: E402

PythonWrapperCodegen = getattr(generated, "PythonWrapperCodegen", None) or generated.WrapperCodeGen  # up to PyTorch 2.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests: what the C++ compiler takes seconds for is made once."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(autouse=True)
def fresh(folder: Path) -> Iterator[None]:
    """Start every test with nothing compiled in this process, and every warning still to come."""
    counters.clear()
    client.warn_once.cache_clear()
    with nothing_compiled(folder):
        yield


def regions(captured: Captured) -> list[Range]:
    """The ranges of compiled graphs."""
    return [one for one in captured.ranges if one.tag and one.tag.module.startswith("CompiledGraph")]


def inside(region: Range) -> list[tuple[str, str]]:
    """Layer and class of the kernels that a graph ran."""
    return [(one.tag.layer, one.tag.module) for one in region.children if one.tag]


def graph_count() -> tuple[int, int]:
    """How many graphs were made, and how often one broke."""
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


FORWARD = [
    ("left.fc", "Linear"), ("left.act+left", "Tanh+Block"),
    ("right.fc", "Linear"), ("right.act+right", "Tanh+Block"),
]  # fmt: skip


@pytest.mark.parametrize("when", ["inside", pytest.param("before", marks=pytest.mark.slow)])
def test_kernels_show_their_layers_whenever_the_model_is_compiled(tmp_path: Path, when: str) -> None:
    """Compiled before or in the block, with `fullgraph`: the same graph, the same bits, layers forward and backward."""
    plain = Net()
    wanted = step(torch.compile(plain, fullgraph=True), plain)
    assert graph_count() == (1, 0)
    model = Net()
    call = torch.compile(model, fullgraph=True) if when == "before" else None
    got = []

    def body() -> None:
        nonlocal call
        with emit_ranges(model):
            call = torch.compile(model, fullgraph=True) if call is None else call
            torch._dynamo.reset()
            got.append(step(call, model))
            with torch._dynamo.config.patch(error_on_recompile=True):
                got.append(step(call, model))

    captured = capture(tmp_path, body)
    assert graph_count() == (2, 0)
    assert all(same(one, wanted) for one in got)
    forward, backward, *again = regions(captured)
    assert inside(forward) == FORWARD
    assert forward.parent is not None
    assert forward.parent.text == "Forward Net [3,4]f32 |fwd"
    assert {layer for layer, _ in inside(backward)} >= {"left.fc", "right.fc", "right.act"}
    assert backward.parent is not None
    assert backward.parent.text == "Backward Net [3,4]f32 |bwd"
    assert [inside(one) for one in again] == [inside(forward), inside(backward)]
    assert captured.names.count("Net>") == captured.names.count("engine<") == 2  # tracing a backward is none


def test_a_graph_from_before_the_block_has_a_range_and_a_sentence_says_why_no_layers(tmp_path: Path) -> None:
    """What ran before the block is not compiled again: its graphs have ranges, and a warning says how to get layers."""
    model = Net()
    call = torch.compile(model)
    wanted = step(call, model)

    def body() -> None:
        unseen = pytest.warns(RuntimeWarning, match=r"no layers.*Compile inside the block")
        with unseen, emit_ranges(model), torch._dynamo.config.patch(error_on_recompile=True):
            assert same(step(call, model), wanted)

    captured = capture(tmp_path, body)
    assert graph_count() == (1, 0)
    assert [inside(one) for one in regions(captured)] == [[], []]
    (said,) = load(next(tmp_path.glob("*.sqlite"))).meta["notes"]
    assert "shows no layers" in said
    assert captured.trees == [
        ("Net>", regions(captured)[0].name),
        ("engine<", ("Net<", regions(captured)[1].name)),
    ]


def test_blocks_that_share_a_graph_have_their_own_paths(tmp_path: Path) -> None:
    """`block.compile()`: one graph runs for both blocks, and its kernels name the block that it runs for."""
    model = Net()
    x = X.clone().requires_grad_()
    wanted = step(model, model, x)

    def body() -> None:
        with emit_ranges(model):
            model.left.compile(fullgraph=True)
            model.right.compile(fullgraph=True)
            torch.testing.assert_close(step(model, model, x), wanted)

    captured = capture(tmp_path, body)
    assert graph_count() == (1, 0)
    left, right, right_back, left_back = regions(captured)
    assert inside(left) == [("left.fc", "Linear"), ("left.act+left", "Tanh+Block")]
    assert inside(right) == [("right.fc", "Linear"), ("right.act+right", "Tanh+Block")]
    assert [one.split(" ")[0] for one in (left.text, right.text, right_back.text, left_back.text)] == [
        "left", "right", "right", "left",
    ]  # fmt: skip
    assert {layer.split(".")[0] for layer, _ in inside(right_back)} == {"right"}
    assert {layer.split(".")[0] for layer, _ in inside(left_back)} == {"left"}


@pytest.mark.slow
def test_a_block_in_two_places_has_both_paths(tmp_path: Path) -> None:
    """A module that stands twice in its model shows where it was called, as without torch.compile."""
    block = Net().left
    model = nn.Sequential(block, block)
    call = torch.compile(model)

    def body() -> None:
        with emit_ranges(model), torch.no_grad():
            call(X)

    captured = capture(tmp_path, body)
    (region,) = regions(captured)
    assert inside(region) == [
        ("0.fc", "Linear"), ("0.act+0", "Tanh+Block"), ("1.fc", "Linear"), ("1.act+1", "Tanh+Block"),
    ]  # fmt: skip


def test_a_function_that_is_given_blocks_names_the_block_of_each_run(tmp_path: Path) -> None:
    """A compiled function of a module that is an argument has one graph for all modules of its class."""
    model = Net()

    def apply(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = block(x)
        return result

    call = torch.compile(apply)

    def body() -> None:
        with emit_ranges(model), torch.no_grad():
            call(model.left, X)
            call(model.right, X)

    captured = capture(tmp_path, body)
    assert counters["stats"]["unique_graphs"] == 1
    assert [inside(one) for one in regions(captured)] == [FORWARD[:2], FORWARD[2:]]
    assert {one.tag.phase for one in regions(captured) if one.tag} == {"forward"}


@pytest.mark.slow
def test_a_function_that_calls_the_model_shows_its_layers(tmp_path: Path) -> None:
    """Outside any module call the paths are the model's; what belongs to no module lies in the graph's range only."""
    model = Net()
    call = torch.compile(lambda x: model(x).square().sum())

    def body() -> None:
        with emit_ranges(model):
            call(X).backward()

    captured = capture(tmp_path, body)
    forward, backward = regions(captured)
    assert inside(forward)[:3] == FORWARD[:3]
    assert {layer for layer, _ in inside(backward)} >= {"left.fc", "right.fc"}
    assert forward.parent is None
    assert backward.parent is not None
    assert backward.parent.text == "Backward |bwd"


def test_each_part_of_a_broken_graph_has_its_range(tmp_path: Path) -> None:
    """A graph break that was there stays the only one; both parts name layers."""
    model = Net(breaks=True)
    call = torch.compile(model)

    def body() -> None:
        with emit_ranges(model), torch.no_grad():
            call(X)

    captured = capture(tmp_path, body)
    assert graph_count() == (2, 1)
    assert [inside(one) for one in regions(captured)] == [FORWARD[:2], FORWARD[2:]]
    assert captured.names.count("Net>") == 1


def test_leaving_and_entering_again_compiles_nothing_and_patches_nothing(tmp_path: Path) -> None:
    """Code with ranges runs without them outside the block, and PyTorch is as before."""
    model = Net()
    call = torch.compile(model)
    before = CompiledFxGraph.__call__, PythonWrapperCodegen.write_header, PythonWrapperCodegen.generate_kernel_call
    results = []

    def body() -> None:
        with emit_ranges(model):
            assert CompiledFxGraph.__call__ is not before[0]
            results.append(step(call, model))
        after = CompiledFxGraph.__call__, PythonWrapperCodegen.write_header, PythonWrapperCodegen.generate_kernel_call
        assert after == before
        with torch._dynamo.config.patch(error_on_recompile=True):
            results.append(step(call, model))
            with emit_ranges(model):
                results.append(step(call, model))

    captured = capture(tmp_path, body)
    assert graph_count() == (1, 0)
    assert same(results[0], results[1])
    assert same(results[0], results[2])
    assert len(regions(captured)) == 4
    assert inside(regions(captured)[2]) == FORWARD
    assert [name for name in captured.names if name == "left.fc>"] == ["left.fc>"] * 2


def test_a_cached_graph_is_found_only_for_the_same_layers(tmp_path: Path) -> None:
    """Equal graphs of other modules, or of no block, are not taken from Inductor's cache."""
    model = Net()
    sources = []

    def compile_block(name: str) -> None:
        torch._dynamo.reset()
        block = copy.deepcopy(model)
        holder = nn.ModuleDict({name: block.left})
        with emit_ranges(holder), torch.no_grad():
            torch.compile(lambda x: holder[name](x))(X)

    def body() -> None:
        for name in ("first", "second", "first"):
            compile_block(name)
            sources.append(counters["inductor"]["fxgraph_cache_hit"])

    captured = capture(tmp_path, body)
    assert [inside(one)[0][0] for one in regions(captured)] == ["first.fc", "second.fc", "first.fc"]
    assert sources == [0, 0, 1]


def test_an_exception_in_a_kernel_closes_every_range(tmp_path: Path) -> None:
    """What a kernel raises passes unchanged, and its range is closed."""
    error = KeyError("mine")

    @torch.library.custom_op("annot_tests::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise error

    fails.register_fake(torch.empty_like)

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = fails(x.cos())
            return result

    model = nn.Sequential(Failing())
    call = torch.compile(model)

    def body() -> None:
        with emit_ranges(model):
            with pytest.raises(KeyError) as caught:
                call(X)
            assert caught.value is error

    captured = capture(tmp_path, body)
    assert inside(regions(captured)[0]) == [("0", "Failing"), ("0", "Failing")]


def test_dynamic_shapes_and_reduce_overhead(tmp_path: Path) -> None:
    """One graph for every size, in the mode that would use CUDA graphs: no error, ranges for each run."""
    model = Net().left
    call = torch.compile(model, dynamic=True, mode="reduce-overhead")

    def body() -> None:
        with emit_ranges(model), torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
            for size in (3, 5, 7):
                call(torch.ones(size, 4))

    captured = capture(tmp_path, body)
    assert graph_count() == (1, 0)
    assert [inside(one) for one in regions(captured)] == [[("fc", "Linear"), ("act+(model)", "Tanh+Block")]] * 3


def test_a_graph_without_a_model_is_of_no_phase(tmp_path: Path) -> None:
    """A compiled function that calls no module, such as a loss, has one range and claims no pass."""
    model = Net()
    call = torch.compile(lambda x: x.cos().sum())

    def body() -> None:
        with emit_ranges(model):
            call(X)

    captured = capture(tmp_path, body)
    (region,) = regions(captured)
    assert region.tag is not None
    assert (region.tag.phase, region.children) == ("other", [])


def test_compiled_autograd_keeps_its_bits(tmp_path: Path) -> None:
    """The whole backward has its range; nothing is raised and no gradient changes."""
    model = nn.Linear(4, 4)

    def train() -> list[torch.Tensor]:
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            return step(model, model)

    wanted = train()
    breaks = graph_count()[1]
    got = []

    def body() -> None:
        with emit_ranges(model):
            got.extend([train(), train()])

    captured = capture(tmp_path, body)
    assert all(same(one, wanted) for one in got)
    assert captured.names.count("engine<") == 2
    assert graph_count()[1] == breaks


def test_without_the_option_inductor_is_left_alone(tmp_path: Path) -> None:
    """`compiled=False`: no range of a graph, and no word of annot in the code that is generated."""
    model = Net().left
    call = torch.compile(model)
    codes = []
    generate = PythonWrapperCodegen.generate

    def watched(wrapper: Any, *args: Any) -> Any:
        result = generate(wrapper, *args)
        codes.append(result[0].value)
        return result

    def body() -> None:
        with pytest.MonkeyPatch.context() as patch, emit_ranges(model, compiled=False), torch.no_grad():
            patch.setattr(PythonWrapperCodegen, "generate", watched)
            call(X)

    captured = capture(tmp_path, body)
    assert captured.names == ["Block>"]
    assert len(codes) == 1
    assert "annot" not in codes[0]


def test_a_release_that_is_unknown_runs_without_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Inductor has no such method, one sentence says so, and the model runs as ever."""
    model = Net().left
    call = torch.compile(model)
    known = dict(compiled._GENERATES)
    known["torch._inductor.scheduler", "Scheduler.no_such_method", "self"] = compiled.Compiled.write_extern_call
    monkeypatch.setattr(compiled, "_GENERATES", known)

    def body() -> None:
        with pytest.warns(RuntimeWarning) as said, emit_ranges(model), torch.no_grad():
            call(X)
        assert "differs from the releases that annot supports" in str(said[0].message)

    captured = capture(tmp_path, body)
    assert [inside(one) for one in regions(captured)] == [[]]


def test_the_report_shows_layers_and_graphs(tmp_path: Path) -> None:
    """Layers of kernels stand below the model, and a graph below what ran it."""
    model = Net()
    call = torch.compile(model)

    def body() -> None:
        with emit_ranges(model):
            step(call, model)

    capture(tmp_path, body)
    lines = layer_lines(by_line(attribute(load(next(tmp_path.glob("*.sqlite"))))))
    shown = {(line.label, line.module): line.depth for line in lines}
    assert shown["(model)", "Net"] == 0
    assert shown["left", "Block"] == shown["right", "Block"] == 1
    assert shown["fc", "Linear"] == 2
    assert shown["act+(self)", "Tanh+Block"] == 2
    (graph,) = (depth for (label, module), depth in shown.items() if module.startswith("CompiledGraph"))
    assert graph == 1


class Routes(nn.Module):
    """Layers in containers, one of them also reached by a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.by = nn.ModuleDict({"a b": nn.Linear(4, 4), "it's": nn.Linear(4, 4)})
        self.alias = {"first": self.by["a b"]}


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("L['self'].blocks.1.fc", ".blocks.1.fc"),
        ("L['self'].blocks[1].fc", ".blocks.1.fc"),
        ("L['self']._modules['blocks']._modules['1'].fc", ".blocks.1.fc"),  # PyTorch 2.9
        ("L['self']._modules['by']._modules['a b']", ".by.a b"),
        ("""L['self'].by["it's"]""", ".by.it's"),
        ("L['self'].alias['first']", ".by.a b"),
        ("L['block'].fc", compiled_ranges.by_expression("L['block'].fc", "", "(Linear)")),
        ("type(L['block']).fc", "by.a b"),  # another kind of expression
    ],
)
def test_every_route_to_a_module_leads_to_its_path(source: str, path: str) -> None:
    """Each release of PyTorch writes its own way how the traced code reached a module."""
    model = Routes()
    known = module_sites.Sites(lambda: None)
    known.add_model(module_sites.Model(weakref.ref(model), EVERYTHING, shapes=True))
    module: Any = dict(model.named_modules()).get(path.removeprefix("."), model.by["a b"])
    node = SimpleNamespace(op="call_function", meta={"nn_module_stack": {str(id(module)): (source, type(module))}})
    found = compiled.traced_layers([node], known.by_id, known.by_id[id(model)], {}, backward=False)
    assert found == (((path, type(module).__name__),), ())


def test_a_wrapper_adds_no_name_to_the_layers_of_its_kernels(tmp_path: Path) -> None:
    """The layers of a compiled model that is wrapped have the paths that they have in ranges."""
    model = AveragedModel(Net().left)
    call = torch.compile(model)

    def body() -> None:
        with emit_ranges(model), torch.no_grad():
            call(X)

    (region,) = regions(capture(tmp_path, body))
    assert inside(region) == [("fc", "Linear"), ("act+(model)", "Tanh+Block")]
