"""From the nodes of a graph that TensorFlow has optimized back to the operations that the program created.

TensorFlow inlines functions, and names their nodes ``call/node``; its passes fuse nodes under the name of one of them,
replace nodes by new ones, and lower loops and branches to nodes named ``while/body/_5/node``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from annot.tf.noting import Made, Traced
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
_LOWERED: Final = re.compile(r"(?:(body|cond|else|then)|(?:branch(?:es/)?)?(\d+))/_\d+/")
"""What stands between the name of a loop or branch and the names of the nodes inside it."""


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
        acts: whether it does more than to compute its outputs.
    """

    name: str
    kind: str
    inputs: list[str]
    controls: list[str]
    fused: frozenset[str] = frozenset()
    frame: str = ""
    is_value: bool = False
    acts: bool = False


@dataclass(slots=True, eq=False)
class Call:
    """A graph that TensorFlow has inlined or lowered, or the one that it has optimized.

    Args:
        graph: its operations.
        prefix: what their names begin with in the optimized graph.
        made: the operation that calls it; None for the graph that is optimized.
        outer: the graph that this operation is in.
    """

    graph: Traced
    prefix: str = ""
    made: Made | None = None
    outer: Call | None = None


@dataclass(slots=True)
class Found:
    """Where a node comes from.

    Args:
        made: the operation of that name; None if it is unknown.
        call: the graph that it is in.
        is_part: whether TensorFlow has made the node of the operation, as of a loop; its inputs are others then.
        owners: of the operation, and of those that were fused into it.
        fused: the names of the operations that were fused into it.
    """

    made: Made | None = None
    call: Call | None = None
    is_part: bool = False
    owners: list[Owner] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)

    @property
    def graph(self) -> Mapping[str, Made]:
        """The operations beside it."""
        return {} if self.call is None or self.is_part else self.call.graph.operations

    @property
    def prefix(self) -> str:
        """What the names of the operations beside it begin with."""
        return "" if self.call is None else self.call.prefix


def find(nodes: Sequence[Node], graphs: Sequence[Traced]) -> tuple[list[Found], dict[Owner, str]]:
    """Return where each node comes from, and the prefix of the graph in which each owner's sizes are.

    Args:
        nodes: of the optimized graph.
        graphs: every graph that may be the one that is optimized; the one that runs comes last, if it is known, and
            before it the latest.
    """
    names = [node.name.removesuffix(_COMPOSED) for node in nodes]
    top = max(enumerate(graphs), key=lambda one: (_count(names, one[1]), one[0]), default=(0, None))[1]
    if top is None:
        return [Found() for _ in nodes], {}
    search = _Search(top)
    found = [search.by_name(name) for name in names]
    places = {node.name: i for i, node in enumerate(nodes)}
    made_of = [_owners_made(node, one, places) for node, one in zip(nodes, found, strict=True)]
    _find_replaced(nodes, places, found, made_of)
    resolve = _Resolve()
    for one, owners in zip(found, made_of, strict=True):
        if one.call is not None:
            resolved = [resolve.owner(owner, one.call) for owner in owners]
            one.owners = [owner for owner in dict.fromkeys(resolved) if owner is not None]
    return found, resolve.prefixes


def _count(names: Sequence[str], graph: Traced) -> int:
    """Return how many nodes may come from a graph."""
    operations, calls = graph.operations, graph.of_kinds(_CALLS)
    known = sum(map(operations.__contains__, names))
    if not calls:
        return known
    others = (name for name in names if name not in operations)
    return known + sum(any(name[:end] in calls for end in _slashes(name)) for name in others)


def _slashes(name: str) -> list[int]:
    return [i for i, letter in enumerate(name) if letter == "/"]


class _Resolve:
    """Finds out whose each operation is, of all calls of its function."""

    def __init__(self) -> None:
        self.prefixes: dict[Owner, str] = {}
        self._first: dict[Owner, Call] = {}
        self._others: dict[tuple[Owner, Call], Owner] = {}

    def owner(self, owner: Owner | None, call: Call) -> Owner | None:
        """Return the owner of an operation, or that of the operation that calls its graph."""
        if owner is None or owner.place != call.graph.place:
            if call.made is not None and call.outer is not None:
                return self.owner(call.made.owner, call.outer)
            return None if owner is None else self.owner(owner.parent, call)
        parent = self.owner(owner.parent, call)
        if self._first.setdefault(owner, call) is not call or parent is not owner.parent:
            owner = self._again(owner, parent, call)
        self.prefixes.setdefault(owner.sized, call.prefix)
        return owner

    def _again(self, owner: Owner, parent: Owner | None, call: Call) -> Owner:
        if (owner, call) not in self._others:
            made = self._others[owner, call] = owner.again(parent)
            if owner.key is not owner:
                made.key = self.owner(owner.key, call) or made
        return self._others[owner, call]


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
    """The operations of a graph and of those that it calls, by their names in the optimized graph.

    Args:
        top: the graph that was optimized.
    """

    def __init__(self, top: Traced) -> None:
        self._top = Call(top)
        self._inner: dict[str, Call | None] = {}

    def by_name(self, name: str) -> Found:
        """Return where a node comes from by its name alone."""
        return self._within(name, self._top)

    def _within(self, name: str, call: Call) -> Found:
        operations, caller = call.graph.operations, None
        for end in _slashes(name):
            made = operations.get(name[:end])
            if made is None or made.kind not in _CALLS:
                continue
            rest, branch = name[end + 1 :], ""
            lowered = _LOWERED.match(rest) if made.kind in _CONTROL_FLOW else None
            if lowered:
                rest, branch = rest[lowered.end() :], lowered[1] or lowered[2]
            inner = self._called(name[:end], made, branch, call, name[: len(name) - len(rest)])
            found = self._within(rest, inner) if inner is not None else None
            if found is not None and found.made is not None:
                return found
            if inner is None or (lowered is None and made.kind in _CONTROL_FLOW):
                caller = made
        if name in operations:
            return Found(operations[name], call)
        return Found(caller, call, is_part=True) if caller is not None else Found()

    def _called(self, name: str, made: Made, branch: str, call: Call, prefix: str) -> Call | None:
        """Return a graph that an operation calls; None where annot has not seen it traced."""
        prefix = call.prefix + prefix
        if prefix not in self._inner:
            graph = call.graph.called(name).get(branch)
            self._inner[prefix] = None if graph is None else Call(graph, prefix, made, call)
        return self._inner[prefix]


def _find_replaced(
    nodes: Sequence[Node], places: Mapping[str, int], found: list[Found], owners: list[list[Owner | None]]
) -> None:
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
                    found[place] = Found(made, one.call)
                    owners[place] = _owners_made(nodes[place], found[place], places)
                    changed = True


def _owners_made(node: Node, found: Found, places: Mapping[str, int]) -> list[Owner | None]:
    """Return the owners that an operation and those that were fused into it were created with."""
    if found.made is None:
        return []
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
    return owners


def _node_of(tensor: str) -> str:
    return tensor.partition(":")[0]
