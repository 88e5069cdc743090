"""Owners of autograd nodes, from notes of the module calls of each thread: the fallback for torch_notes.c.

A node belongs to the call that was innermost when the node was created.
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import torch

from annot.torch import autograd_nodes, greenlets
from annot.torch.module_sites import Site
from annot.util.weak_keys import WeakKeys

_MAX_NOTES: Final = 1 << 16
"""Maximum number of entries per thread. Nodes older than the first entry have no layers."""

_MAX_ENDED: Final = 256
"""Number of threads whose notes are kept for graphs that outlive their thread."""

_DEEP: Final = 1000
"""Node count above which a graph is deep: freeing it recursively takes about 150 bytes of C stack per node."""

_ACCUMULATE_GRAD: Final = (1 << 64) - 1
"""Sequence number of AccumulateGrad nodes. They run right after their producer, inside its range."""

_EDGES_KEY: Final = "annot edges"

# One call of one module: the parent of the calls inside it, and the owner of the nodes that it creates. It is a plain
# tuple, because an object with named attributes would cost a fifth of a microsecond per call.
Invocation: TypeAlias = tuple["Invocation | None", Site, Any, int]
PARENT: Final = 0
SITE: Final = 1
BACKWARD: Final = 2
DEPTH: Final = 3


class Notes:
    """Notes of one thread: the innermost invocation by the first sequence number of its nodes, in ascending order."""

    __slots__ = ("__weakref__", "current", "numbers", "owners", "thread")

    lost = False
    """Whether a walk has met nodes older than the notes of their thread."""

    def __init__(self) -> None:
        self.thread = autograd_nodes.current_thread()
        self.current: Invocation | None = None
        self.numbers: list[int] = [0]
        self.owners: list[Invocation | None] = [None]

    def note(self, number: int, owner: Invocation | None) -> None:
        """Record that nodes from `number` on belong to `owner`."""
        numbers = self.numbers
        if numbers[-1] == number:
            self.owners[-1] = owner
            return
        if len(numbers) >= _MAX_NOTES:
            del numbers[: _MAX_NOTES // 2]
            del self.owners[: _MAX_NOTES // 2]
        numbers.append(number)
        self.owners.append(owner)

    def owner(self, number: int) -> Invocation | None:
        """Return the invocation that was innermost when the node with this number was created."""
        index = bisect_right(self.numbers, number) - 1
        if index >= 0:
            return self.owners[index]
        Notes.lost = True
        return None


class ThreadNotes:
    """Notes of all threads."""

    def __init__(self) -> None:
        self.local = threading.local()
        """Its attribute `notes` holds the notes of this thread once `get` has created them."""
        self._all: WeakKeys[Notes, None] = WeakKeys()
        self._latest: deque[Notes] = deque(maxlen=_MAX_ENDED)
        self._made_on = autograd_nodes.make_reader()

    def get(self) -> Notes:
        """Return the notes of this thread."""
        try:
            return self.local.notes  # type: ignore[no-any-return]
        except AttributeError:
            notes = self.local.notes = greenlets.own_current(Notes)()
            self._all[notes] = None
            self._latest.append(notes)
            return notes

    def walk(self, roots: tuple[Any, ...]) -> tuple[list[tuple[int, int, Invocation | None, Any]], bool]:
        """Return (number, tie-breaker, owner, node) of every node below the roots, and whether numbers are unordered.

        They are unordered if the engine may not run the nodes in descending order of their numbers. This is the case if
        several threads created the nodes. It is also the case for a view whose base was modified through another view:
        autograd regenerates its node on the next access, possibly during an operation whose node already has a number.
        """
        root_nodes: Iterator[Any] = (root.grad_fn if isinstance(root, torch.Tensor) else root[0] for root in roots)
        numbers: dict[Any, int] = {node: node._sequence_nr() for node in root_nodes if autograd_nodes.is_node(node)}
        pending = [node for node, number in numbers.items() if number != _ACCUMULATE_GRAD]
        owners: dict[int, Callable[[int], Invocation | None]] = {}
        entries: list[tuple[int, int, Invocation | None, Any]] = []
        rises, made_on, number_of, last = False, self._made_on, numbers.get, -1
        owner: Callable[[int], Invocation | None] = _no_owner
        while pending:
            node = pending.pop()
            number = numbers[node]
            thread = made_on(node)
            if thread != last:
                last, owner = thread, owners.get(thread) or owners.setdefault(thread, self._owners_on(thread))
            entries.append((number, len(entries), owner(number), node))
            for child, _ in node.next_functions:
                if child is None:
                    continue
                below = number_of(child)
                if below is None:
                    below = numbers[child] = child._sequence_nr()
                    if below != _ACCUMULATE_GRAD:
                        pending.append(child)
                if number <= below != _ACCUMULATE_GRAD:
                    rises = True
        if len(numbers) > _DEEP:
            _keep_edges(numbers)
        return entries, rises or len(owners) > 1

    def _owners_on(self, thread: int) -> Callable[[int], Invocation | None]:
        """Return a function from the number of a node that this thread created to its owner."""
        own: Notes | None = getattr(self.local, "notes", None)
        if not thread:  # unknown thread: valid only if there is one
            return own.owner if own is not None and len(self._all) == 1 else _no_owner
        alike = [notes for notes in self._all if notes.thread == thread]
        if len(alike) == 1:
            return alike[0].owner
        # A thread of the engine gets new notes whenever CPython gives it a new thread state.
        alike.sort(key=lambda notes: notes is not own)
        return lambda number: next(filter(None, (notes.owner(number) for notes in alike)), None)


@functools.cache
def thread_notes(_greenlets: bool) -> ThreadNotes:
    """Return the notes of this process's threads, with or without greenlets. `cache_clear` deletes them."""
    return ThreadNotes()


def _no_owner(_: int) -> Invocation | None:
    return None


def _keep_edges(nodes: Iterable[Any]) -> None:
    """Store the edges of each node in its metadata, so that freeing a deep graph does not overflow the C stack.

    Since PyTorch 2.13 a node keeps its Python object, and nodes with a Python object free each other recursively.
    CPython limits the recursion of containers (the trashcan mechanism), so freeing through these tuples is safe.
    """
    for node in nodes:
        node.metadata[_EDGES_KEY] = node.next_functions
