"""A graph that TensorFlow has optimized, as a message, with the operations of its ranges added."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tensorflow.core.framework import graph_pb2

from annot.tf.lookup import Graph, Node, find
from annot.tf.owners import Owner
from annot.tf.plan import Point, plan

__all__ = ["OPERATION", "padded", "rewrite"]

OPERATION: Final = "AnnotRange"
_RESOURCE: Final = 20
"""DT_RESOURCE of tensorflow/core/framework/types.proto."""
_INT32: Final = 3
_graphs: Final = itertools.count()


def rewrite(
    message: bytes,
    graphs: Iterable[Graph],
    number_of: Callable[[Owner], int],
    fetches: Callable[[], Mapping[str, Sequence[int]]] = dict,
) -> bytes | None:
    """Return the graph with ranges; None where it stays as it is.

    Args:
        message: a GraphDef.
        graphs: the operations of every graph that was traced, the latest last.
        number_of: makes a range of an owner, and returns its number.
        fetches: returns the nodes that a session of TensorFlow 1 fetches, with the types of their outputs.
    """
    graph = graph_pb2.GraphDef.FromString(message)
    if any(node.op == OPERATION for node in graph.node):
        return None
    nodes = [_node(one) for one in graph.node]
    found = find(nodes, graphs)
    points = plan(nodes, found)
    if not points:
        return None
    _Writer(graph, points, number_of).write()
    if not any(node.op == "_Retval" for node in graph.node):
        _keep_closes(graph, fetches())
    return bytes(graph.SerializeToString())


def padded(message: bytes, count: int) -> bytes:
    """Return a graph with nodes added that do nothing, which TensorFlow removes in its next round of optimization."""
    graph = graph_pb2.GraphDef.FromString(message)
    for i in range(count):
        graph.node.add(name=f"annot/padding_{i}", op="NoOp", device=graph.node[0].device)
    return bytes(graph.SerializeToString())


def _node(one: Any) -> Node:
    inputs = [text for text in one.input if not text.startswith("^")]
    controls = [text[1:] for text in one.input if text.startswith("^")]
    node = Node(one.name, one.op, inputs, controls)
    if one.op == "Enter":
        node.frame = one.attr["frame_name"].s.decode()
    elif one.op == "_Arg":
        node.is_value = one.attr["T"].type == _RESOURCE
    elif one.op.startswith(("_Fused", "_MklFused", "_MklNativeFused")):
        base = one.op.rpartition("Fused")[2]
        node.fused = frozenset({base, "Add", "AddV2", *(name.decode() for name in one.attr["fused_ops"].list.s)})
    elif one.op == "_UnaryOpsComposition":
        node.fused = frozenset(name.decode() for name in one.attr["op_names"].list.s)
    elif one.op == "AddN":
        node.fused = frozenset({"Add", "AddV2", "AddN"})
    else:
        node.is_value = one.op != "Placeholder"
    return node


class _Writer:
    """Adds the points of a plan to a graph."""

    def __init__(self, graph: Any, points: Sequence[Point], number_of: Callable[[Owner], int]) -> None:
        self._graph, self._points = graph, points
        self._nodes = list(graph.node)
        self._numbers: dict[Owner, int] = {}
        self._number_of = number_of
        # A session of TensorFlow 1 shares the kernels of all its graphs by name.
        self._prefix = f"annot/{next(_graphs)}"
        self._names = {id(point): f"{self._prefix}/range_{i}" for i, point in enumerate(self._points)}
        self._shapes: dict[tuple[str, int], str] = {}

    def write(self) -> None:
        """Add them all."""
        for point in self._points:
            self._add(point)

    def _add(self, point: Point) -> None:
        node = self._graph.node.add(name=self._names[id(point)], op=OPERATION)
        neighbours = [*point.before, *point.after]
        node.device = self._nodes[neighbours[0]].device if neighbours else self._nodes[0].device
        shapes: list[str] = []
        opened: list[int] = []
        for owner in point.open:
            known = self._shapes_of(owner, point)
            opened += [self._number(owner), len(shapes), len(known)]
            shapes += known
        node.input.extend(shapes)
        node.input.extend(f"^{self._control(i, point)}" for i in sorted(point.after))
        node.input.extend(f"^{self._names[id(other)]}" for other in point.points)
        node.attr["S"].i = len(shapes)
        node.attr["close"].list.i.extend(self._number(owner) for owner in point.close)
        node.attr["open"].list.i.extend(opened)
        for i in point.before:
            self._nodes[i].input.append(f"^{node.name}")

    def _number(self, owner: Owner) -> int:
        if owner not in self._numbers:
            self._numbers[owner] = self._number_of(owner)
        return self._numbers[owner]

    def _control(self, i: int, point: Point) -> str:
        """Return the node to wait for; behind a Switch, one that runs in the branch of the range alone."""
        node = self._nodes[i]
        if node.op != "Switch":
            return str(node.name)
        taken = next((text for j in point.before for text in self._nodes[j].input if _is_of(text, node.name)), None)
        if taken is None:
            return str(node.name)
        name = f"{self._names[id(point)]}/{i}"
        same = self._graph.node.add(name=name, op="Identity", input=[taken], device=node.device)
        same.attr["T"].CopyFrom(node.attr["T"])
        return name

    def _shapes_of(self, owner: Owner, point: Point) -> list[str]:
        """Return tensors with the shapes that the text leaves open."""
        sized = zip(owner.sized.sizes, point.sizes.get(owner, ()), strict=False)
        return [self._shape(self._nodes[i], output, source.kind) for source, (i, output) in sized]

    def _shape(self, source: Any, output: int, kind: int) -> str:
        key = source.name, output
        if key not in self._shapes:
            self._shapes[key] = f"{self._prefix}/shape_{len(self._shapes)}"
            node = self._graph.node.add(name=self._shapes[key], op="Shape", device=source.device)
            node.input.append(f"{source.name}:{output}" if output else source.name)
            node.attr["T"].type, node.attr["out_type"].type = kind, _INT32
        return self._shapes[key]


def _is_of(text: str, name: str) -> bool:
    return text == name or text.startswith(f"{name}:")


def _keep_closes(graph: Any, fetches: Mapping[str, Sequence[int]]) -> None:
    """Have a session run the operations that close ranges, which nothing waits for: its fetches wait for them."""
    waited = {text[1:] for node in graph.node for text in node.input if text.startswith("^")}
    closes = [f"^{node.name}" for node in graph.node if node.op == OPERATION and node.name not in waited]
    if not closes:
        return
    for node in [node for node in graph.node if node.name in fetches]:
        _put_behind(graph, node, closes, fetches[node.name])


def _put_behind(graph: Any, node: Any, closes: Sequence[str], kinds: Sequence[int]) -> None:
    """Put a node that passes on the outputs of another one into its place, behind the closes."""
    name, inner = node.name, f"{node.name}/annot"
    node.name = inner
    for other in graph.node:
        for place, text in enumerate(other.input):
            if _is_of(text.lstrip("^"), name):
                other.input[place] = text.replace(name, inner, 1)
    outer = graph.node.add(name=name, op="IdentityN" if kinds else "NoOp", device=node.device)
    outer.input.extend(f"{inner}:{i}" for i in range(len(kinds)))
    outer.input.extend([*closes] if kinds else [f"^{inner}", *closes])
    if kinds:
        outer.attr["T"].list.type.extend(kinds)
