"""Plan the points of a graph where ranges open and close, and the control edges of these points.

A range opens when the first of its nodes is ready, and closes when the last has run. A point waits only for nodes that
its successors already wait for, so the nodes of the graph keep their order and their parallelism. There are four
exceptions:

- nodes that depend only on weights wait for their layer
- the backward of a layer waits for its gradient
- the update of an optimizer waits for all gradients
- a range opens after the close of a range that waits for the same nodes

The exceptions do not delay nodes that change state without data, because TensorFlow runs them even if the step fails.
No point delays a node that can change the order of a sum (`Dependencies.racing`), not even by the time that a point
takes. A range that would open before such a node is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from annot.emit import client
from annot.tf.graph_lookup import Node, Origin, tensors
from annot.tf.graph_order import CONTROL_FLOW, PASSED_ON, VALUES, Context, Dependencies, in_order, port
from annot.tf.owners import Owner, innermost

_MAX_NODES: Final = 200_000


@dataclass(slots=True, eq=False)
class Point:
    """An operation that closes and opens ranges."""

    after: frozenset[int] = frozenset()
    """Indices of the nodes that it waits for."""
    context: Context = ((), frozenset())
    """The loops and branches around it."""
    points: list[Point] = field(default_factory=list)
    """The points that it waits for."""
    close: list[Owner] = field(default_factory=list)
    """Owners whose ranges it closes, innermost first."""
    open: list[Owner] = field(default_factory=list)
    """Owners whose ranges it opens, outermost first."""
    before: list[int] = field(default_factory=list)
    """Indices of the nodes that wait for it."""
    sizes: dict[Owner, list[tuple[int, int]]] = field(default_factory=dict)
    """For owners whose labels have unknown sizes, the node outputs with these sizes."""


def plan(nodes: Sequence[Node], origins: Sequence[Origin], prefixes: Mapping[Owner, str]) -> list[Point]:
    """Return the points where the ranges of a graph open and close; empty for a graph without owners.

    `origins` and `prefixes` come from `annot.tf.graph_lookup.find`.

    Raises:
        ValueError: the graph is too large, or it has a cycle other than a TensorFlow loop.
    """
    if not any(origin.owners for origin in origins):
        return []
    if len(nodes) > _MAX_NODES:
        raise ValueError(f"the graph has {len(nodes)} nodes, more than {_MAX_NODES}")
    graph = Dependencies(nodes)
    same = tensors(nodes, origins)
    for_gradients = _gradient_nodes(graph, origins)
    for may_wait in (True, False):  # without waits for more than the inputs of a node, cycles are impossible
        groups = _groups(graph, origins)
        for group in groups:
            group.sizes = _sizes(group.owner.sized, graph.index, same, prefixes)
        planned = _Points(graph, groups, for_gradients, may_wait)
        points = planned.plan()
        if _is_acyclic(graph, points):
            _warn_of_sums(planned.left_out)
            return points
    raise ValueError("the nodes of the graph form a cycle")


def _warn_of_sums(left_out: Sequence[Owner]) -> None:
    if left_out:
        layers = [*dict.fromkeys(layer.layer for owner in left_out if (layer := owner.tag()) is not None)]
        shown = f" ({', '.join([*layers[:3], '…'][: len(layers)])})" if layers else ""
        client.warn_once(
            f"{len(left_out)} ranges are left out of a TensorFlow graph{shown}: TensorFlow adds up results in the "
            "order in which they are ready, and these ranges could change the order"
        )


def _sizes(
    owner: Owner, index: dict[str, int], same: Mapping[str, str], prefixes: Mapping[Owner, str]
) -> list[tuple[int, int]]:
    """Return the node outputs with the open sizes of a label; empty if the graph lacks one of them."""
    names = [prefixes.get(owner, "") + source.name for source in owner.sizes]
    shown = [name if name.partition(":")[0] in index else same.get(name, name) for name in names]
    outputs = [port(name, index) for name in shown]
    return [output for output in outputs if output is not None] if None not in outputs else []


def _gradient_nodes(graph: Dependencies, origins: Sequence[Origin]) -> list[bool]:
    """Return which nodes compute gradients. A node of unknown origin does if a node that it waits for does."""
    computes_gradient = [origin.operation is not None and origin.operation.for_gradient for origin in origins]
    for i in graph.order:
        if origins[i].operation is None:
            computes_gradient[i] = any(computes_gradient[source] for source in graph.sources[i])
    return computes_gradient


def _is_acyclic(graph: Dependencies, points: Sequence[Point]) -> bool:
    """Return whether the graph with the points is free of cycles."""
    first = len(graph.nodes)
    numbers = {id(point): first + i for i, point in enumerate(points)}
    sources = [list(inputs) for inputs in graph.sources]
    for point in points:
        sized = [i for outputs in point.sizes.values() for i, _ in outputs]
        sources.append([*point.after, *sized, *(numbers[id(other)] for other in point.points)])
        for i in point.before:
            sources[i].append(numbers[id(point)])
    return len(in_order(sources)) == len(sources)


# ---------------------------------------------------------------- the nodes of each range


@dataclass(slots=True)
class _Group:
    """The nodes of one range."""

    owner: Owner
    nodes: set[int] = field(default_factory=set)
    """The nodes that determine when the range opens and closes."""
    weights: list[int] = field(default_factory=list)
    """Nodes that depend only on weights."""
    first: list[int] = field(default_factory=list)
    """Nodes that do not wait for other nodes of the group."""
    last: list[int] = field(default_factory=list)
    """Nodes that no other node of the group waits for."""
    context: Context = ((), frozenset())
    """The loops and branches around the range."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """The node outputs with the sizes that the label leaves open."""


def _groups(graph: Dependencies, origins: Sequence[Origin]) -> list[_Group]:
    """Return the nodes by owner, outermost owner first. Nodes fused from several layers have a joint owner."""
    groups: dict[Owner, _Group] = {}
    for i, owner in _owned_nodes(graph, origins):
        for enclosing in owner.chain():
            groups.setdefault(enclosing, _Group(enclosing)).nodes.add(i)
    return sorted(groups.values(), key=lambda group: len(group.owner.chain()))


def _owned_nodes(graph: Dependencies, origins: Sequence[Origin]) -> list[tuple[int, Owner]]:
    joined: dict[frozenset[Owner], Owner] = {}
    owned: list[tuple[int, Owner]] = []
    for i in graph.order:
        kind = graph.nodes[i].kind
        if origins[i].owners and kind not in VALUES and kind not in PASSED_ON and kind != "NextIteration":
            owned.append((i, _single_owner(origins[i].owners, joined)))
    _assign_unowned(graph, origins, owned)
    # The work of a fused layer on its weights belongs to the fused operation.
    fused = {member: owner for members, owner in joined.items() for member in members}
    return [(i, fused.get(owner, owner) if graph.early[i] else owner) for i, owner in owned]


def _assign_unowned(graph: Dependencies, origins: Sequence[Origin], owned: list[tuple[int, Owner]]) -> None:
    """Give nodes that sum gradients, and nodes of unknown origin, the innermost owner that their neighbors share."""
    owners = dict(owned)
    for i in graph.order:
        operation, kind = origins[i].operation, graph.nodes[i].kind
        if i in owners or kind in VALUES or kind in PASSED_ON or kind in CONTROL_FLOW or graph.early[i]:
            continue
        if operation is None or operation.for_gradient:
            around = [j for j in graph.waits_for(i) | graph.users(i) if not graph.early[j]]
            shared = innermost([owners[j].chain() if j in owners else [] for j in around])
            if shared is not None:
                owners[i] = shared
                owned.append((i, shared))


def _single_owner(owners: list[Owner], joined: dict[frozenset[Owner], Owner]) -> Owner:
    """Return the single owner of a node; for a node fused from several layers, their joint owner."""
    inner = [owner for owner in owners if not any(owner is not other and owner in other.chain() for other in owners)]
    if len(inner) == 1:
        return inner[0]
    key = frozenset(inner)
    if key not in joined:
        joined[key] = Owner.joined(inner[::-1])
    return joined[key]


# ---------------------------------------------------------------- the points


@dataclass(slots=True)
class _Points:
    """The points of all ranges. Ranges that open or close after the same nodes share a point."""

    _graph: Dependencies
    _groups: list[_Group]
    _computes_gradient: Sequence[bool]
    """Whether each node computes gradients."""
    _may_wait: bool
    """Whether nodes may wait for more than their inputs."""
    left_out: list[Owner] = field(default_factory=list)
    """Owners whose ranges could change the order of a sum."""
    _points: dict[tuple[frozenset[int], Context], Point] = field(default_factory=dict)

    def plan(self) -> list[Point]:
        """Return the points in an order that respects their dependencies."""
        self._groups = [group for group in self._groups if self._bound(group)]
        self._graph.set_candidates(i for group in self._groups for i in self._candidates(group))
        self._groups = [group for group in self._groups if self._opens_in_time(group)]
        openings = [self._openings(group) for group in self._groups]
        for group in reversed(self._groups):  # the innermost first
            self._point(frozenset(group.last), group.context).close.append(group.owner)
        for group, opening in zip(self._groups, openings, strict=True):
            self._open(group, opening)
        self._order_opens()
        self._order_closes()
        return [*self._points.values()]

    def _candidates(self, group: _Group) -> Iterator[int]:
        """Yield the nodes that may come before or after the points of a group."""
        for i in group.first:
            yield from self._graph.waits_for(i) - group.nodes
        yield from (i for i, _ in group.sizes)
        yield from group.weights
        yield from group.first

    def _point(self, after: frozenset[int], context: Context) -> Point:
        # TensorFlow rejects control edges into a loop from outside.
        after = frozenset(i for i in after if self._may_wait_for(i, context))
        return self._points.setdefault((after, context), Point(after, context))

    def _may_wait_for(self, i: int, context: Context) -> bool:
        loops, branches = self._graph.outside[i]
        return loops == context[0] and branches <= context[1]

    def _bound(self, group: _Group) -> bool:
        """Find the first and last nodes of a group; return whether it can have a range."""
        graph, nodes = self._graph, group.nodes
        early = {i for i in nodes if graph.early[i]}
        if len(early) < len(nodes):
            group.weights = [i for i in early if graph.users(i) <= nodes]
            nodes = group.nodes = nodes - early
        contexts = [graph.outside[i] if graph.nodes[i].kind in ("Exit", "Merge") else graph.inside[i] for i in nodes]
        context = group.context = min(contexts, key=lambda candidate: (len(candidate[0]), len(candidate[1])))
        if not all(_is_inside(candidate, context) for candidate in contexts):
            return False
        entered, left = graph.inside, graph.outside
        group.first = [i for i in nodes if entered[i] == context and nodes.isdisjoint(graph.waits_for(i))]
        group.last = [i for i in nodes if left[i] == context and nodes.isdisjoint(graph.users(i))]
        if group.owner.backward_of is not None and self._may_wait:
            self._find_gradient(group)
        group.first.sort(key=graph.rank.__getitem__)
        return bool(group.first and group.last)

    def _opens_in_time(self, group: _Group) -> bool:
        """Return whether the range can open before each of its nodes without a delay of nodes that decide a sum."""
        graph = self._graph
        racing = graph.racing.intersection(group.first)
        group.first = [i for i in group.first if i not in racing]
        if all(graph.depends(i, group.first) for i in racing):
            return True
        self.left_out.append(group.owner)
        return False

    def _find_gradient(self, group: _Group) -> None:
        """Let a backward range begin with the first nodes that need the incoming gradient, if there is one.

        The nodes that need only values of the forward, such as shapes, wait for the range.
        """
        graph, nodes = self._graph, group.nodes
        early = all(graph.early[i] for i in nodes)  # for example if weights are the only inputs of the graph
        reached: set[int] = set()
        first: list[int] = []
        kept: list[int] = []
        for i in sorted(nodes, key=graph.rank.__getitem__):
            if self._is_stored(i):
                kept.append(i)
                continue
            waits = graph.waits_for(i)
            computed = [j for j in waits - nodes if self._computes_gradient[j] and graph.nodes[j].kind not in VALUES]
            if not reached.isdisjoint(waits):
                reached.add(i)
            elif any(early or not graph.early[j] for j in computed):
                reached.add(i)
                if graph.inside[i] == group.context:
                    first.append(i)
        if first:
            group.weights += [i for i in group.first if i not in reached and i not in kept]
            group.first = first + kept

    def _is_stored(self, i: int) -> bool:
        """Return whether a node reads a forward value that a loop has stored for its gradients."""
        return self._graph.nodes[i].kind == "TensorListPopBack"

    def _openings(self, group: _Group) -> dict[frozenset[int], list[int]]:
        """Return the first nodes of a group, grouped by the nodes that they wait for."""
        graph = self._graph
        openings: dict[frozenset[int], list[int]] = {}
        for i in group.first:
            waits = graph.waits_for(i) - group.nodes
            late = [source for source in waits if not graph.early[source]]
            openings.setdefault(graph.last_of(late or waits), []).append(i)
        if not self._may_wait:
            return openings
        early = [after for after in openings if all(graph.early[i] for i in after)]
        if len(early) < len(openings):  # constant inputs of a loop wait for the range, unless only constants open it
            for after in early:
                group.weights += openings.pop(after)
        if len(openings) > 1 and (group.owner.waits or any(map(self._is_stored, group.first))):
            firsts = [i for nodes in openings.values() for i in nodes]
            after = frozenset(i for i in frozenset().union(*openings) if not graph.depends(i, firsts))
            openings = {graph.last_of(after): firsts}
        elif len(openings) > 1 and group.owner.backward_of is not None:
            openings = self._wait_for_gradient(openings)
        after = next(iter(openings))
        openings[after] += [i for i in group.weights if not graph.leads_to(i, after)]  # others would form a cycle
        return openings

    def _wait_for_gradient(self, openings: dict[frozenset[int], list[int]]) -> dict[frozenset[int], list[int]]:
        """Let nodes that depend only on forward values wait for the gradient, which comes last."""
        rank = self._graph.rank
        last = max(openings, key=lambda after: max((rank[i] for i in after), default=-1))
        kept = {last: list(openings[last])}
        for after, before in openings.items():
            if after is not last:
                leads = any(self._graph.leads_to(i, last) for i in before)
                kept.setdefault(after if leads else last, []).extend(before)
        return kept

    def _open(self, group: _Group, openings: dict[frozenset[int], list[int]]) -> None:
        for after, before in openings.items():
            point = self._point(after, group.context)
            point.open.append(group.owner)
            point.before += [i for i in before if i not in point.before and self._may_delay(i, point)]
            if group.sizes and all(self._may_read(i, point) for i, _ in group.sizes):
                point.sizes[group.owner] = group.sizes

    def _may_delay(self, i: int, point: Point) -> bool:
        """Return whether a node may wait for a point; not if it decides a sum or must run even if the step fails."""
        free = self._graph.free[i] and not self._graph.depends(i, point.after)
        return self._graph.inside[i] == point.context and not free and i not in self._graph.racing

    def _may_read(self, i: int, point: Point) -> bool:
        """Return whether a node has run before a point, or can run before it."""
        has_run = self._graph.leads_to(i, point.after) or self._graph.nodes[i].kind in VALUES
        return has_run and self._may_wait_for(i, point.context)

    def _order_opens(self) -> None:
        """Let a range open after its outer range, if all nodes that wait for it also wait for the outer range."""
        opening: dict[Owner | None, list[Point]] = {}
        for point in self._points.values():
            for owner in point.open:
                opening.setdefault(owner, []).append(point)
        for inner, points in opening.items():
            for around in opening.get(_outer(inner), ()):
                for point in points:
                    if point.before and set(point.before) <= set(around.before):
                        self._link(point, around)

    def _order_closes(self) -> None:
        """Let a range close after its inner ranges, and points follow the closes that wait for one of their nodes."""
        closing = {owner: point for point in self._points.values() for owner in point.close}
        nodes = {group.owner: group.nodes for group in self._groups}
        for owner, point in closing.items():
            around = _outer(owner)
            if around in closing and nodes[owner] <= nodes[around]:  # otherwise it ends after the outer range
                self._link(closing[around], point)
        for (after, context), point in self._points.items():
            for i in after if len(after) > 1 else ():
                closes = self._points.get((frozenset([i]), context))
                if closes is not None and closes.close:
                    self._link(point, closes)

    def _link(self, point: Point, before: Point) -> None:
        if before is not point and before.context == point.context and before not in point.points:
            point.points.append(before)


def _outer(owner: Owner | None) -> Owner | None:
    """Return the owner of the range around that of an owner."""
    chain = owner.chain() if owner is not None else []
    return chain[-2] if len(chain) > 1 else None


def _is_inside(context: Context, outer: Context) -> bool:
    """Return whether a context equals an outer one or is inside it."""
    return context[0][: len(outer[0])] == outer[0] and context[1] >= outer[1]
