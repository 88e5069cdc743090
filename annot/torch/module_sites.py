"""Sites of modules: map a module to its path in the model and its prepared events."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import torch

from annot.emit import class_sources, client, guard
from annot.emit.layer_filter import Choice
from annot.emit.shapes import specs_of, tensors_in
from annot.labels import tag
from annot.labels.hyperparameters import Arguments
from annot.torch.hyperparameters import double_weights, gradients, hyperparameters
from annot.torch.internals import tracing_context
from annot.torch.module_paths import MAX_PATHS, class_name, hides_inner, inner, join, path_to, paths, unwrapped
from annot.util.locks import fork_safe
from annot.util.lru_cache import Recent

Loss: Final = torch.nn.modules.loss._Loss
"""Base class of PyTorch's losses. A loss is a layer even outside a model."""

LOSS: Final = "Loss"
"""Path of a loss that is called outside the model, as in ``Loss CrossEntropyLoss``."""

Shown: TypeAlias = tuple[tuple[tag.TensorSpec, ...], int, Arguments]
"""Specs of the first tensors, the number of the others, and arguments."""

_NOTHING: Final[tuple[Shown, Arguments]] = ((), 0, ()), ()


class Reference(weakref.ref[torch.nn.Module]):
    """Weak reference to a module, with its id."""

    __slots__ = ("ident",)

    ident: int


@dataclass(slots=True, eq=False)
class Model:
    """Model of an open block. The block may be paused."""

    root: weakref.ref[torch.nn.Module]
    choice: Choice
    shapes: bool
    name: str | None = None  # prefix of its paths; None: no prefix so far
    held: set[int] = field(default_factory=set)  # ids of its modules that have a site

    def path(self, below: str) -> str:
        """Return the full path, as in ranges, of a module at this path below the model."""
        return join(self.name or "", below)

    def takes(self, path: str, module: torch.nn.Module) -> bool:
        """Return whether a module at this full path has a site."""
        below = "" if path == self.name else path.removeprefix(f"{self.name}.") if self.name else path
        return self.choice.takes(below, module)


@dataclass(slots=True, eq=False)
class Site:
    """A module at one path of a model, with its events by combination of input shapes."""

    layer: str  # dotted path, as in `torch.nn.Module.named_modules`
    module: str  # class name
    shapes: bool
    of: Reference
    model: Model
    elsewhere: dict[str, Site] | None = None  # the sites of a shared module by path
    events: Recent = field(default_factory=Recent)  # forward and backward event by key of the shapes
    recomputed: Recent = field(default_factory=Recent)  # recompute and backward event by forward event
    operations: dict[str, Recent] = field(default_factory=dict)  # events by name of the operation, then by arguments
    cache: Any = None  # cache of `annot.native._emit.Calls`

    def make_events(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Create the forward and backward event of a call with these arguments."""
        (specs, omitted, arguments), grad = self._shown(args, kwargs)
        return (
            self._event("forward", specs, omitted, arguments),
            self._event("backward", specs, omitted, arguments + grad),
        )

    def make_recompute_event(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Create the event of a recomputation with these arguments."""
        return self._event("recompute", *self._shown(args, kwargs)[0])

    def near(self, active: str) -> Site:
        """Return the site of a shared module inside the layer `active`, or inside its nearest ancestor."""
        while active and self.elsewhere is not None:
            for path, site in self.elsewhere.items():
                if path.startswith(active + "."):
                    return site
            active = active.rpartition(".")[0]
        return self

    def is_used(self) -> bool:
        """Return whether the module has emitted a range."""
        return self.events.is_used() or any(site.events.is_used() for site in (self.elsewhere or {}).values())

    def move(self, path: Callable[[str], str]) -> None:
        """Change the path of the site, given a function from the present path to the new one."""
        sites = list((self.elsewhere or {self.layer: self}).values())
        for site in sites:
            site.layer = path(site.layer)
        if self.elsewhere is not None:
            self.elsewhere = {site.layer: site for site in sites}

    def _shown(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Shown, Arguments]:
        """Return shapes and hyperparameters of a call, then the arguments shown only in the backward range."""
        # Reading the shape of an argument may raise.
        return guard.attempt(self._read, args, kwargs, otherwise=_NOTHING) if self.shapes else _NOTHING

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Shown, Arguments]:
        tensors = tensors_in(args, kwargs, is_tensor)
        specs, omitted, arguments = shown(tensors)
        if not specs:
            return (specs, omitted, ()), ()
        # A subclass may lack attributes of its base class.
        settings: Arguments = guard.attempt(hyperparameters, self.of(), self.module, otherwise=())
        double: Arguments = guard.attempt(double_weights, self.of(), tensors, otherwise=())
        grad: Arguments = guard.attempt(gradients, self.of(), tensors, otherwise=())
        return (specs, omitted, settings + double + arguments), grad

    def _event(self, phase: tag.Phase, specs: tuple[tag.TensorSpec, ...], omitted: int, arguments: Arguments) -> Any:
        text = tag.format(tag.Tag(self.layer, self.module, phase, specs, omitted, arguments=arguments))
        return client.event(text, category=phase, few=not specs)


def shown(tensors: list[Any]) -> Shown:
    """Return the specs of tensors as `specs_of` does, and the dtype of autocast."""
    dtype = autocast_dtype(tensors)
    return *specs_of(tensors), (("autocast", dtype),) if dtype else ()


def autocast_dtype(tensors: list[Any]) -> str:
    """Return the dtype of autocast on the device of the first tensor. Empty if autocast is off."""
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
    """Sites of the modules of all open models. They do not keep the modules alive.

    `by_id` maps ``id(module)`` to its site, or to None if the layer filter excludes the module. `dead` contains the
    modules that were deleted since the last call of `bury`. `on_change` is called after a site was added or removed.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.roots: type[torch.nn.Module] = Loss  # class of the modules that may get a site without a caller
        self._find_model: Callable[[torch.nn.Module], None] | None = None
        self._lock = fork_safe(threading.RLock)  # several threads may discover modules at the same time
        self.by_id: dict[int, Site | None] = {}
        self.dead: list[Reference] = []
        self._excluded: dict[int, Reference] = {}
        self._open: list[Model] = []
        self._models: list[Model] = []  # open models whose block is not paused
        self._callers: dict[int, int] = {}  # discovered module: its calling module
        self._outside: dict[int, tuple[Reference, int]] = {}  # number of calls of modules without a site
        self._misses: Counter[int] = Counter()  # by caller: number of modules not found in the model
        self._layers: dict[str, Site] = {}  # site by path
        self._generated = Numbered(self._has)  # generated paths, which end in the name of a class

    def search(self, find_model: Callable[[torch.nn.Module], None] | None) -> None:
        """Call `find_model` with every module that is called outside the models. None: end this."""
        self._find_model = find_model
        self.roots = Loss if find_model is None else torch.nn.Module

    def open(self, model: Model) -> None:
        """Name the model of an entered block, paused or not. Repeated calls have no effect.

        A model without a name gets its class name as prefix if its paths would collide with those of another model.
        """
        if model not in self._open:
            self._resolve_names(model)
            self._open.append(model)

    def close(self, model: Model) -> None:
        """Release the name of a model whose block was left."""
        if model in self._open:
            self._open.remove(model)

    def add_model(self, model: Model) -> None:
        """Add sites for the selected modules of a model. Existing sites are kept."""
        root = model.root()
        if root is None:
            return
        self.bury()
        self._models.append(model)
        self._add_below(root, "", model, model.held)
        for ident in model.held:
            self._callers.pop(ident, None)

    def remove(self, model: Model) -> None:
        """Remove the sites of a model, except those shared with another block, and sites discovered through them.

        After an interrupt, the next call continues with the rest.
        """
        if model.name is None and self._is_used(model):
            model.name = ""  # keep the paths of the ranges emitted so far
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
        """Forget all modules, including discovered ones."""
        for table in (
            self.by_id,
            self._excluded,
            self._callers,
            self._outside,
            self._misses,
            self._layers,
            self._generated,
            self._models,
            self.dead,
        ):
            table.clear()
        self._on_change()

    def bury(self) -> None:
        """Forget deleted modules. After an interrupt, the next call continues with the rest.

        CPython prints and drops exceptions in callbacks of weak references, including those of signal handlers. So the
        callback is a C function, ``self.dead.append``, and the next module call calls `bury`.
        """
        with self._lock:
            count = len(self.dead)
            for dead in self.dead[:count]:
                site = self.by_id.get(dead.ident)
                current = self._excluded.get(dead.ident) if site is None else site.of
                if dead is current:  # not a newer module with the same id
                    self._forget(dead.ident)
                self._outside.pop(dead.ident, None)
            self._on_change()
            del self.dead[:count]

    def discover(self, module: torch.nn.Module, caller: Site | None) -> Site | None:
        """Return the site of a module that was added after its model or is not registered in it, or None.

        A wrapper of `torch.compile` gets the path of the module inside. Any other module is searched in the layer that
        calls it, then in the whole model. If it is in neither, for example a global, its path is that of the caller
        with its class name, provided it has parameters or children. Without a caller, a loss gets a site, and during
        a `search` any module of a model.
        """
        note = "a module that was added to its model later runs without a range"
        return guard.attempt(self._discover, module, caller, otherwise=None, note=note)

    def _discover(self, module: torch.nn.Module, caller: Site | None) -> Site | None:
        # Up to PyTorch 2.4, torch.compile calls a copy of the module with fake tensors.
        if id(module) in self.by_id or tracing_context() is not None:
            return None
        original = inner(module)
        if caller is None and not isinstance(original, Loss):
            with self._lock:
                if self._find_model is not None and id(original) not in self.by_id:
                    self._find_model(original)
                    self._exclude(original)  # if it is in no model, search only once
        if id(module) in self.by_id:
            return self.by_id[id(module)]
        wrapped = self.by_id.get(id(original)) if original is not module else None
        if wrapped is not None:
            return self._add(module, wrapped.layer, wrapped.model) if hides_inner(module) else None
        if caller is None:
            return self._add_loss(module) if isinstance(original, Loss) and self._models else None
        parent = caller.of()
        with self._lock:
            if id(module) in self.by_id:  # another thread was faster
                return self.by_id[id(module)]
            if parent is None or self.by_id.get(id(parent)) is None or not self._should_search(module):
                return None
            return self._find(module, parent, caller)

    def _should_search(self, module: torch.nn.Module) -> bool:
        """Return whether to search a module again: only at call 1, 2, 4, 8 and so on, because a search is slow."""
        ident = id(module)
        watched, calls = self._outside.get(ident) or (self._watched(module), 0)
        self._outside[ident] = watched, calls + 1
        return is_power_of_two(calls + 1)

    def _find(self, module: torch.nn.Module, parent: torch.nn.Module, caller: Site) -> Site | None:
        # Limits the searches of the whole model for layers that create new modules in each call.
        deep = is_power_of_two(self._misses[id(parent)] + 1)
        root = caller.model.root() if deep else None
        for holder, path in ((parent, caller.layer), (root, caller.model.path(""))):
            match = path_to(module, holder, deep=deep) if holder is not None else None
            if match is not None:
                return self._add_discovered(module, join(path, match[0]), match[1], caller)
        self._misses[id(parent)] += 1
        if not (module._parameters or module._modules):
            return None
        path = self._generated.lowest(join(caller.layer, class_name(module)))
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
        """Add sites for a module and all its submodules, and add their ids to `held`."""
        new: set[int] = set()
        classes: set[tuple[str, type]] = set()
        for below, module in paths(top):
            site = self.by_id.get(id(module))
            here = join(path, below) if path else model.path(below)
            if not model.takes(here, module):
                self._exclude(module)
                continue
            held.add(id(module))  # first: a signal handler may raise between any two calls
            if site is None:
                new.add(id(module))
                classes.add((self._add(module, here, model).module, type(inner(module))))
            elif id(module) in new:
                site.elsewhere = site.elsewhere or {site.layer: site}
                if len(site.elsewhere) < MAX_PATHS:
                    site.elsewhere[here] = Site(here, site.module, site.shapes, site.of, site.model)
        class_sources.note(classes)

    def _add_loss(self, module: torch.nn.Module) -> Site | None:
        """Add a loss with the layer filter of the latest model, and without its name as prefix."""
        held = self._models[-1]
        model = Model(weakref.ref(module), held.choice, held.shapes, "")
        if model.takes(LOSS, module):
            return self._add(module, LOSS, model)
        self._exclude(module)
        return None

    def add_replica(self, replica: torch.nn.Module, module: torch.nn.Module) -> None:
        """Add a copy of the original's site for a replica."""
        site = self.by_id.get(id(module))
        if site is not None:
            self._put(replace(site, of=self._watched(replica), cache=None), replica)

    def _resolve_names(self, model: Model) -> None:
        """Name a model, and rename open models without name and ranges, if their paths would collide."""
        root = unwrapped(model.root())
        if model.name is None:
            same = next((other for other in self._open if unwrapped(other.root()) is root), None)
            model.name = same.name if same is not None else self._path_in_another(model)
            if same is not None or model.name is not None:
                return
        others = [other for other in self._open if unwrapped(other.root()) is not root]
        alike = [other for other in others if (other.name or "") == (model.name or "")]
        for other in alike:
            if other.name is None and not self._is_used(other):
                self._rename(other, self._free_name(other))
        if alike and model.name is None:
            model.name = self._free_name(model)
        elif any((other.name or "") == model.name for other in alike):
            client.warn_once(f"two open models have the name {model.name!r}: their layers share rows")

    def _path_in_another(self, model: Model) -> str | None:
        """Return the path of a model that is a selected submodule of another model with an open or paused block."""
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
        taken = {other.name for other in self._open if unwrapped(other.root()) is not root}
        name = class_name(root) if root is not None else "Model"
        return next(free for free in map(numbered, itertools.repeat(name), itertools.count(1)) if free not in taken)

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
        self._excluded.pop(id(module), None)
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

    def _exclude(self, module: torch.nn.Module) -> None:
        """Record an excluded module, unless it has a site."""
        if id(module) not in self.by_id:
            self._excluded[id(module)] = self._watched(module)
            self.by_id[id(module)] = None

    def _forget(self, ident: int) -> None:
        site = self.by_id.get(ident)
        if site is not None and self._layers.get(site.layer) is site:
            self._generated.free(site.layer)
            self._layers.pop(site.layer, None)
        for table in (self.by_id, self._excluded, self._callers, self._misses):
            table.pop(ident, None)


def numbered(name: str, number: int) -> str:
    """Return a name with a number. The number 1 is left out."""
    return name if number == 1 else f"{name}#{number}"


class Numbered:
    """Allocator of the lowest number of a name that is not `taken`."""

    def __init__(self, taken: Callable[[str], bool]) -> None:
        self._taken = taken
        self._least: dict[str, int] = {}  # by name; all lower numbers are taken

    def lowest(self, name: str) -> str:
        """Return the numbered name with the lowest number that is free."""
        number = self._least.get(name, 1)
        while self._taken(numbered(name, number)):
            number += 1
        self._least[name] = number
        return numbered(name, number)

    def free(self, name: str) -> None:
        """Release a numbered name."""
        plain, _, number = name.rpartition("#")
        for base, freed in ((name, "1"), (plain, number)):
            if base in self._least and freed.isdecimal():
                self._least[base] = min(self._least[base], int(freed))

    def clear(self) -> None:
        """Forget all names."""
        self._least.clear()


def is_power_of_two(count: int) -> bool:
    """Return whether a positive number is a power of two."""
    return count & (count - 1) == 0
