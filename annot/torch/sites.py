"""Which module stands where: from a module that is being called to its path in the model and its events."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import torch

from annot import emit, own, tag
from annot.locks import fork_safe
from annot.recent import Recent
from annot.shapes import MAX_TENSORS, spec_of, tensors_in
from annot.torch.choice import Choice
from annot.torch.hyperparameters import gradients, hyperparameters
from annot.torch.numbered import Numbered, numbered
from annot.torch.paths import MAX_PATHS, class_name, hides_inner, inner, is_keras, join, path_to, paths, unwrapped

__all__ = ["LOSS", "Loss", "Model", "Site", "Sites"]

Loss: Final = torch.nn.modules.loss._Loss
"""The class of all losses of PyTorch: they are layers even if they belong to no model."""

LOSS: Final = "Loss"
"""The layer of a loss that is called outside the model, as in ``Loss CrossEntropyLoss``."""

_Arguments: TypeAlias = tuple[tuple[str, tag.Value], ...]
_Shown: TypeAlias = tuple[tuple[tag.TensorSpec, ...], int, _Arguments]

_NOTHING: Final[tuple[_Shown, _Arguments]] = ((), 0, ()), ()


class Reference(weakref.ref[torch.nn.Module]):
    """A weak reference to a module, with what `id` has said of it."""

    __slots__ = ("ident",)

    ident: int


@dataclass(slots=True, eq=False)
class Model:
    """A model of an open block, which may be paused.

    Args:
        root: the model.
        choice: which of its modules have sites.
        shapes: whether their ranges show shapes.
        name: what its paths begin with; None: nothing yet.
        held: the ids of its modules with a site.
    """

    root: weakref.ref[torch.nn.Module]
    choice: Choice
    shapes: bool
    name: str | None = None
    held: set[int] = field(default_factory=set)

    def path(self, below: str) -> str:
        """Return the path that ranges show, of a module at this path below the model."""
        return join(self.name or "", below)

    def takes(self, path: str, module: torch.nn.Module) -> bool:
        """Return whether a module at this path, as ranges show it, has a site."""
        below = "" if path == self.name else path.removeprefix(f"{self.name}.") if self.name else path
        return self.choice.takes(below, module)


@dataclass(slots=True, eq=False)
class Site:
    """One place in the model: what its ranges say, prepared once per combination of input shapes.

    Args:
        layer: dotted path, as `torch.nn.Module.named_modules` spells it.
        module: class name.
        shapes: whether the ranges say shapes.
        of: the module itself.
        model: the model that it belongs to.
        elsewhere: the sites of the same module under other parents, by path; None if it has one place only.
        events: the forward and backward event of every combination of shapes seen.
        recomputed: the same with the event of the recomputation, by forward event.
        operations: the events of the operations that it calls itself, by name and by arguments.
        cache: belongs to `annot.native._fast.Calls`.
    """

    layer: str
    module: str
    shapes: bool
    of: Reference
    model: Model
    elsewhere: dict[str, Site] | None = None
    events: Recent = field(default_factory=Recent)
    recomputed: Recent = field(default_factory=Recent)
    operations: dict[str, Recent] = field(default_factory=dict)
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

    def is_used(self) -> bool:
        """Return whether the module has had a range."""
        return self.events.is_used() or any(site.events.is_used() for site in (self.elsewhere or {}).values())

    def move(self, path: Callable[[str], str]) -> None:
        """Give the site another path, made from the present one."""
        places = list((self.elsewhere or {self.layer: self}).values())
        for place in places:
            place.layer = path(place.layer)
        if self.elsewhere is not None:
            self.elsewhere = {place.layer: place for place in places}

    def _shown(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[_Shown, _Arguments]:
        """Return what the texts of a call with these arguments show; the second part is for the backward alone."""
        # An argument may not let itself be looked at.
        return own.attempt(self._read, args, kwargs, otherwise=_NOTHING) if self.shapes else _NOTHING

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[_Shown, _Arguments]:
        tensors = tensors_in(args, kwargs, is_tensor)
        specs, omitted, arguments = shown(tensors)
        if not specs:
            return (specs, omitted, ()), ()
        # A subclass may do without what its class sets.
        known: _Arguments = own.attempt(_hyperparameters, self.of(), self.module, otherwise=())
        grad: _Arguments = own.attempt(gradients, self.of(), tensors, otherwise=())
        return (specs, omitted, known + arguments), grad

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

    `by_id` maps ``id(module)`` to its site, or to None if the choice leaves the module out. `dead` has the modules
    that have died since the last call of `bury`.

    Args:
        on_change: called after a module got a site or lost it.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = fork_safe(threading.RLock)  # of what several threads discover at the same time
        self.by_id: dict[int, Site | None] = {}
        self.dead: list[Reference] = []
        self._left_out: dict[int, Reference] = {}
        self._open: list[Model] = []
        self._models: list[Model] = []  # those of them that have sites
        self._callers: dict[int, int] = {}  # of modules that were discovered: the module that called them
        self._outside: dict[int, tuple[Reference, int]] = {}  # how often they were called
        self._misses: Counter[int] = Counter()  # by caller: modules that are nowhere in the model
        self._layers: dict[str, Site] = {}  # which site has a path
        self._made_up = Numbered(self._has)  # paths that end in the name of a class

    def open(self, model: Model) -> None:
        """Name the model of a block that has been entered, also of one that is paused; again, it does nothing.

        Without a name its paths begin with that of its class, if those of another open block would be the same.
        """
        if model not in self._open:
            self._tell_apart(model)
            self._open.append(model)

    def close(self, model: Model) -> None:
        """Give the name of a model free, whose block has been left."""
        if model in self._open:
            self._open.remove(model)

    def add_model(self, model: Model) -> None:
        """Add the chosen modules of a model; one that has a site keeps it."""
        root = model.root()
        if root is None:
            return
        self.bury()
        self._models.append(model)
        self._add_below(root, "", model, model.held)
        for ident in model.held:
            self._callers.pop(ident, None)

    def remove(self, model: Model) -> None:
        """Let go of a model; modules that no other block holds are forgotten, and those that only they called.

        After an interrupt, the next call goes on with the rest.
        """
        if model.name is None and self._is_used(model):
            model.name = ""  # it keeps the paths that its ranges have had
        if model in self._models:
            self._models.remove(model)
        for ident in model.held.difference(*(other.held for other in self._models)):
            self._forget(ident)
        for ident, caller in self._callers.copy().items():
            if caller not in self.by_id:
                self._forget(ident)
        model.held.clear()
        self._on_change()

    def clear(self) -> None:
        """Forget every module, also those that were discovered."""
        for known in (
            self.by_id, self._left_out, self._callers, self._outside, self._misses, self._layers, self._made_up,
            self._models, self.dead,
        ):  # fmt: skip
            known.clear()
        self._on_change()

    def bury(self) -> None:
        """Forget the modules that have died; after an interrupt, the next call goes on with the rest.

        CPython prints and drops what is raised in the callback of a weak reference, such as an exception of a signal
        handler. So the callback is in C, ``self.dead.append``, and a call that finds something there calls this.
        """
        with self._lock:
            count = len(self.dead)
            for dead in self.dead[:count]:
                site = self.by_id.get(dead.ident)
                if dead is (self._left_out.get(dead.ident) if site is None else site.of):  # and no later one's
                    self._forget(dead.ident)
                self._outside.pop(dead.ident, None)
            self._on_change()
            del self.dead[:count]

    @own.guarded("a module that came later has no range")
    def discover(self, module: torch.nn.Module, caller: Site | None) -> Site | None:
        """Return the site of a module that came after its model, or is not registered in it.

        What `torch.compile` wrapped around a known module stands where that one stands. Anything else is looked for in
        the layer that calls it, then in the whole model; if it is in neither, as a global, it is named by its class,
        unless it is so small a thing as ``nn.ReLU()``. Without a caller it is a loss. None if it has no site.
        """
        if id(module) in self.by_id:
            return None
        original = inner(module)
        wrapped = self.by_id.get(id(original)) if original is not module else None
        if wrapped is not None:
            return self._add(module, wrapped.layer, wrapped.model) if hides_inner(module) else None
        if caller is None:
            return self._add_loss(module) if isinstance(original, Loss) and self._models else None
        parent = caller.of()
        with self._lock:
            if id(module) in self.by_id:  # another thread was here first
                return self.by_id[id(module)]
            if parent is None or self.by_id.get(id(parent)) is None or not self._is_to_be_looked_for(module):
                return None
            return self._find(module, parent, caller)

    def _is_to_be_looked_for(self, module: torch.nn.Module) -> bool:
        """Return False for most calls of a module that was not found: it may have joined the model since."""
        ident = id(module)
        known, calls = self._outside.get(ident) or (self._watched(module), 0)
        self._outside[ident] = known, calls + 1
        return _is_power_of_two(calls + 1)

    def _find(self, module: torch.nn.Module, parent: torch.nn.Module, caller: Site) -> Site | None:
        # A layer that makes modules anew in each call would have the whole model searched for each of them.
        deep = _is_power_of_two(self._misses[id(parent)] + 1)
        root = caller.model.root() if deep else None
        for holder, path in ((parent, caller.layer), (root, caller.model.path(""))):
            found = path_to(module, holder, deep=deep) if holder is not None else None
            if found is not None:
                return self._add_discovered(module, join(path, found[0]), found[1], caller)
        self._misses[id(parent)] += 1
        if not (module._parameters or module._modules):
            return None
        path = self._made_up.lowest(join(caller.layer, class_name(module)))
        return self._add_discovered(module, path, module, caller)

    def _has(self, path: str) -> bool:
        site = self._layers.get(path)
        return site is not None and site.layer == path and self.by_id.get(site.of.ident) is site

    def _add_discovered(self, module: torch.nn.Module, path: str, top: torch.nn.Module, caller: Site) -> Site | None:
        parent = caller.of()
        held: set[int] = set()
        self._add_below(top, path, caller.model, held)
        for ident in held.difference(*(model.held for model in self._models)):
            self._callers.setdefault(ident, id(parent))
        self._outside.pop(id(module), None)
        return self.by_id.get(id(module))

    def _add_below(self, top: torch.nn.Module, path: str, model: Model, held: set[int]) -> None:
        """Give sites to a module at a path in its model and to all below it; add the ids of those to `held`."""
        new: set[int] = set()
        for below, module in paths(top):
            known = self.by_id.get(id(module))
            here = join(path, below) if path else model.path(below)
            if not model.takes(here, module):
                self._leave_out(module)
                continue
            held.add(id(module))  # first, since an interrupt may come between any two calls
            if known is None:
                new.add(id(module))
                self._add(module, here, model)
            elif id(module) in new:
                _add_place(known, here)

    def _add_loss(self, module: torch.nn.Module) -> Site | None:
        """Add a loss, which obeys the choice of a model, but begins with no name of one."""
        held = self._models[-1]
        model = Model(weakref.ref(module), held.choice, held.shapes, "")
        if model.takes(LOSS, module):
            return self._add(module, LOSS, model)
        self._leave_out(module)
        return None

    def add_replica(self, replica: torch.nn.Module, module: torch.nn.Module) -> None:
        """Give a replica the site of its original, if that has one."""
        site = self.by_id.get(id(module))
        if site is not None:
            self._put(replace(site, of=self._watched(replica), cache=None), replica)

    def _tell_apart(self, model: Model) -> None:
        """Name a model, and open ones that have no name and no range yet, if their paths would be the same."""
        root = unwrapped(model.root())
        if model.name is None:
            same = next((one for one in self._open if unwrapped(one.root()) is root), None)
            model.name = same.name if same is not None else self._path_in_another(model)
            if same is not None or model.name is not None:
                return
        others = [one for one in self._open if unwrapped(one.root()) is not root]
        alike = [one for one in others if (one.name or "") == (model.name or "")]
        for one in alike:
            if one.name is None and not self._is_used(one):
                self._rename(one, self._free_name(one))
        if alike and model.name is None:
            model.name = self._free_name(model)
        elif any((one.name or "") == model.name for one in alike):
            emit.warn_once(f"two models have the name {model.name!r} at the same time: their layers share rows")

    def _path_in_another(self, model: Model) -> str | None:
        """Return the path of a model that is a chosen part of another one whose block is open, perhaps paused."""
        root = model.root()
        if root is not None and (site := self.by_id.get(id(root))) is not None:
            return site.layer
        for other in self._open:
            whole = other.root() if other not in self._models else None
            for path, module in paths(whole) if whole is not None else ():
                if module is root and other.choice.takes(path, module):
                    return other.path(path)
        return None

    def _free_name(self, model: Model) -> str:
        root = unwrapped(model.root())
        taken = {one.name for one in self._open if unwrapped(one.root()) is not root}
        name = class_name(root) if root is not None else "Model"
        return next(one for one in map(numbered, itertools.repeat(name), itertools.count(1)) if one not in taken)

    def _is_used(self, model: Model) -> bool:
        return any(site.is_used() for site in map(self.by_id.get, model.held) if site is not None)

    def _rename(self, model: Model, name: str) -> None:
        model.name = name
        for site in map(self.by_id.get, model.held):
            if site is not None and site.model is model:
                self._layers.pop(site.layer, None)
                site.move(model.path)
                self._layers[site.layer] = site

    def _add(self, module: torch.nn.Module, path: str, model: Model) -> Site:
        self._left_out.pop(id(module), None)
        return self._put(Site(path, class_name(module), model.shapes, self._watched(module), model), module)

    def _put(self, site: Site, module: torch.nn.Module) -> Site:
        if not self._has(site.layer):
            self._layers[site.layer] = site
        self.by_id[id(module)] = site
        self._on_change()
        return site

    def _watched(self, module: torch.nn.Module) -> Reference:
        made = Reference(module, self.dead.append)
        made.ident = id(module)
        return made

    def _leave_out(self, module: torch.nn.Module) -> None:
        """Remember that the module is not to be looked for, unless it has a site."""
        if id(module) not in self.by_id:
            self._left_out[id(module)] = self._watched(module)
            self.by_id[id(module)] = None

    def _forget(self, ident: int) -> None:
        site = self.by_id.get(ident)
        if site is not None and self._layers.get(site.layer) is site:
            self._made_up.free(site.layer)
            self._layers.pop(site.layer, None)
        for known in (self.by_id, self._left_out, self._callers, self._misses):
            known.pop(ident, None)


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def _add_place(site: Site, path: str) -> None:
    if site.elsewhere is None:
        site.elsewhere = {site.layer: site}
    if len(site.elsewhere) < MAX_PATHS:
        site.elsewhere[path] = Site(path, site.module, site.shapes, site.of, site.model)


def _hyperparameters(module: Any, shown_as: str) -> _Arguments:
    if not is_keras(module):
        return hyperparameters(module, shown_as)
    from annot.keras.hyperparameters import hyperparameters as of_keras

    return of_keras(module, shown_as)
