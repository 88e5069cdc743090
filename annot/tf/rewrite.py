"""A graph that TensorFlow has optimized, as a message, with the operations of its ranges added."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from annot.tf.lookup import Node, find
from annot.tf.noting import Traced
from annot.tf.owners import Owner
from annot.tf.plan import Point, plan
from annot.tf.shape import SWITCHES
from annot.tf.sums import order_sums

__all__ = ["OPERATION", "count_nodes", "padded", "rewrite"]

OPERATION: Final = "AnnotRange"
_RESOURCE: Final = 20
"""DT_RESOURCE of tensorflow/core/framework/types.proto."""
_INT32: Final = 3
_graphs: Final = itertools.count()


def rewrite(
    message: bytes,
    graphs: Sequence[Traced],
    number_of: Callable[[Owner], int],
    output_types: Callable[[str], Sequence[int] | None] = lambda _: None,
) -> bytes | None:
    """Return the graph with ranges; None where it stays as it is.

    Args:
        message: a GraphDef.
        graphs: every graph that was traced, the latest last.
        number_of: makes a range of an owner, and returns its number.
        output_types: returns the types of the outputs of a node that a session of TensorFlow 1 may fetch; None for a
            node that is not known.
    """
    graph = graph_pb2.GraphDef.FromString(message)
    if any(node.op == OPERATION for node in graph.node):
        return None
    order_sums(graph)
    nodes = [_node(one) for one in graph.node]
    points = plan(nodes, *find(nodes, graphs))
    if not points:
        return None
    writer = _Writer(graph, points, number_of)
    for point in points:
        writer.add(point)
    if not any(node.op == "_Retval" for node in graph.node):
        _keep_closes(graph, output_types)
    return bytes(graph.SerializeToString())


def count_nodes(message: bytes) -> int:
    """Return how many nodes a GraphDef has."""
    return len(graph_pb2.GraphDef.FromString(message).node)


def padded(message: bytes, count: int) -> bytes:
    """Return a graph with nodes added that do nothing, which TensorFlow removes in its next round of optimization."""
    graph = graph_pb2.GraphDef.FromString(message)
    for i in range(count):
        graph.node.add(name=f"annot/padding_{i}", op="NoOp", device=graph.node[0].device)
    return bytes(graph.SerializeToString())


def _node(one: Any) -> Node:
    inputs = [text for text in one.input if not text.startswith("^")]
    controls = [text[1:] for text in one.input if text.startswith("^")]
    node = Node(one.name, one.op, inputs, controls, acts=_acts(one.op))
    if one.op == "Enter":
        node.frame = one.attr["frame_name"].s.decode()
    elif one.op == "_Arg":
        node.is_value = one.attr["T"].type == _RESOURCE
    elif one.op.startswith(("_Fused", "_MklFused", "_MklNativeFused")):
        base = _FUSED.get(one.op, (one.op.rpartition("Fused")[2], "Add", "AddV2"))
        node.fused = frozenset({*base, *_names(one, "fused_ops")})
    elif one.op == "_UnaryOpsComposition":
        node.fused = frozenset(_names(one, "op_names"))
    elif one.op == "AddN":
        node.fused = frozenset({"Add", "AddV2", "AddN"})
    else:
        node.is_value = one.op != "Placeholder"
    return node


_FUSED: Final = {
    "_FusedBatchNormEx": ("FusedBatchNormV3", "Relu", "Add", "AddV2"), "_MklFusedMish": ("Softplus", "Tanh", "Mul"),
}  # fmt: skip
"""What these are fused from, which they do not say."""


@functools.cache
def _acts(kind: str) -> bool:
    """Return whether an operation does more than to compute its outputs, as to assign a variable."""
    known = op_def_registry.get(kind)
    return known is not None and known.is_stateful and kind not in _READERS


_READERS: Final = frozenset(
    {"HashTableV2", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VarIsInitializedOp"}
    | {"Variable", "VariableV2"}
)  # fmt: skip
"""Operations that TensorFlow calls stateful for what they read."""


def _names(node: Any, attribute: str) -> list[str]:
    # A message has an attribute, without a value, as soon as it is asked for.
    return [name.decode() for name in node.attr[attribute].list.s] if attribute in node.attr else []


class _Writer:
    """Adds the points of a plan to a graph."""

    def __init__(self, graph: Any, points: Sequence[Point], number_of: Callable[[Owner], int]) -> None:
        self._graph = graph
        self._nodes = list(graph.node)
        self._numbers: dict[Owner, int] = {}
        self._number_of = number_of
        # A session of TensorFlow 1 shares the kernels of all its graphs by name.
        self._prefix = f"annot/{next(_graphs)}"
        self._names = {id(point): f"{self._prefix}/range_{i}" for i, point in enumerate(points)}
        self._shapes: dict[tuple[str, int], str] = {}

    def add(self, point: Point) -> None:
        """Add the operation of a point."""
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
        if node.op not in SWITCHES:
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


def _keep_closes(graph: Any, output_types: Callable[[str], Sequence[int] | None]) -> None:
    """Have a session run the operations that close ranges, which nothing waits for: what it fetches waits for them."""
    waited = {text[1:] for node in graph.node for text in node.input if text.startswith("^")}
    closes = [f"^{node.name}" for node in graph.node if node.op == OPERATION and node.name not in waited]
    own = [node for node in graph.node if node.op != OPERATION]
    used = {text.lstrip("^").partition(":")[0] for node in own for text in node.input}
    for node in [node for node in own if node.name not in used]:  # the last of what it fetches; nothing else is left
        kinds = output_types(node.name)
        if closes and kinds is not None:
            _put_behind(graph, node, closes, kinds)


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
