"""Kernels of compiled graphs are inside the innermost layer that contains all of their layers, and times add up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import Rows

from annot.attribution.attribute import Attribution, attribute
from annot.attribution.layer_tables import by_layer, by_line
from annot.labels import tag
from annot.report.tree import Line, layer_lines


@dataclass(frozen=True)
class Tree:
    """Layers of a model: path and whether the layer is called, unlike a ModuleList; the first is the model."""

    paths: list[str]
    called: list[bool]

    def around(self, members: list[int]) -> list[int]:
        """The called layers that contain all members, outermost first; one member does not contain itself."""
        return [
            node
            for node, path in enumerate(self.paths)
            if self.called[node]
            and all(other == node or not path or self.paths[other].startswith(f"{path}.") for other in members)
            and (len(members) > 1 or node != members[0])
        ]

    def text(self, members: list[int], phase: tag.Phase, *, inside: bool) -> str:
        """The text of the range of a kernel."""
        layer = "+".join(self.paths[node] or "(model)" for node in members) if members != [0] else ""
        around = [word for node in self.around(members)[1:] for word in (self.paths[node].count(".") + 1, "Block")]
        arguments = ((tag.AROUND, tuple(around)),) if inside and (around or len(members) > 1) else ()
        return tag.format(tag.Tag(layer, "Net" if members == [0] else "Block", phase, arguments=arguments))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees of up to eight layers."""
    paths, called = [""], [True]
    for number in range(draw(st.integers(2, 8))):
        above = paths[draw(st.integers(0, len(paths) - 1))]
        paths.append(f"{above}.{number}".removeprefix("."))
        called.append(draw(st.booleans()))
    return Tree(paths, called)


kernels_of = st.lists(
    st.tuples(st.lists(st.integers(0, 8), min_size=1, max_size=4), st.integers(1, 99)), min_size=1, max_size=8
)


def _trained(
    tree: Tree, kernels: list[tuple[list[int], int]], phase: tag.Phase, runs: int, *, inside: bool
) -> Attribution:
    """Runs of a graph, each of whose kernels is fused from members of the tree and has a GPU time."""
    rows, clock = Rows(), 0
    title = "Forward" if phase == "forward" else "Backward"
    code = {"forward": "fwd", "backward": "bwd"}[phase]
    for _ in range(runs):
        begin = clock
        for members, length in kernels:
            rows.range(tree.text(members, phase, inside=inside), clock + 2, clock + 8)
            rows.kernel(clock + 3, (1_000_000 + 100 * clock, 1_000_000 + 100 * clock + length))
            clock += 10
        rows.range(f"{title} Net |{code}", begin, clock).range(f"{title} CompiledGraph#0 |{code}", begin + 1, clock - 1)
    return attribute(rows.build())


def _parents(lines: list[Line]) -> dict[tuple[str, str], tuple[str, str]]:
    above: list[Line] = []
    found = {}
    for line in lines:
        above[line.depth :] = [line]
        found[line.key] = above[line.depth - 1].key if line.depth else ("", "")
    return found


def _members(tree: Tree, numbers: list[int]) -> list[int]:
    layers = [node for node, called in enumerate(tree.called) if called]
    return list(dict.fromkeys(layers[number % len(layers)] for number in numbers))


@settings(max_examples=examples(150), deadline=None)
@given(trees(), kernels_of, st.sampled_from(["forward", "backward"]), st.integers(1, 3))
@example(Tree(["", "0", "0.1", "0.2"], [True, False, True, True]), [([1, 2], 1)], "forward", 1)
def test_a_kernel_is_inside_the_innermost_layer_around_its_layers(
    tree: Tree, numbers: list[tuple[list[int], int]], phase: tag.Phase, runs: int
) -> None:
    """In both phases; every line is its own time and that of the lines inside; a run of the graph is one call."""
    kernels = [(_members(tree, some), length) for some, length in numbers]
    attribution = _trained(tree, kernels, phase, runs, inside=True)
    lines = layer_lines(by_line(attribution))
    parents = _parents(lines)
    total = runs * sum(length for _, length in kernels)
    assert sum(line.get("gpu_self_ns") for line in lines) == total
    assert [(line.key, line.get("gpu_ns")) for line in lines if not line.depth] == [(("", "Net"), total)]
    for line in lines:
        inside = [one for one in lines if parents.get(one.key) == line.key]
        assert line.get("gpu_ns") == line.get("gpu_self_ns") + sum(one.get("gpu_ns") for one in inside)
        assert line.get("calls") == runs * (1 + (line.key == ("", "Net") and any(some == [0] for some, _ in kernels)))
    for members, _ in kernels:
        if members == [0]:
            continue
        parsed = tag.parse(tree.text(members, phase, inside=True))
        assert parsed is not None
        around = tree.around(members)[-1]
        wanted = (tree.paths[around], "Block" if around else "Net")
        assert parents[parsed.layer, parsed.module] == wanted


@settings(max_examples=examples(60), deadline=None)
@given(trees(), kernels_of)
def test_without_the_layers_around_in_the_text_the_paths_decide(
    tree: Tree, numbers: list[tuple[list[int], int]]
) -> None:
    """As in recordings of earlier versions: a fused kernel is in the layer whose path its layers share."""
    kernels = [(_members(tree, some), length) for some, length in numbers]
    attribution = _trained(tree, kernels, "forward", 1, inside=False)
    lines = layer_lines(by_line(attribution))
    parents = _parents(lines)
    assert sum(line.get("gpu_self_ns") for line in lines) == sum(length for _, length in kernels)
    for members, _ in kernels:
        if len(members) == 1:
            continue
        paths = [tree.paths[node].split(".") if node else [] for node in members]
        shared = []
        for names in zip(*paths, strict=False):
            if len(set(names)) > 1:
                break
            shared.append(names[0])
        layer = "+".join(tree.paths[node] or "(model)" for node in members)
        assert parents[layer, "Block"][0] == ".".join(shared)


def test_a_graph_that_breaks_inside_a_block_does_not_split_it() -> None:
    """Two graphs run parts of `h.0`: it is one line in the model, and the graphs have their own times only."""
    rows = Rows().range("Forward Net |fwd", 0, 100)
    rows.range("Forward CompiledGraph#0 |fwd", 1, 40).range("h.0.ln+h.0.fc Norm+Linear inside=2,Block |fwd", 5, 25)
    rows.range("Forward CompiledGraph#1 |fwd", 50, 90).range("h.0.act ReLU inside=2,Block |fwd", 60, 70)
    attribution = attribute(rows.build())
    lines = layer_lines(by_line(attribution))
    assert [(line.depth, line.label, line.module, line.get("host_ns"), line.get("calls")) for line in lines] == [
        (0, "(model)", "Net", 100, 1), (1, "(graph)", "CompiledGraph#0", 19, 1), (1, "h.0", "Block", 30, 2),
        (2, "ln+fc", "Norm+Linear", 20, 1), (2, "act", "ReLU", 10, 1), (1, "(graph)", "CompiledGraph#1", 30, 1),
    ]  # fmt: skip


def test_a_block_with_a_graph_of_its_own_contains_its_kernels() -> None:
    """Regional compilation: the range of the block is around the graph, and no second line of it appears."""
    rows = Rows().range("Forward Net |fwd", 0, 100).range("h.0 Block [8]f32 |fwd", 5, 95)
    rows.range("h.0 CompiledGraph#0 |fwd", 10, 90).range("h.0.attn.q+h.0.ln Linear+Norm |fwd", 20, 30)
    rows.range("h.0.attn.q Linear inside=3,Attn |fwd", 40, 50)
    attribution = attribute(rows.build())
    lines = layer_lines(by_line(attribution))
    assert [(line.depth, line.label, line.module, line.get("host_ns")) for line in lines] == [
        (0, "(model)", "Net", 100), (1, "h.0", "Block", 90), (2, "(graph)", "CompiledGraph#0", 60),
        (2, "attn.q+ln", "Linear+Norm", 10), (2, "attn", "Attn", 10), (3, "q", "Linear", 10),
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["9,Block", "Block", "-1,Block", "True,3", "2.5,Block", "1,"])
def test_layers_around_that_cannot_be(words: str) -> None:
    """A text that names impossible layers costs these, not the report."""
    rows = Rows().range("Forward Net |fwd", 0, 100).range("Forward CompiledGraph#0 |fwd", 1, 99)
    rows.range(f"h.0.fc Linear inside={words} |fwd", 5, 25)
    assert by_layer(attribute(rows.build()))["host_self_ns"].sum() == 100
