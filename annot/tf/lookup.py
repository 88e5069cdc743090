"""From the nodes of a graph that TensorFlow has optimized back to the operations that the program created.

TensorFlow inlines functions, and names their nodes ``call/node``; its passes fuse nodes under the name of one of them,
replace nodes by new ones, and lower loops and branches to nodes named ``while/body/_5/node``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from annot.tf.noting import Made
from annot.tf.owners import Owner

__all__ = ["Found", "Node", "find", "tensors"]

_FUNCTIONS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_CONTROL_FLOW: Final = frozenset({"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While"})
_CALLS: Final = _FUNCTIONS | _CONTROL_FLOW
_FIRST: Final = frozenset(
    {"BatchMatMul", "BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "FusedBatchNormV3", "MatMul"}
)
"""What a fused operation begins with; all that follows works element by element."""
_COMPOSED: Final = "/unary_ops_composition"
"""What TensorFlow adds to the name of the last of several functions of one number that it composes."""
_LOWERED: Final = re.compile(r"(?:body|branch\d*|cond|else|then|branches/\d+)/_\d+/|\d+/_\d+/")
"""What stands between the name of a loop or branch and the names of the nodes inside it."""

Graph: TypeAlias = Mapping[str, Made]


@dataclass(slots=True)
class Node:
    """A node of an optimized graph.

    Args:
        name: its name.
        kind: its type.
        inputs: the data inputs as TensorFlow writes them, ``name`` or ``name:1``.
        controls: the names of the nodes in its control inputs.
        fused: the types of the operations that it was fused from.
        frame: the loop that it enters.
        is_value: whether it is a variable or a constant; not data of the step.
    """

    name: str
    kind: str
    inputs: list[str]
    controls: list[str]
    fused: frozenset[str] = frozenset()
    frame: str = ""
    is_value: bool = False


@dataclass(slots=True)
class Found:
    """Where a node comes from.

    Args:
        made: the operation of that name; None if it is unknown.
        graph: the operations of the graph that it was created in.
        prefix: what the names of this graph's operations begin with in the optimized graph.
        call: the same of the function that was called, in whose loops and branches the graph may be.
        owners: of the operation, and of those that were fused into it.
        fused: the names of the operations that were fused into it.
    """

    made: Made | None = None
    graph: Graph = field(default_factory=dict)
    prefix: str = ""
    call: str = ""
    owners: list[Owner] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)


def find(nodes: Sequence[Node], graphs: Iterable[Graph]) -> list[Found]:
    """Return where each node comes from.

    Args:
        nodes: of the optimized graph.
        graphs: the operations of every graph that may be part of it; the one that is optimized comes last, if it is
            known, and before it the latest.
    """
    search = _Search(list(graphs))
    found = search.by_name([node.name for node in nodes])
    places = {node.name: i for i, node in enumerate(nodes)}
    for node, one in zip(nodes, found, strict=True):
        _find_owners(node, one, places)
    _find_replaced(nodes, places, found)
    _tell_calls_apart(found)
    return found


def _tell_calls_apart(found: Sequence[Found]) -> None:
    """Have each call of a function that TensorFlow has inlined twice own its operations."""
    places: dict[str, set[int]] = {}
    for one in found:
        if one.made is not None:
            places.setdefault(one.call, set()).add(one.made.place)
    first: dict[Owner, str] = {}
    others: dict[tuple[Owner, str], Owner] = {}

    def instance(owner: Owner, call: str) -> Owner:
        around = [one for one in places if call.startswith(one) and owner.place in places[one]]
        call = max(around, key=len, default=call)  # the call of the function that the owner was made for
        parent = None if owner.parent is None else instance(owner.parent, call)
        if first.setdefault(owner, call) == call:
            return owner
        if (owner, call) not in others:
            others[owner, call] = owner.again(parent)
        return others[owner, call]

    for one in found:
        one.owners = [instance(owner, one.call) for owner in one.owners]


def tensors(nodes: Sequence[Node], found: Sequence[Found]) -> dict[str, str]:
    """Return, for tensors whose operations are gone, the tensors of the graph with the same values or shape.

    An argument of an inlined function is gone, and so is what was fused: what takes their place among the inputs of the
    operations that use them is known.
    """
    same: dict[str, str] = {}
    for node, one in zip(nodes, found, strict=True):
        for name in one.fused:  # what follows a convolution or product in a fused operation works element by element
            same.setdefault(f"{one.prefix}{name}:0", node.name)
        for given, was in _aligned(node, one):
            same.setdefault(one.prefix + was, given)
    return same


def _aligned(node: Node, found: Found) -> list[tuple[str, str]]:
    """Return the inputs of a node beside those that the program gave it; of a fused one, those of what comes first."""
    made = found.made
    for name in found.fused:
        first = found.graph[name]
        made = first if first.kind in _FIRST else made
    return [*zip(node.inputs, made.inputs, strict=False)] if made is not None and found.graph else []


class _Search:
    """The graphs by the names of their operations."""

    def __init__(self, graphs: list[Graph]) -> None:
        self._graphs = graphs
        self._calls = {name: made.kind for graph in graphs for name, made in graph.items() if made.kind in _CALLS}

    def by_name(self, names: Sequence[str]) -> list[Found]:
        """Return what is found by name alone: of several graphs that hold a name, the one that holds most of its kind.

        Two traces of one function have the same names; the later one counts, since TensorFlow optimizes a function
        right after its trace.
        """
        candidates = [self._candidates(name.removesuffix(_COMPOSED)) for name in names]
        votes: Counter[tuple[str, int]] = Counter()
        for splits in candidates:
            for prefix, _, rest in splits:
                votes.update((prefix, i) for i, graph in enumerate(self._graphs) if rest in graph)
        best: dict[str, int] = {}
        for (prefix, i), count in votes.items():  # ties go to the graph that comes last
            if prefix not in best or (count, i) > (votes[prefix, best[prefix]], best[prefix]):
                best[prefix] = i
        return [self._best(splits, best) for splits in candidates]

    def _candidates(self, name: str, prefix: str = "", call: str = "") -> list[tuple[str, str, str]]:
        """Return the ways to read a name, that with most calls first: prefix, call, name of the operation."""
        found: list[tuple[str, str, str]] = []
        end = name.find("/")
        while end >= 0:
            kind = self._calls.get(name[:end])
            lowered = _LOWERED.match(name, end + 1) if kind in _CONTROL_FLOW else None
            if lowered or kind in _FUNCTIONS:
                rest = name[lowered.end() if lowered else end + 1 :]
                inner = prefix + name[: len(name) - len(rest)]
                found += self._candidates(rest, inner, call if lowered else inner)
            end = name.find("/", end + 1)
        return [*found, (prefix, call, name)]

    def _best(self, splits: list[tuple[str, str, str]], best: Mapping[str, int]) -> Found:
        for prefix, call, rest in splits:
            if prefix in best and rest in (graph := self._graphs[best[prefix]]):
                return Found(graph[rest], graph, prefix, call)
        return self._of_call(splits, best)

    def _of_call(self, splits: list[tuple[str, str, str]], best: Mapping[str, int]) -> Found:
        """A node that lowering a loop or branch has made belongs to the loop or branch."""
        for prefix, call, rest in splits:
            graph = self._graphs[best[prefix]] if prefix in best else {}
            end = rest.rfind("/")
            while end >= 0:
                made = graph.get(rest[:end])
                if made is not None and made.kind in _CONTROL_FLOW:
                    return Found(made, {}, prefix, call)
                end = rest.rfind("/", 0, end)
        return Found()


def _find_replaced(nodes: Sequence[Node], places: Mapping[str, int], found: list[Found]) -> None:
    """Find the operations that new nodes of TensorFlow's passes stand for, by the inputs of the nodes after them."""
    changed = True
    while changed:
        changed = False
        for node, one in zip(nodes, found, strict=True):
            for given, was in _aligned(node, one):
                name, before = _node_of(given), _node_of(was)
                place = places.get(name)
                if place is None or found[place].made is not None or one.prefix + before in places:
                    continue
                made = one.graph.get(before)
                if made is not None:
                    found[place] = Found(made, one.graph, one.prefix, one.call)
                    _find_owners(nodes[place], found[place], places)
                    changed = True


def _find_owners(node: Node, found: Found, places: Mapping[str, int]) -> None:
    """Find the owners of an operation and of those that were fused into it."""
    if found.made is None:
        return
    owners = [found.made.owner]
    pending = list(found.made.inputs) if found.made.kind not in _FIRST and node.fused else []
    while pending:
        name = _node_of(pending.pop())
        made = found.graph.get(name)
        if made is None or made.kind not in node.fused or found.prefix + name in places:
            continue
        owners.append(made.owner)
        found.fused.append(name)
        if made.kind not in _FIRST:
            pending.extend(made.inputs)
    found.owners = [owner for owner in dict.fromkeys(owners) if owner is not None]


def _node_of(tensor: str) -> str:
    return tensor.partition(":")[0]
