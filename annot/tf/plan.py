"""Where ranges open and close in a graph: the points between its nodes, and the control edges that lead there.

A range opens when the first of its nodes is ready, and closes when the last has run. The graph's own nodes keep their
order: a point waits only for what the nodes behind it wait for, so what ran in parallel still does. Four exceptions
change when a node runs: nodes that depend on weights alone wait for their layer, the backward of a layer waits for its
gradient, the update of an optimizer waits for all gradients, and a range opens after the close of a range that waits
for the same nodes. A node that changes a state without any data is held by none of these, since TensorFlow runs it even
where the step fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from annot.tf.lookup import Found, Node, tensors
from annot.tf.owners import Owner
from annot.tf.shape import CONTROL_FLOW, PASSED_ON, VALUES, Context, Shape, in_order, port

__all__ = ["Point", "plan"]

_MAX_NODES: Final = 200_000


@dataclass(slots=True)
class Point:
    """An operation that closes and opens ranges.

    Args:
        after: the nodes that it waits for, as indices.
        context: the loops and branches around it.
        points: the points that it waits for.
        close: owners whose ranges it closes, the innermost first.
        open: owners whose ranges it opens, the outermost first.
        before: the nodes that wait for it.
        sizes: of the owners whose texts leave sizes open, the outputs of nodes that have them.
    """

    after: frozenset[int] = frozenset()
    context: Context = ((), frozenset())
    points: list[Point] = field(default_factory=list)
    close: list[Owner] = field(default_factory=list)
    open: list[Owner] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    sizes: dict[Owner, list[tuple[int, int]]] = field(default_factory=dict)


def plan(nodes: Sequence[Node], found: Sequence[Found], prefixes: Mapping[Owner, str]) -> list[Point]:
    """Return where the ranges of a graph open and close; no points for a graph without owners.

    Args:
        nodes: of the graph.
        found: where each comes from.
        prefixes: of the graphs in which the sizes of each owner are.

    Raises:
        ValueError: the graph is too large, or has a cycle that is no loop of TensorFlow.
    """
    if not any(one.owners for one in found):
        return []
    if len(nodes) > _MAX_NODES:
        raise ValueError(f"it has {len(nodes)} nodes, more than {_MAX_NODES}")
    shape = Shape(nodes)
    sizes = _Sizes(shape, found, prefixes)
    for_gradients = _for_gradients(shape, found)
    for waits in (True, False):
        points = _Points(shape, _groups(shape, found), sizes, for_gradients, waits=waits).plan()
        if _has_order(shape, points):
            return points
    raise ValueError("its nodes form a cycle")


def _for_gradients(shape: Shape, found: Sequence[Found]) -> list[bool]:
    """Return which nodes compute gradients; a node that TensorFlow has made does if what it waits for does."""
    known = [one.made is not None and one.made.for_gradient for one in found]
    for i in shape.order:
        if found[i].made is None:
            known[i] = any(known[source] for source in shape.sources[i])
    return known


class _Sizes:
    """Where the sizes are that texts leave open."""

    def __init__(self, shape: Shape, found: Sequence[Found], prefixes: Mapping[Owner, str]) -> None:
        self._places = shape.places
        self._same = tensors(shape.nodes, found)
        self._prefixes = prefixes

    def of(self, owner: Owner) -> list[tuple[int, int]]:
        """Return the outputs of nodes that have the sizes; none if one of them is gone."""
        prefix = self._prefixes.get(owner.sized, "")
        found = [self._output(prefix + source.name) for source in owner.sized.sizes]
        return [one for one in found if one is not None] if None not in found else []

    def _output(self, tensor: str) -> tuple[int, int] | None:
        if tensor.partition(":")[0] not in self._places:
            tensor = self._same.get(tensor, tensor)
        return port(tensor, self._places)


def _has_order(shape: Shape, points: Sequence[Point]) -> bool:
    """Return whether the points form no cycle."""
    first = len(shape.nodes)
    numbers = {id(point): first + i for i, point in enumerate(points)}
    sources = [list(one) for one in shape.sources]
    for point in points:
        sized = [i for outputs in point.sizes.values() for i, _ in outputs]
        sources.append([*point.after, *sized, *(numbers[id(other)] for other in point.points)])
        for i in point.before:
            sources[i].append(numbers[id(point)])
    return len(in_order(sources)) == len(sources)


# ---------------------------------------------------------------- the nodes of each range


@dataclass(slots=True)
class _Group:
    """The nodes of one range.

    Args:
        owner: of the range.
        nodes: that count for when it opens and closes.
        weights: nodes that depend on weights alone.
        first: nodes of it that wait for no other of it.
        last: nodes of it that no other of it waits for.
        context: the loops and branches around the range.
    """

    owner: Owner
    nodes: set[int] = field(default_factory=set)
    weights: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    context: Context = ((), frozenset())


def _groups(shape: Shape, found: Sequence[Found]) -> list[_Group]:
    """Return the nodes by owner, those of fused layers under their joined owner; the outermost first."""
    groups: dict[Owner, _Group] = {}
    for i, owner in _owned_nodes(shape, found):
        for one in owner.chain():
            groups.setdefault(one, _Group(one)).nodes.add(i)
    return sorted(groups.values(), key=lambda group: len(group.owner.chain()))


def _owned_nodes(shape: Shape, found: Sequence[Found]) -> list[tuple[int, Owner]]:
    joined: dict[frozenset[Owner], Owner] = {}
    owned: list[tuple[int, Owner]] = []
    for i in shape.order:
        kind = shape.nodes[i].kind
        if found[i].owners and kind not in VALUES and kind not in PASSED_ON and kind != "NextIteration":
            owned.append((i, _one_owner(found[i].owners, joined)))
    _adopt(shape, found, owned)
    # What a layer that is fused with others does to its weights belongs to the fused operation.
    fused = {one: owner for parts, owner in joined.items() for one in parts}
    return [(i, fused.get(owner, owner) if shape.early[i] else owner) for i, owner in owned]


def _adopt(shape: Shape, found: Sequence[Found], owned: list[tuple[int, Owner]]) -> None:
    """Have a node that sums gradients, or that TensorFlow has made, belong to the range around its neighbours."""
    owners = dict(owned)
    for i in shape.order:
        made, kind = found[i].made, shape.nodes[i].kind
        if i in owners or kind in VALUES or kind in PASSED_ON or kind in CONTROL_FLOW or shape.early[i]:
            continue
        if made is None or made.for_gradient:
            around = [j for j in shape.waits_for(i) | shape.users(i) if not shape.early[j]]
            chains = [owners[j].chain() if j in owners else [] for j in around]
            common = [one for one in chains[0] if all(one in chain for chain in chains)] if chains else []
            if common:
                owners[i] = common[-1]
                owned.append((i, common[-1]))


def _one_owner(owners: list[Owner], joined: dict[frozenset[Owner], Owner]) -> Owner:
    """Return the owner of a node: of a fused one, an owner that stands for all."""
    inner = [one for one in owners if not any(one is not other and one in other.chain() for other in owners)]
    if len(inner) == 1:
        return inner[0]
    key = frozenset(inner)
    if key not in joined:
        joined[key] = Owner.joined(inner[::-1])
    return joined[key]


# ---------------------------------------------------------------- the points


class _Points:
    """The points of all ranges, one for the ranges that open or close when the same nodes have run.

    Args:
        shape: of the graph.
        groups: the nodes by range.
        sizes: where the sizes are that texts leave open.
        for_gradients: which nodes compute gradients.
        waits: whether a node may have to wait for more than it needs; otherwise no cycle is possible.
    """

    def __init__(
        self, shape: Shape, groups: list[_Group], sizes: _Sizes, for_gradients: Sequence[bool], waits: bool = True
    ) -> None:
        self._shape = shape
        self._may_wait = waits
        self._for_gradients = for_gradients
        self._groups = groups
        self._sizes = sizes
        self._points: dict[tuple[frozenset[int], Context], Point] = {}

    def plan(self) -> list[Point]:
        """Return the points, each after those that it waits for."""
        self._groups = [group for group in self._groups if self._bound(group)]
        waits = [self._shape.waits_for(i) - group.nodes for group in self._groups for i in group.first]
        sizes = [self._sizes.of(group.owner) for group in self._groups]
        measured = [[i for i, _ in outputs] for outputs in sizes]
        marked = [group.weights + group.first for group in self._groups]
        self._shape.note_candidates(itertools.chain(*waits, *measured, *marked))
        openings = [self._openings(group) for group in self._groups]
        for group in reversed(self._groups):  # the innermost first
            self._point(frozenset(group.last), group.context).close.append(group.owner)
        for group, opening, sized in zip(self._groups, openings, sizes, strict=True):
            self._open(group, opening, sized)
        self._order_opens()
        self._order_closes()
        return [*self._points.values()]

    def _point(self, after: frozenset[int], context: Context) -> Point:
        # An operation may wait for none outside of its loop: TensorFlow refuses that.
        after = frozenset(i for i in after if self._may_wait_for(i, context))
        key = after, context
        if key not in self._points:
            self._points[key] = Point(after, context)
        return self._points[key]

    def _may_wait_for(self, i: int, context: Context) -> bool:
        loops, branches = self._shape.outside[i]
        return loops == context[0] and branches <= context[1]

    def _bound(self, group: _Group) -> bool:
        """Find the first and the last nodes of a group; return whether it has a range."""
        shape, nodes = self._shape, group.nodes
        early = {i for i in nodes if shape.early[i]}
        if len(early) < len(nodes):
            group.weights = [i for i in early if shape.users(i) <= nodes]
            nodes = group.nodes = nodes - early
        around = [shape.outside[i] if shape.nodes[i].kind in ("Exit", "Merge") else shape.inside[i] for i in nodes]
        context = group.context = min(around, key=lambda one: (len(one[0]), len(one[1])))
        if not all(_is_inside(one, context) for one in around):
            return False
        entered, left = shape.inside, shape.outside
        group.first = [i for i in nodes if entered[i] == context and nodes.isdisjoint(shape.waits_for(i))]
        group.last = [i for i in nodes if left[i] == context and nodes.isdisjoint(shape.users(i))]
        if group.owner.backward_of is not None and self._may_wait:
            self._find_gradient(group)
        group.first.sort(key=shape.rank.__getitem__)
        return bool(group.first and group.last)

    def _find_gradient(self, group: _Group) -> None:
        """Have a backward begin with the nodes that the gradient reaches first, where one comes from outside.

        What it computes of values of the forward alone, as shapes, has to wait for the range.
        """
        shape, nodes = self._shape, group.nodes
        early = all(shape.early[i] for i in nodes)  # as where the graph has no input but its weights
        reached: set[int] = set()
        first: list[int] = []
        kept: list[int] = []
        for i in sorted(nodes, key=shape.rank.__getitem__):
            if self._is_kept(i):
                kept.append(i)
                continue
            waits = shape.waits_for(i)
            if not reached.isdisjoint(waits):
                reached.add(i)
            elif any(self._is_gradient(j) and (early or not shape.early[j]) for j in waits - nodes):
                reached.add(i)
                first += [i] if shape.inside[i] == group.context else []
        if first:
            group.weights += [i for i in group.first if i not in reached and i not in kept]
            group.first = first + kept

    def _is_kept(self, i: int) -> bool:
        """Return whether a node gives a value of the forward that a loop has kept for its gradients."""
        return self._shape.nodes[i].kind == "TensorListPopBack"

    def _is_gradient(self, i: int) -> bool:
        return self._for_gradients[i] and self._shape.nodes[i].kind not in VALUES

    def _openings(self, group: _Group) -> dict[frozenset[int], list[int]]:
        """Return the first nodes of a group by what they wait for."""
        shape = self._shape
        openings: dict[frozenset[int], list[int]] = {}
        for i in group.first:
            waits = shape.waits_for(i) - group.nodes
            after = [one for one in waits if not shape.early[one]] or waits
            openings.setdefault(shape.last_of(after), []).append(i)
        if not self._may_wait:
            return openings
        self._drop_early(group, openings)
        if len(openings) > 1 and (group.owner.waits or any(map(self._is_kept, group.first))):
            openings = self._all_at_once(openings)
        elif len(openings) > 1 and group.owner.backward_of is not None:
            openings = self._with_gradient(openings)
        self._add_weights(group, openings)
        return openings

    def _drop_early(self, group: _Group, openings: dict[frozenset[int], list[int]]) -> None:
        """Have a loop whose first values are constants wait for the range, unless nothing else opens it."""
        early = [after for after in openings if all(self._shape.early[i] for i in after)]
        if len(early) < len(openings):
            for after in early:
                group.weights += openings.pop(after)

    def _all_at_once(self, openings: dict[frozenset[int], list[int]]) -> dict[frozenset[int], list[int]]:
        firsts = [i for nodes in openings.values() for i in nodes]
        after = [i for i in frozenset().union(*openings) if not any(self._shape.depends(i, one) for one in firsts)]
        return {self._shape.last_of(after): firsts}

    def _with_gradient(self, openings: dict[frozenset[int], list[int]]) -> dict[frozenset[int], list[int]]:
        """Have what depends on values of the forward wait for the gradient, which comes last."""
        rank = self._shape.rank
        last = max(openings, key=lambda after: max((rank[i] for i in after), default=-1))
        kept = {last: list(openings[last])}
        for after, before in openings.items():
            if after is not last:
                leads = any(i in last or any(self._shape.depends(j, i) for j in last) for i in before)
                kept.setdefault(after if leads else last, []).extend(before)
        return kept

    def _add_weights(self, group: _Group, openings: dict[frozenset[int], list[int]]) -> None:
        """Have the nodes that depend on weights alone wait for the range, where that forms no cycle."""
        after = next(iter(openings))
        openings[after] += [
            i for i in group.weights if not any(one == i or self._shape.depends(one, i) for one in after)
        ]

    def _open(self, group: _Group, openings: dict[frozenset[int], list[int]], sized: list[tuple[int, int]]) -> None:
        for after, before in openings.items():
            point = self._point(after, group.context)
            point.open.append(group.owner)
            point.before += [i for i in before if i not in point.before and self._may_be_held(i, point)]
            if sized and all(self._is_there(i, point) for i, _ in sized):
                point.sizes[group.owner] = sized

    def _may_be_held(self, i: int, point: Point) -> bool:
        """Return whether a node may wait for a point."""
        free = self._shape.free[i] and not any(self._shape.depends(i, one) for one in point.after)
        return self._shape.inside[i] == point.context and not free

    def _is_there(self, i: int, point: Point) -> bool:
        """Return whether a node has run before a point, or may as well."""
        there = i in point.after or any(self._shape.depends(j, i) for j in point.after)
        return self._may_wait_for(i, point.context) and (there or self._shape.nodes[i].kind in VALUES)

    def _order_opens(self) -> None:
        """Have a range open after the one around it, where all nodes that it opens before wait for that one."""
        opening: dict[Owner, list[Point]] = {}
        for point in self._points.values():
            for owner in point.open:
                opening.setdefault(owner, []).append(point)
        for owner, points in opening.items():
            outer = owner.chain()[-2] if len(owner.chain()) > 1 else None
            for around in opening.get(outer, ()) if outer is not None else ():
                for point in points:
                    if point.before and set(point.before) <= set(around.before):
                        self._link(point, around)

    def _order_closes(self) -> None:
        """Have a range close after those inside it, and points after the closes that wait for one of their nodes."""
        closing = {owner: point for point in self._points.values() for owner in point.close}
        nodes = {group.owner: group.nodes for group in self._groups}
        for owner, point in closing.items():
            outer = owner.chain()[-2] if len(owner.chain()) > 1 else None
            if outer in closing and nodes[owner] <= nodes[outer]:  # else it ends after the one around it
                self._link(closing[outer], point)
        for (after, context), point in self._points.items():
            for i in after if len(after) > 1 else ():
                closes = self._points.get((frozenset([i]), context))
                if closes is not None and closes.close:
                    self._link(point, closes)

    def _link(self, point: Point, before: Point) -> None:
        if before is not point and before.context == point.context and before not in point.points:
            point.points.append(before)


def _is_inside(context: Context, outer: Context) -> bool:
    """Return whether a context is another one or lies inside it."""
    loops, branches = outer
    return context[0][: len(loops)] == loops and context[1] >= branches
