"""Add the operations of ranges to a graph that TensorFlow has optimized."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from annot.tf.graph_lookup import Node, find, node_of
from annot.tf.graph_order import SWITCHES
from annot.tf.graph_plan import Point, plan
from annot.tf.operation_owners import Traced
from annot.tf.owners import Owner

OPERATION: Final = "AnnotRange"
_RESOURCE: Final = 20
"""DT_RESOURCE of tensorflow/core/framework/types.proto."""
_INT32: Final = 3
_graphs: Final = itertools.count()


def rewrite(
    message: bytes,
    graphs: Sequence[Traced],
    number_of: Callable[[Owner], int],
    output_types: Callable[[str], Sequence[int] | None],
) -> bytes | None:
    """Return a serialized GraphDef with the operations of its ranges; None if the graph stays unchanged.

    Args:
        message: a serialized GraphDef.
        graphs: the traced graphs that it may come from, the likeliest last.
        number_of: registers the range of an owner and returns its number.
        output_types: returns the DataType numbers of the outputs of a node that a TensorFlow 1 session may fetch; None
            for an unknown node.

    Raises:
        ValueError: the graph is too large or has a cycle, see `annot.tf.graph_plan.plan`.
    """
    graph = graph_pb2.GraphDef.FromString(message)
    if any(node.op == OPERATION for node in graph.node):
        return None
    nodes = [_node(node) for node in graph.node]
    points = plan(nodes, *find(nodes, graphs))
    if not points:
        return None
    writer = _Writer(graph, points, number_of)
    for point in points:
        writer.add(point)
    if not any(node.op == "_Retval" for node in graph.node):
        _keep_closes(graph, output_types)
    return bytes(graph.SerializeToString())


def _node(definition: Any) -> Node:
    inputs = [text for text in definition.input if not text.startswith("^")]
    controls = [text[1:] for text in definition.input if text.startswith("^")]
    node = Node(definition.name, definition.op, inputs, controls, has_side_effects=_has_side_effects(definition.op))
    if definition.op == "Enter":
        node.frame = definition.attr["frame_name"].s.decode()
    elif definition.op == "_Arg":
        node.is_value = definition.attr["T"].type == _RESOURCE
    elif definition.op.startswith(("_Fused", "_MklFused", "_MklNativeFused")):
        base = _FUSED.get(definition.op, (definition.op.rpartition("Fused")[2], "Add", "AddV2"))
        node.fused = frozenset({*base, *_names(definition, "fused_ops")})
    elif definition.op == "_UnaryOpsComposition":
        node.fused = frozenset(_names(definition, "op_names"))
    elif definition.op == "AddN":
        node.fused = frozenset({"Add", "AddV2", "AddN"})
    else:
        node.is_value = definition.op != "Placeholder"
    return node


_FUSED: Final = {
    "_FusedBatchNormEx": ("FusedBatchNormV3", "Relu", "Add", "AddV2"),
    "_MklFusedMish": ("Softplus", "Tanh", "Mul"),
}
"""The original operations of fused operations that have no attribute for them."""


@functools.cache
def _has_side_effects(kind: str) -> bool:
    """Return whether an operation has side effects, such as the assignment of a variable."""
    definition = op_def_registry.get(kind)
    return definition is not None and definition.is_stateful and kind not in _READERS


_READERS: Final = frozenset(
    {"HashTableV2", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VarIsInitializedOp"}
    | {"Variable", "VariableV2"}
)
"""Operations that TensorFlow marks as stateful because they read state. They have no side effects."""


def _names(node: Any, attribute: str) -> list[str]:
    # Reading a missing key of a protobuf map adds the key to the message.
    return [name.decode() for name in node.attr[attribute].list.s] if attribute in node.attr else []


class _Writer:
    """Adds the points of a plan to a GraphDef."""

    def __init__(self, graph: Any, points: Sequence[Point], number_of: Callable[[Owner], int]) -> None:
        self._graph = graph
        self._nodes = list(graph.node)
        self._number = functools.cache(number_of)
        # A TensorFlow 1 session shares kernels by node name across its graphs, so names must be unique.
        self._prefix = f"annot/{next(_graphs)}"
        self._names = {id(point): f"{self._prefix}/range_{i}" for i, point in enumerate(points)}
        self._shapes: dict[tuple[str, int], str] = {}

    def add(self, point: Point) -> None:
        """Add the operation of a point."""
        node = self._graph.node.add(name=self._names[id(point)], op=OPERATION)
        neighbors = [*point.before, *point.after]
        node.device = self._nodes[neighbors[0]].device if neighbors else self._nodes[0].device
        shapes: list[str] = []
        opened: list[int] = []
        for owner in point.open:
            sized = zip(owner.sized.sizes, point.sizes.get(owner, ()), strict=False)
            owner_shapes = [self._shape(self._nodes[i], output, source.kind) for source, (i, output) in sized]
            opened += [self._number(owner), len(shapes), len(owner_shapes)]
            shapes += owner_shapes
        node.input.extend(shapes)
        node.input.extend(f"^{self._control(i, point)}" for i in sorted(point.after))
        node.input.extend(f"^{self._names[id(other)]}" for other in point.points)
        node.attr["S"].i = len(shapes)
        node.attr["close"].list.i.extend(self._number(owner) for owner in point.close)
        node.attr["open"].list.i.extend(opened)
        for i in point.before:
            self._nodes[i].input.append(f"^{node.name}")

    def _control(self, i: int, point: Point) -> str:
        """Return the name of the node to wait for; for a Switch, of a new node that runs only in the range's branch."""
        node = self._nodes[i]
        inputs = [text for j in point.before for text in self._nodes[j].input] if node.op in SWITCHES else []
        taken = next((text for text in inputs if node_of(text) == node.name), None)
        if taken is None:
            return str(node.name)
        name = f"{self._names[id(point)]}/{i}"
        same = self._graph.node.add(name=name, op="Identity", input=[taken], device=node.device)
        same.attr["T"].CopyFrom(node.attr["T"])
        return name

    def _shape(self, source: Any, output: int, kind: int) -> str:
        """Return the name of a node that computes the shape of an output."""
        key = source.name, output
        if key not in self._shapes:
            self._shapes[key] = f"{self._prefix}/shape_{len(self._shapes)}"
            node = self._graph.node.add(name=self._shapes[key], op="Shape", device=source.device)
            node.input.append(f"{source.name}:{output}" if output else source.name)
            node.attr["T"].type, node.attr["out_type"].type = kind, _INT32
        return self._shapes[key]


def _keep_closes(graph: Any, output_types: Callable[[str], Sequence[int] | None]) -> None:
    """Make the fetched nodes of a session wait for the operations that close ranges.

    No other node waits for these operations, so the session would not run them.
    """
    waited = {text[1:] for node in graph.node for text in node.input if text.startswith("^")}
    closes = [f"^{node.name}" for node in graph.node if node.op == OPERATION and node.name not in waited]
    own = [node for node in graph.node if node.op != OPERATION]
    used = {node_of(text.lstrip("^")) for node in own for text in node.input}
    for node in [node for node in own if node.name not in used]:  # only fetched nodes have no consumers here
        kinds = output_types(node.name)
        if closes and kinds is not None:
            _put_behind(graph, node, closes, kinds)


def _put_behind(graph: Any, node: Any, closes: Sequence[str], kinds: Sequence[int]) -> None:
    """Replace a node by an IdentityN of its outputs that also waits for the operations that close ranges."""
    name, inner = node.name, f"{node.name}/annot"
    node.name = inner
    for other in graph.node:
        for i, text in enumerate(other.input):
            if node_of(text.lstrip("^")) == name:
                other.input[i] = text.replace(name, inner, 1)
    outer = graph.node.add(name=name, op="IdentityN" if kinds else "NoOp", device=node.device)
    outer.input.extend(f"{inner}:{i}" for i in range(len(kinds)))
    outer.input.extend([*closes] if kinds else [f"^{inner}", *closes])
    if kinds:
        outer.attr["T"].list.type.extend(kinds)
