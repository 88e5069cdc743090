"""Which module stands where: from a module that is being called to its path in the model and its events."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from annot import emit, tag
from annot.shapes import MAX_TENSORS, spec_of, tensors_in

__all__ = ["MAX_PATHS", "OPTIMIZED", "Site", "Sites"]

OPTIMIZED: Final = "OptimizedModule"
"""Class name of what `torch.compile` wraps a module in."""

MAX_PATHS: Final = 64
"""How many paths of one module that stands in many places are told apart."""

_TOO_MANY = "too many different input shapes for one run: further ranges show none"


@dataclass(slots=True, eq=False)
class Site:
    """One place in the model: what its ranges say, prepared once per combination of input shapes.

    Args:
        layer: dotted path, as `torch.nn.Module.named_modules` spells it.
        module: class name.
        shapes: whether the ranges say shapes.
        of: the module itself.
        elsewhere: the sites of the same module under other parents, by path; None if it has one place only.
        events: the forward and backward event of every combination of shapes seen.
        cache: belongs to `annot.native._fast.Calls`.
    """

    layer: str
    module: str
    shapes: bool
    of: weakref.ref[torch.nn.Module]
    elsewhere: dict[str, Site] | None = None
    events: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    cache: Any = None

    def make_events(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the forward and the backward event of a call with these arguments."""
        specs: tuple[tag.TensorSpec, ...] = ()
        omitted = 0
        if self.shapes and emit.room_for_texts(2):
            with contextlib.suppress(Exception):  # an argument that does not let itself be looked at
                tensors = tensors_in(args, kwargs, is_tensor)
                specs = tuple(map(spec_of, tensors[:MAX_TENSORS]))
                omitted = max(0, len(tensors) - MAX_TENSORS)
        elif self.shapes:
            emit.warn_once(_TOO_MANY)
        return self._event("forward", specs, omitted), self._event("backward", specs, omitted)

    def below(self, active: str) -> Site:
        """Return the site of this module that lies below the layer `active`, or this one if none does."""
        if self.elsewhere is None:
            return self
        prefix = active + "." if active else ""
        return next((site for path, site in self.elsewhere.items() if path.startswith(prefix)), self)

    def _event(self, phase: tag.Phase, specs: tuple[tag.TensorSpec, ...], omitted: int) -> Any:
        text = tag.format(tag.Tag(self.layer, self.module, phase, specs, omitted))
        return emit.event(text, category=phase, few=not specs)


def is_tensor(value: object) -> bool:
    """Return whether `value` is a tensor of PyTorch."""
    return isinstance(value, torch.Tensor)


class Sites:
    """The modules of all models that are being instrumented, without keeping any of them alive.

    `by_id` maps ``id(module)`` to its site.

    Args:
        on_change: called after a module got a site or lost it.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.by_id: dict[int, Site] = {}
        self._holders: Counter[int] = Counter()

    def add_model(self, model: torch.nn.Module, *, shapes: bool) -> list[int]:
        """Add every module of `model`; return their ids, for `remove`. One that has a site keeps it."""
        held: set[int] = set()
        new: set[int] = set()
        for path, module in _paths(model):
            known = self.by_id.get(id(module))
            if known is None:
                self._add(module, path, shapes)
                new.add(id(module))
            elif id(module) in new:
                _add_place(known, path)
            held.add(id(module))
        self._holders.update(held)
        return list(held)

    def remove(self, ids: list[int]) -> None:
        """Let go of these modules; those that no other block holds are forgotten."""
        for ident in ids:
            self._holders[ident] -= 1
            if self._holders[ident] <= 0:
                self._forget(ident)
        self._on_change()

    def clear(self) -> None:
        """Forget every module, also those that were discovered."""
        self.by_id.clear()
        self._holders.clear()
        self._on_change()

    def discover(self, module: torch.nn.Module, caller: Site | None) -> Site | None:
        """Return the site of a module that came after its model.

        What `torch.compile` wrapped around a known module stands where that one stands; anything else is looked for
        below the layer that calls it.
        """
        inner = _inner(module)
        wrapped = self.by_id.get(id(inner)) if inner is not module else None
        if wrapped is not None:
            return self._add(module, wrapped.layer, wrapped.shapes) if _hides_inner(module) else None
        parent = caller.of() if caller is not None else None
        path = _path_below(parent, module) if parent is not None else None
        if path is None or caller is None:
            return None
        return self._add(module, f"{caller.layer}.{path}" if caller.layer else path, caller.shapes)

    def _add(self, module: torch.nn.Module, path: str, shapes: bool) -> Site:
        ident = id(module)
        alive = weakref.ref(module, lambda _: self._bury(ident))
        self.by_id[ident] = site = Site(path, type(_inner(module)).__name__, shapes, alive)
        self._on_change()
        return site

    def _bury(self, ident: int) -> None:
        self._forget(ident)
        self._on_change()

    def _forget(self, ident: int) -> None:
        self.by_id.pop(ident, None)
        self._holders.pop(ident, None)


def _inner(module: Any) -> Any:
    """Return the module that `torch.compile` wrapped in this one, or this one."""
    return getattr(module, "_orig_mod", module) if type(module).__name__ == OPTIMIZED else module


def _hides_inner(module: Any) -> bool:
    """Return whether a call of what `torch.compile` made goes round the stand-in for the `__call__` inside."""
    function = getattr(getattr(module.forward, "_torchdynamo_orig_callable", None), "__func__", None)
    return not getattr(function, "__module__", "").startswith("annot.")


def _add_place(site: Site, path: str) -> None:
    if site.elsewhere is None:
        site.elsewhere = {site.layer: site}
    if len(site.elsewhere) < MAX_PATHS:
        site.elsewhere[path] = Site(path, site.module, site.shapes, site.of)


def _paths(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every path to every module, each module under all its parents, but not round in circles."""
    pending: list[tuple[str, torch.nn.Module, frozenset[int]]] = [("", model, frozenset())]
    places: dict[int, int] = {}
    while pending:
        path, module, above = pending.pop()
        places[id(module)] = places.get(id(module), 0) + 1
        if places[id(module)] > MAX_PATHS:
            continue
        above |= {id(module)}
        inner = _inner(module)
        if inner is not module:
            pending.append((path, inner, above))
            if _hides_inner(module):
                yield path, module
            continue
        yield path, module
        children = [
            (f"{path}.{name}" if path else name, child, above)
            for name, child in module._modules.items()
            if child is not None and id(child) not in above
        ]
        pending.extend(reversed(children))


def _path_below(parent: torch.nn.Module, module: torch.nn.Module) -> str | None:
    """Return the path from `parent` to `module`; this runs on every call of a module that stands nowhere."""
    pending: list[tuple[str, torch.nn.Module]] = [("", parent)]
    seen = set()
    while pending:
        path, here = pending.pop()
        seen.add(id(here))
        for name, child in here._modules.items():
            if child is module:
                return f"{path}{name}"
            if child is not None and child._modules and id(child) not in seen:
                pending.append((f"{path}{name}.", child))
    return None
