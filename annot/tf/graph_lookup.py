"""Map the nodes of an optimized TensorFlow graph to the operations that the program created.

TensorFlow inlines functions and names their nodes ``call/node``. Its passes fuse nodes under the name of one of them,
replace nodes by new ones, and lower loops and branches to nodes named ``while/body/_5/node``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from annot.tf.operation_owners import CALLS, CONTROL_FLOW, Operation, Traced
from annot.tf.owners import Owner

_FIRST: Final = frozenset(
    {"BatchMatMul", "BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "FusedBatchNormV3", "MatMul"}
)
"""Operations that come first in a fused operation. Those fused after them are elementwise."""
_COMPOSED: Final = "/unary_ops_composition"
"""The suffix that TensorFlow adds to the name of the last of several unary functions when it composes them."""
_LOWERED: Final = re.compile(r"(?:(body|cond|else|then)|(?:branch(?:es/)?)?(\d+))/_\d+/")
"""The part between the name of a loop or branch and the names of the nodes inside it."""


@dataclass(slots=True)
class Node:
    """A node of an optimized graph; `kind` is its operation type."""

    name: str
    kind: str
    inputs: list[str]
    """Data inputs in TensorFlow's notation, ``name`` or ``name:1``."""
    controls: list[str]
    """Names of the nodes in its control inputs."""
    fused: frozenset[str] = frozenset()
    """Types of the operations that it was fused from."""
    frame: str = ""
    """Name of the loop that it enters."""
    is_value: bool = False
    """Whether it is a variable or a constant, not data of the step."""
    has_side_effects: bool = False
    """Whether it does more than compute its outputs, such as assign a variable."""


@dataclass(slots=True, eq=False)
class Call:
    """An inlined or lowered call of a traced graph, or the optimized graph itself, which has no caller."""

    graph: Traced
    prefix: str = ""
    """Prefix of the names of its operations in the optimized graph."""
    caller: Operation | None = None
    outer: Call | None = None
    """The call whose graph contains `caller`."""


@dataclass(slots=True)
class Origin:
    """The origin of a node: its operation (None: unknown), and the call whose graph contains the operation."""

    operation: Operation | None = None
    call: Call | None = None
    is_part: bool = False
    """Whether TensorFlow created the node as a part of the operation, such as a loop; its inputs then differ."""
    owners: list[Owner] = field(default_factory=list)
    """Owners of the operation and of those that were fused into the node."""
    fused: list[str] = field(default_factory=list)
    """Names of the operations that were fused into the node."""

    @property
    def graph(self) -> Mapping[str, Operation]:
        """The operations of its graph by name; empty for an unknown origin and for a part of an operation."""
        return {} if self.call is None or self.is_part else self.call.graph.operations

    @property
    def prefix(self) -> str:
        """The prefix of the names of these operations in the optimized graph."""
        return "" if self.call is None else self.call.prefix


def find(nodes: Sequence[Node], graphs: Sequence[Traced]) -> tuple[list[Origin], dict[Owner, str]]:
    """Return the origin of each node, and for each owner the name prefix of the graph that has its sizes.

    `graphs` has the candidates for the traced form of the optimized graph, the likeliest last.
    """
    names = [node.name.removesuffix(_COMPOSED) for node in nodes]
    calls = [(Call(graph), dict[str, Call | None]()) for graph in reversed(graphs)]
    candidates = [[_origin(name, *call) for name in names] for call in calls] or [[Origin() for _ in nodes]]
    origins = max(candidates, key=lambda origins: sum(origin.operation is not None for origin in origins))
    index = {node.name: i for i, node in enumerate(nodes)}
    traced_owners = [_traced_owners(node, origin, index) for node, origin in zip(nodes, origins, strict=True)]
    _find_replaced(nodes, index, origins, traced_owners)
    resolve = _Resolve()
    for origin, owners in zip(origins, traced_owners, strict=True):
        if origin.call is not None:
            resolved = [resolve.owner(owner, origin.call) for owner in owners]
            origin.owners = [owner for owner in dict.fromkeys(resolved) if owner is not None]
    return origins, resolve.prefixes


class _Resolve:
    """Finds the owner of each operation, separately for each call of its function."""

    def __init__(self) -> None:
        self.prefixes: dict[Owner, str] = {}
        self._first: dict[Owner, Call] = {}
        self.owner = functools.cache(self._owner)

    def _owner(self, owner: Owner | None, call: Call) -> Owner | None:
        """Return the owner of an operation in this call; without one, the owner of the caller of its graph."""
        if owner is None or owner.graph_id != call.graph.graph_id:
            if call.caller is not None and call.outer is not None:
                return self.owner(call.caller.owner, call.outer)
            return None if owner is None else self.owner(owner.parent, call)
        parent = self.owner(owner.parent, call)
        if self._first.setdefault(owner, call) is not call or parent is not owner.parent:
            other = owner.again(parent)
            if owner.key is not owner:
                other.key = self.owner(owner.key, call) or other
            owner = other
        self.prefixes.setdefault(owner.sized, call.prefix)
        return owner


def tensors(nodes: Sequence[Node], origins: Sequence[Origin]) -> dict[str, str]:
    """Map tensors that the optimized graph lacks to its tensors with the same values or the same shape.

    Optimization removes the arguments of inlined functions and the operations that it fuses. The inputs of the
    operations that used them show the tensors that replace them.
    """
    same: dict[str, str] = {}
    for node, origin in zip(nodes, origins, strict=True):
        for name in origin.fused:  # same shape: operations fused after a convolution or GEMM are elementwise
            same.setdefault(f"{origin.prefix}{name}:0", node.name)
        for new, old in _input_pairs(node, origin):
            same.setdefault(origin.prefix + old, new)
    return same


def _input_pairs(node: Node, origin: Origin) -> list[tuple[str, str]]:
    """Return pairs of an input of a node and the traced input; a fused node has the inputs of its first operation."""
    operation = origin.operation
    for name in origin.fused:
        fused = origin.graph[name]
        operation = fused if fused.kind in _FIRST else operation
    return [*zip(node.inputs, operation.inputs, strict=False)] if operation is not None and origin.graph else []


def _origin(name: str, call: Call, called: dict[str, Call | None]) -> Origin:
    """Return the origin of a node, from its name in a call only; `called` caches the calls by prefix."""
    operations, caller = call.graph.operations, None
    for end in (slash.start() for slash in re.finditer("/", name)):
        operation = operations.get(name[:end])
        if operation is None or operation.kind not in CALLS:
            continue
        rest, branch = name[end + 1 :], ""
        lowered = _LOWERED.match(rest) if operation.kind in CONTROL_FLOW else None
        if lowered:
            rest, branch = rest[lowered.end() :], lowered[1] or lowered[2]
        prefix = call.prefix + name[: len(name) - len(rest)]
        if prefix not in called:
            graph = call.graph.called(name[:end], branch)  # None: annot did not see it traced
            called[prefix] = None if graph is None else Call(graph, prefix, operation, call)
        inner = called[prefix]
        origin = _origin(rest, inner, called) if inner is not None else None
        if origin is not None and origin.operation is not None:
            return origin
        if inner is None or (lowered is None and operation.kind in CONTROL_FLOW):
            caller = operation
    if name in operations:
        return Origin(operations[name], call)
    return Origin(caller, call, is_part=True) if caller is not None else Origin()


def _find_replaced(
    nodes: Sequence[Node], index: Mapping[str, int], origins: list[Origin], owners: list[list[Owner | None]]
) -> None:
    """Find the origins of nodes that TensorFlow's passes have replaced, from the inputs of the nodes that use them."""
    changed = True
    while changed:
        changed = False
        for node, origin in zip(nodes, origins, strict=True):
            for new, old in _input_pairs(node, origin):
                name, traced_name = node_of(new), node_of(old)
                i = index.get(name)
                if i is None or origins[i].operation is not None or origin.prefix + traced_name in index:
                    continue
                operation = origin.graph.get(traced_name)
                if operation is not None:
                    origins[i] = Origin(operation, origin.call)
                    owners[i] = _traced_owners(nodes[i], origins[i], index)
                    changed = True


def _traced_owners(node: Node, origin: Origin, index: Mapping[str, int]) -> list[Owner | None]:
    """Return the owners of the operation of a node, and of those that were fused into the node, as traced."""
    if origin.operation is None:
        return []
    owners = [origin.operation.owner]
    pending = list(origin.operation.inputs) if origin.operation.kind not in _FIRST and node.fused else []
    while pending:
        name = node_of(pending.pop())
        operation = origin.graph.get(name)
        if operation is None or operation.kind not in node.fused or origin.prefix + name in index:
            continue
        owners.append(operation.owner)
        origin.fused.append(name)
        if operation.kind not in _FIRST:
            pending.extend(operation.inputs)
    return owners


def node_of(tensor: str) -> str:
    """Return the node of a tensor such as ``name:1``."""
    return tensor.partition(":")[0]
