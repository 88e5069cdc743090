"""Which module stands where: from a module that is being called to its path in the model and its events."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import torch

from annot import emit, tag
from annot.shapes import MAX_TENSORS, spec_of, tensors_in
from annot.torch.choice import EVERYTHING, Choice
from annot.torch.hyperparameters import gradients, hyperparameters

__all__ = ["LOSS", "MAX_PATHS", "OPTIMIZED", "Loss", "Site", "Sites"]

Loss: Final = torch.nn.modules.loss._Loss
"""The class of all losses of PyTorch: they are layers even if they belong to no model."""

LOSS: Final = "Loss"
"""The layer of a loss that is called outside the model, as in ``Loss CrossEntropyLoss``."""

OPTIMIZED: Final = "OptimizedModule"
"""Class name of what `torch.compile` wraps a module in."""

MAX_PATHS: Final = 64
"""How many paths of one module that stands in many places are told apart."""

_KERAS: Final = "_flatten_layers"
"""An attribute by which layers of Keras can be told from other modules."""

_Arguments: TypeAlias = tuple[tuple[str, tag.Value], ...]
_Shown: TypeAlias = tuple[tuple[tag.TensorSpec, ...], int, _Arguments]

_TOO_MANY = "too many different input shapes for one run: further ranges show none"


@dataclass(slots=True, eq=False)
class Site:
    """One place in the model: what its ranges say, prepared once per combination of input shapes.

    Args:
        layer: dotted path, as `torch.nn.Module.named_modules` spells it.
        module: class name.
        shapes: whether the ranges say shapes.
        of: the module itself.
        choice: which modules below this one have sites.
        elsewhere: the sites of the same module under other parents, by path; None if it has one place only.
        events: the forward and backward event of every combination of shapes seen.
        recomputed: the same with the event of the recomputation, by forward event.
        operations: the events of the operations that it calls itself, by name and by arguments.
        cache: belongs to `annot.native._fast.Calls`.
    """

    layer: str
    module: str
    shapes: bool
    of: weakref.ref[torch.nn.Module]
    choice: Choice
    elsewhere: dict[str, Site] | None = None
    events: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    recomputed: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    operations: dict[str, dict[Any, Any]] = field(default_factory=dict)
    cache: Any = None

    def make_events(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the forward and the backward event of a call with these arguments."""
        (specs, omitted, arguments), grad = self._shown(args, kwargs)
        return (
            self._event("forward", specs, omitted, arguments),
            self._event("backward", specs, omitted, arguments + grad),
        )

    def make_recompute_event(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the event of a forward call with these arguments that runs again, for the backward."""
        return self._event("recompute", *self._shown(args, kwargs)[0])

    def near(self, active: str) -> Site:
        """Return the site of this module that lies in the layer `active`, or else in the nearest layer around it."""
        while active and self.elsewhere is not None:
            for path, site in self.elsewhere.items():
                if path.startswith(active + "."):
                    return site
            active = active.rpartition(".")[0]
        return self

    def _shown(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[_Shown, _Arguments]:
        """Return what the texts of a call with these arguments show, if there is room for two.

        The second part is what that of the backward shows besides.
        """
        if self.shapes and emit.room_for_texts(2):
            with contextlib.suppress(Exception):  # an argument that does not let itself be looked at
                tensors = tensors_in(args, kwargs, is_tensor)
                return self._with_hyperparameters(shown(tensors)), self._gradients(tensors)
        elif self.shapes:
            emit.warn_once(_TOO_MANY)
        return ((), 0, ()), ()

    def _with_hyperparameters(self, of_tensors: _Shown) -> _Shown:
        specs, omitted, arguments = of_tensors
        with contextlib.suppress(Exception):  # a subclass may do without what its class sets
            arguments = _hyperparameters(self.of(), self.module) + arguments
        return specs, omitted, arguments if specs else ()

    def _gradients(self, tensors: list[Any]) -> _Arguments:
        with contextlib.suppress(Exception):
            return gradients(self.of(), tensors) if tensors else ()
        return ()

    def _event(self, phase: tag.Phase, specs: tuple[tag.TensorSpec, ...], omitted: int, arguments: _Arguments) -> Any:
        text = tag.format(tag.Tag(self.layer, self.module, phase, specs, omitted, arguments=arguments))
        return emit.event(text, category=phase, few=not specs)


def shown(tensors: list[Any]) -> _Shown:
    """Return what a text shows of tensors: the first ones, how many more there are, and how autocast casts them."""
    dtype = autocast_dtype(tensors)
    specs = tuple(map(spec_of, tensors[:MAX_TENSORS]))
    return specs, max(0, len(tensors) - MAX_TENSORS), (("autocast", dtype),) if dtype else ()


def autocast_dtype(tensors: list[Any]) -> str:
    """Return the dtype of autocast where the first of these tensors is, or an empty text if it is off there."""
    if not tensors:
        return ""
    device = tensors[0].device.type
    if not torch.amp.autocast_mode.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return ""
    return tag.short_dtype(str(torch.get_autocast_dtype(device)))


def is_tensor(value: object) -> bool:
    """Return whether `value` is a tensor of PyTorch."""
    return isinstance(value, torch.Tensor)


class Sites:
    """The modules of all models that are being instrumented, without keeping any of them alive.

    `by_id` maps ``id(module)`` to its site, or to None if the choice leaves the module out.

    Args:
        on_change: called after a module got a site or lost it.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.by_id: dict[int, Site | None] = {}
        self._holders: Counter[int] = Counter()
        self._left_out: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._shapes, self._choice = True, EVERYTHING  # of the model that came last, for losses outside of any

    def add_model(self, model: torch.nn.Module, choice: Choice, *, shapes: bool) -> list[int]:
        """Add the chosen modules of `model`; return their ids, for `remove`. One that has a site keeps it."""
        self._shapes, self._choice = shapes, choice
        held: set[int] = set()
        new: set[int] = set()
        for path, module in _paths(model):
            known = self.by_id.get(id(module))
            if not choice.takes(path, module):
                self._leave_out(module)
                continue
            if known is None:
                self._add(module, path, choice, shapes=shapes)
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
        self._left_out.clear()
        self._on_change()

    def discover(self, module: torch.nn.Module, caller: Site | None) -> Site | None:
        """Return the site of a module that came after its model.

        What `torch.compile` wrapped around a known module stands where that one stands; anything else is looked for
        below the layer that calls it; if no layer does, it is a loss. None if it is not there, or left out, or the
        block of that layer is over.
        """
        if id(module) in self.by_id:
            return None
        inner = _inner(module)
        wrapped = self.by_id.get(id(inner)) if inner is not module else None
        if wrapped is not None:
            hidden = _hides_inner(module)
            return self._add(module, wrapped.layer, wrapped.choice, shapes=wrapped.shapes) if hidden else None
        if caller is None:
            is_loss = isinstance(inner, Loss)
            return self._add_chosen(module, LOSS, self._choice, shapes=self._shapes) if is_loss else None
        parent = caller.of()
        if parent is None or self.by_id.get(id(parent)) is None:
            return None
        path = _path_below(parent, module)
        if path is None:
            return None
        path = f"{caller.layer}.{path}" if caller.layer else path
        return self._add_chosen(module, path, caller.choice, shapes=caller.shapes)

    def _add_chosen(self, module: torch.nn.Module, path: str, choice: Choice, *, shapes: bool) -> Site | None:
        if choice.takes(path, module):
            return self._add(module, path, choice, shapes=shapes)
        self._leave_out(module)
        return None

    def add_replica(self, replica: torch.nn.Module, module: torch.nn.Module) -> None:
        """Give a replica the site of its original, if that has one."""
        site = self.by_id.get(id(module))
        if site is not None:
            self._put(replace(site, of=self._watched(replica), cache=None), replica)

    def _add(self, module: torch.nn.Module, path: str, choice: Choice, *, shapes: bool) -> Site:
        self._left_out.pop(id(module), None)
        return self._put(Site(path, _class_name(module), shapes, self._watched(module), choice), module)

    def _put(self, site: Site, module: torch.nn.Module) -> Site:
        self.by_id[id(module)] = site
        self._on_change()
        return site

    def _watched(self, module: torch.nn.Module) -> weakref.ref[torch.nn.Module]:
        ident = id(module)
        return weakref.ref(module, lambda _: self._bury(ident))

    def _leave_out(self, module: torch.nn.Module) -> None:
        """Remember that the module is not to be looked for, unless it has a site."""
        if id(module) not in self.by_id:
            self._left_out[id(module)] = self._watched(module)
            self.by_id[id(module)] = None

    def _bury(self, ident: int) -> None:
        self._forget(ident)
        self._on_change()

    def _forget(self, ident: int) -> None:
        self.by_id.pop(ident, None)
        self._holders.pop(ident, None)
        self._left_out.pop(ident, None)


def _hyperparameters(module: Any, shown_as: str) -> _Arguments:
    if not hasattr(module, _KERAS):
        return hyperparameters(module, shown_as)
    from annot.tf.hyperparameters import hyperparameters as of_keras  # which needs no TensorFlow

    return of_keras(module, shown_as)


def _class_name(module: torch.nn.Module) -> str:
    """Return the name of the class that the user wrote: not that of a lazy, scripted or compiled stand-in."""
    module = _inner(module)
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    becomes = getattr(module, "cls_to_become", None)
    return becomes.__name__ if isinstance(becomes, type) else type(module).__name__


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
        site.elsewhere[path] = Site(path, site.module, site.shapes, site.of, site.choice)


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
            for name, child in _children(module)
            if child is not None and id(child) not in above
        ]
        pending.extend(reversed(children))


def _children(module: Any) -> Iterable[tuple[str, Any]]:
    """Return the modules right below one, by name; Keras on PyTorch keeps its layers elsewhere than PyTorch does."""
    if not hasattr(module, _KERAS):
        return module._modules.items()  # type: ignore[no-any-return]
    from annot.tf.paths import named_sublayers

    return named_sublayers(module)


def _path_below(parent: torch.nn.Module, module: torch.nn.Module) -> str | None:
    """Return the path from `parent` to `module`; this runs on every call of a module that stands nowhere."""
    pending: list[tuple[str, torch.nn.Module]] = [("", parent)]
    seen = set()
    while pending:
        path, here = pending.pop()
        seen.add(id(here))
        for name, child in _children(here):
            if child is module:
                return f"{path}{name}"
            if child is not None and (child._modules or hasattr(child, _KERAS)) and id(child) not in seen:
                pending.append((f"{path}{name}.", child))
    return None
