"""Dependencies between the nodes of a graph, their order, and the loops and branches around each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from annot.tf.graph_lookup import Node

Context: TypeAlias = tuple[tuple[str, ...], frozenset[tuple[str, int]]]
"""The loops around a node, outermost first, and the branches that it runs in."""

SWITCHES: Final = frozenset({"Switch", "_SwitchN"})
"""Nodes that pass their input to one of their outputs."""
CONTROL_FLOW: Final = SWITCHES | {"Enter", "Exit", "LoopCond", "Merge", "NextIteration"}
VALUES: Final = frozenset({"Const", "HostConst", "Placeholder", "VarHandleOp", "VariableV2", "_Arg", "_DeviceArg"})
PASSED_ON: Final = frozenset(
    {"Identity", "IdentityN", "NoOp", "PreventGradient", "Rank", "ReadVariableOp", "Shape", "ShapeN", "Size"}
    | {"Snapshot", "StopGradient", "VariableShape", "_DeviceRetval", "_Retval"}
)
"""Nodes that take no time. They are in no range, and their consumers count as waiting for their inputs directly."""


class Dependencies:
    """The dependencies between the nodes of a graph, where a node is an index into `nodes`."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.index = {node.name: i for i, node in enumerate(nodes)}
        self.ports = [self._ports(node) for node in nodes]
        """The data inputs of each node, as pairs of a node and the number of its output."""
        self.sources = [self._sources(node, ports) for node, ports in zip(nodes, self.ports, strict=True)]
        """The nodes that each node waits for, without the back edges of loops (``NextIteration``)."""
        self.order = in_order(self.sources)
        self.rank = {node: i for i, node in enumerate(self.order)}
        self.consumers = _waiting(self.sources)
        self.early = self._find_early()
        """Whether each node depends only on weights and constants, so that it can run when the step begins."""
        self.free = self._find_free()
        """Early nodes that must run even if a step fails, as at the end of the data, and their early inputs."""
        self.inside: list[Context] = [((), frozenset())] * len(nodes)
        self.outside: list[Context] = [((), frozenset())] * len(nodes)
        self._find_contexts()
        self.racing = self._find_racing()
        """Nodes whose delay may change the order in which TensorFlow adds up a sum, and with it the rounding."""
        self._reaches: list[int] = []
        self._waits: dict[int, frozenset[int]] = {}
        self._users: dict[int, frozenset[int]] = {}

    def _ports(self, node: Node) -> list[tuple[int, int]]:
        ports = [port(text, self.index) for text in node.inputs]
        return [port for port in ports if port is not None and self.nodes[port[0]].kind != "NextIteration"]

    def _sources(self, node: Node, ports: list[tuple[int, int]]) -> list[int]:
        controls = [self.index[name] for name in node.controls if name in self.index]
        return [*dict.fromkeys([*(i for i, _ in ports), *controls])]

    def _find_early(self) -> list[bool]:
        early = [False] * len(self.nodes)
        for i in self.order:
            kind = self.nodes[i].kind
            if kind in VALUES:
                early[i] = self.nodes[i].is_value
            elif kind not in CONTROL_FLOW and not kind.startswith(("Iterator", "Optional")):
                early[i] = all(early[source] for source in self.sources[i])
        return early

    def _find_free(self) -> list[bool]:
        free = [False] * len(self.nodes)
        for i in reversed(self.order):
            free[i] = self.early[i] and (
                self.nodes[i].has_side_effects or any(free[consumer] for consumer in self.consumers[i])
            )
        return free

    def _find_contexts(self) -> None:
        frames: dict[str, Context] = {}
        for i in self.order:
            node = self.nodes[i]
            loops, branches = self._input_context(i)
            self.inside[i] = self.outside[i] = loops, branches
            if node.kind == "Enter":
                frames[node.frame] = loops, branches
                self.outside[i] = (*loops, node.frame), branches
            elif node.kind == "Exit" and loops:
                self.outside[i] = frames.get(loops[-1], (loops[:-1], branches))
            elif node.kind == "Merge" and self.sources[i]:
                each = [self._leaving(port)[1] for port in self.ports[i]]
                self.outside[i] = loops, frozenset.intersection(*each) if each else branches

    def _input_context(self, i: int) -> Context:
        contexts = [self._leaving(port) for port in self.ports[i]]
        contexts += [self.outside[source] for source in self.sources[i]]
        loops = max((context[0] for context in contexts), key=len, default=())
        return loops, frozenset().union(*(context[1] for context in contexts))

    def _leaving(self, port: tuple[int, int]) -> Context:
        """Return the context of an output of a node."""
        source, output = port
        loops, branches = self.outside[source]
        if self.nodes[source].kind in SWITCHES:
            return loops, branches | {(self.nodes[source].inputs[1], output)}
        return loops, branches

    def _find_racing(self) -> frozenset[int]:
        """Return the nodes between the parts of each sum and the last node that all of its parts depend on.

        If a graph is large, TensorFlow's memory optimizer replaces an ``AddN`` by additions to a temporary variable, as
        TensorFlow always does for ``AccumulateNV2``. They run in the order in which the parts are ready. What a node
        before the branches waits for delays all parts alike.
        """
        racing: set[int] = set()
        for i, node in enumerate(self.nodes):
            if node.kind == "DestroyTemporaryVariable":
                additions = [j for j in self.sources[i] if self.nodes[j].kind == "AssignAdd"]
                if len(additions) > 2:  # the order of two does not matter
                    racing.update(self._nodes_since_branches(i))
        racing |= self._loop_nodes(racing)
        return frozenset(_reached(racing, self.sources, lambda j: self.early[j]))

    def _nodes_since_branches(self, end: int) -> list[int]:
        """Return the nodes that `end` depends on after the last node that precedes or follows each of them."""
        nodes = sorted(_reached([end], self.sources, lambda j: not self.early[j]), key=self.rank.__getitem__)
        at = {i: k for k, i in enumerate(nodes)}
        first_use = [min((at[j] for j in self.consumers[i] if j in at), default=0) for i in nodes]
        last_source = [max((at[j] for j in self.sources[i] if j in at), default=-1) for i in nodes]
        used = [*accumulate(first_use, max, initial=0)]  # where each earlier node has a use
        waiting = [*accumulate(reversed(last_source), min)][::-1]
        common = [k for k in range(len(nodes) - 1) if used[k] <= k <= waiting[k + 1]]
        return nodes[common[-1] + 1 :] if common else nodes

    def _loop_nodes(self, nodes: Iterable[int]) -> set[int]:
        """Return all nodes of the loops that some nodes enter or leave."""
        loops = {
            max(self.inside[i][0], self.outside[i][0], key=len)[-1:]
            for i in nodes
            if self.nodes[i].kind in ("Enter", "Exit")
        }
        names = {name for loop in loops for name in loop}
        return {i for i in self.order if not names.isdisjoint(self.inside[i][0])} if names else set()

    def waits_for(self, i: int) -> frozenset[int]:
        """Return the nodes that a node waits for, with nodes that take no time replaced by their own inputs."""
        return self._neighbors(i, self.sources, self._waits, self._is_passed_on)

    def users(self, i: int) -> frozenset[int]:
        """Return the nodes that wait for a node, with nodes that take no time replaced by their consumers."""
        return self._neighbors(i, self.consumers, self._users, lambda j: self.nodes[j].kind in PASSED_ON)

    def _neighbors(
        self, i: int, next_to: list[list[int]], cache: dict[int, frozenset[int]], passes: Callable[[int], bool]
    ) -> frozenset[int]:
        if i not in cache:
            passed = [self._neighbors(j, next_to, cache, passes) for j in next_to[i] if passes(j)]
            cache[i] = frozenset(j for j in next_to[i] if not passes(j)).union(*passed)
        return cache[i]

    def _is_passed_on(self, i: int) -> bool:
        """Return whether a node takes no time. A node behind a Switch counts: it shows which branch runs."""
        return self.nodes[i].kind in PASSED_ON and not any(
            self.nodes[source].kind in CONTROL_FLOW for source in self.sources[i]
        )

    def set_candidates(self, candidates: Iterable[int]) -> None:
        """Compute for every node which of the candidates it depends on, as a bit mask."""
        self._bits = {candidate: 1 << i for i, candidate in enumerate(dict.fromkeys(candidates))}
        self._reaches = [0] * len(self.nodes)
        for i in self.order:
            for source in self.sources[i]:
                self._reaches[i] |= self._reaches[source] | self._bits.get(source, 0)

    def depends(self, i: int, candidates: Iterable[int]) -> bool:
        """Return whether a node depends on one of the candidates, directly or indirectly."""
        return any(self._reaches[i] & self._bits.get(candidate, 0) for candidate in candidates)

    def leads_to(self, candidate: int, nodes: Iterable[int]) -> bool:
        """Return whether a candidate is one of the nodes, or one of them depends on it."""
        return any(i == candidate or self.depends(i, (candidate,)) for i in nodes)

    def last_of(self, nodes: Iterable[int]) -> frozenset[int]:
        """Return the last of some candidates: no other of them depends on these."""
        candidates, before = list(nodes), 0
        for candidate in candidates:
            before |= self._reaches[candidate]
        return frozenset(candidate for candidate in candidates if not before & self._bits[candidate])


def port(text: str, index: dict[str, int]) -> tuple[int, int] | None:
    """Return the node and output number of a data input such as ``name:1``; None if the graph lacks the node."""
    name, _, output = text.partition(":")
    return (index[name], int(output or 0)) if name in index else None


def _waiting(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the nodes that wait for each node."""
    waiting: list[list[int]] = [[] for _ in sources]
    for i, inputs in enumerate(sources):
        for source in inputs:
            waiting[source].append(i)
    return waiting


def _reached(first: Iterable[int], next_to: Sequence[Sequence[int]], wanted: Callable[[int], bool]) -> set[int]:
    """Return some nodes and all wanted nodes that are next to them, directly or through other wanted nodes."""
    seen = set(first)
    pending = list(seen)
    while pending:
        new = {j for j in next_to[pending.pop()] if j not in seen and wanted(j)}
        seen |= new
        pending += new
    return seen


def in_order(sources: list[list[int]]) -> list[int]:
    """Return the nodes in topological order; nodes that wait for a cycle are left out."""
    missing = [len(inputs) for inputs in sources]
    consumers = _waiting(sources)
    order = [i for i, count in enumerate(missing) if not count]
    for i in order:
        for consumer in consumers[i]:
            missing[consumer] -= 1
            if not missing[consumer]:
                order.append(consumer)
    return order
