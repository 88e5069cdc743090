"""Models that are found when one of their modules is called, for `annot run --layers`."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from annot.emit.layer_filter import EVERYTHING
from annot.torch.module_calls import bookkeeping
from annot.torch.module_paths import children, inner, is_keras
from annot.torch.module_sites import Model, Sites, is_power_of_two


class FoundModels:
    """Models of the modules that `find` receives. It does not keep them alive."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._models: list[Model] = []
        self._finds: Counter[type] = Counter()

    @bookkeeping(note="a model runs without ranges")
    def find(self, module: torch.nn.Module) -> None:
        """Add the model of a module, and the models that optimizers update.

        Models that are added at the same time all have their class names as prefixes of their paths, as if
        `emit_ranges` was entered for each of them before the first call.
        """
        if is_keras(module) and not hasattr(module, "fit"):
            return  # Keras calls the layers of a model with symbolic tensors to build it
        for model in [model for model in self._models if model.root() is None]:
            self._close(model)
        self._finds[type(module)] += 1
        # Limits the searches of a program that creates new models in each step.
        deep = is_power_of_two(self._finds[type(module)])
        roots = list(_models_of(module)) if deep else [module]
        models = [Model(weakref.ref(inner(root)), EVERYTHING, True) for root in roots if self._is_new(root)]
        for model in models:
            self._models.append(model)
            self._sites.open(model)
        for model in models:
            self._sites.add_model(model)

    def close(self) -> None:
        """Forget all models."""
        while self._models:
            self._close(self._models[-1])

    def _close(self, model: Model) -> None:
        self._sites.remove(model)
        self._sites.close(model)
        self._models.remove(model)

    def _is_new(self, root: torch.nn.Module) -> bool:
        """Return whether a module with parameters lacks a site. Keras models get parameters when they are built."""
        has_parameters = next(root.parameters(), None) is not None
        return self._sites.by_id.get(id(root)) is None and (has_parameters or is_keras(root))


def _models_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the outermost module that contains `module`, then those with parameters that an optimizer updates."""
    modules = list(_instances(torch.nn.Module))
    parents: dict[int, torch.nn.Module] = {}
    for parent in modules:
        # A graph of torch.compile or torch.fx also contains modules of the model that it was traced from.
        if hasattr(parent, "_modules") and not isinstance(parent, torch.fx.GraphModule):
            for _, child in children(parent):
                parents.setdefault(id(child), parent)
    groups = [group for optimizer in _instances(torch.optim.Optimizer) for group in optimizer.param_groups]
    updated = {id(parameter) for group in groups for parameter in group["params"]}
    trained = [layer for layer in modules if updated.intersection(map(id, vars(layer).get("_parameters", {}).values()))]
    outermost = [_outermost(layer, parents) for layer in (module, *trained)]
    yield from {id(root): root for root in outermost}.values()


def _outermost(module: torch.nn.Module, parents: dict[int, torch.nn.Module]) -> torch.nn.Module:
    seen: set[int] = set()
    while id(module) in parents and id(module) not in seen:
        seen.add(id(module))
        module = parents[id(module)]
    return module


def _instances(kind: type) -> Iterator[Any]:
    """Yield the instances of a class. `type` calls no code of a proxy, as `isinstance` does."""
    return (instance for instance in gc.get_objects() if issubclass(type(instance), kind))
